"""The numbers about known mistakes are the record's, and its start is computed again."""

from pathlib import Path
from statistics import fmean

import pytest

from diffattn.files.io import read_json
from diffattn.lab.layer_check.formula import FACTS, PLANTED
from tools.layer_mistakes import CASES, at_the_start, table

DOCS = Path(__file__).parents[2] / "docs"
RECORD = read_json(DOCS / "records" / "layer_mistakes.json")
PAGE = (DOCS / "guides" / "checking.md").read_text("utf-8")
ROWS = {
    "right": "none", "lambda_init_sign": "λ = e₁", "zero_vectors": "λ's vectors start at 0",
    "not_causal": "additive mask of zeros",
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_start_is_the_records(case):
    recorded = RECORD["cases"][case.name]
    for name, value in at_the_start(case).items():
        assert value == pytest.approx(recorded[name], rel=1e-2, abs=1e-3)


def test_the_table_of_all_mistakes_is_the_records():
    page = (DOCS / "records" / "layer_mistakes.md").read_text("utf-8")
    assert table(RECORD) in page
    for name in [*(mistake.name for mistake in PLANTED), *FACTS]:
        assert f"`{name}`" in page


@pytest.mark.parametrize(("name", "start"), ROWS.items())
def test_the_losses_are_the_records(name, start):
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {start}"))
    runs = RECORD["cases"][name]
    assert [cell.strip() for cell in row.split("|")[3:-1]] == [
        f"{fmean(runs[loss]):.2f}" for loss in ("training", "next_byte")
    ]


def test_the_words_are_the_records():
    cases = RECORD["cases"]
    assert f"λ starts at −{-cases['lambda_init_sign']['lambda_1']:.2f}" in PAGE
    assert f"not {cases['right']['lambda_1']:.2f}" in PAGE
    assert cases["zero_vectors"]["last_lambda"] == pytest.approx([0.2] * 3)
    # The sign and the zeros do not raise the loss of any seed by a tenth; the mask does.
    for name in ("lambda_init_sign", "zero_vectors"):
        pairs = zip(cases[name]["next_byte"], cases["right"]["next_byte"], strict=True)
        assert all(wrong < right + 0.1 for wrong, right in pairs)
    assert min(cases["not_causal"]["next_byte"]) > max(cases["right"]["next_byte"]) + 0.3
