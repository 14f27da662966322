"""The numbers of the page on choosing a variant are those of the records."""

import re
from pathlib import Path
from statistics import median

import pytest

from diffattn.files.io import read_json

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "start" / "choosing.md").read_text(encoding="utf-8")
TYPES = ("diff", "diff_v2", "shared_diff")


def answers(question):
    """Cells of V1, V2 and Shared DIFF in the row of a question."""
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {question}"))
    return [cell.strip() for cell in row.split("|")[3:-1]]


def results_of(study):
    return read_json(ROOT / "published" / study / "results.json")


def test_parameters_for_the_same_loss():
    axis = results_of("scaling")["axes"]["parameters"]
    shares = {
        row["type"]: f"{100 * row['ratio']:.0f} %" if row["high"] < 1 else "not shown"
        for row in axis["equivalents"]
        if (row["baseline"], row["point"]) == ("softmax", axis["read_at"])
    }
    for name, cell in zip(TYPES, answers("Fewer parameters"), strict=True):
        assert cell.startswith(shares[name])


def test_steps_until_recall():
    results = results_of("recall")["tasks"]["noisy_recall"]
    steps = {name: median(row["solved_steps"]) for name, row in results["types"].items()}
    v1, *others = answers("Recalls among noise")
    assert f"{steps['diff']:g} steps against {steps['softmax']:g}" in v1
    sooner = [pair for pair in results["sooner"]["pairs"] if "softmax" in pair.values()]
    assert [pair["first"] for pair in sooner] == ["diff"]
    assert others == ["not shown", "not shown"]
    level = {
        test["types"][0]
        for test in results["control_tests"]
        if test["types"][1] == "diff"
        and not (test["sooner"] == "diff" and test["log_rank_holm"] < 0.05)
    }
    assert level == {"diff_uniform"}
    blind = median(results["controls"]["diff_uniform"]["solved_steps"])
    assert f"not shown sooner than with a uniform second map ({blind:g})" in v1


@pytest.mark.parametrize(
    ("question", "shape", "measured"),
    [
        ("Training speed of", "wide | 4 | 1 × 1,024 | float32", 3),
        ("Speed in training a 3B model on an H100", "3b | 28 | 1 × 4,096 | bfloat16", 2),
    ],
)
def test_training_speed(question, shape, measured):
    table = (ROOT / "docs" / "findings" / "benchmarks.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| {re.escape(shape)} \| forward \+ backward \|.*", table, re.M)
    cells = row.group().split("|")[6 : 8 + measured]
    softmax, _, *types = (float(cell.split("(")[0].replace(",", "")) for cell in cells)
    printed = answers(question)
    assert [float(cell.split()[0]) for cell in printed[:measured]] == [
        pytest.approx(speed / softmax, abs=0.005) for speed in types
    ]
    assert printed[measured:] == ["not measured"] * (3 - measured)


def test_a_lower_loss():
    shown = {
        test["variant"]
        for test in results_of("text")["tests"]
        if (test["baseline"], test["at"], test["shown"]) == ("softmax", "best", True)
    }
    cells = zip(TYPES, answers("Lower loss than softmax"), strict=True)
    assert {name for name, cell in cells if cell != "not shown"} == shown & set(TYPES)


@pytest.mark.parametrize("page", ["docs/start/choosing.md", "README.md"])
def test_the_size_of_the_study(page):
    size = f"{results_of('text')['variants']['softmax']['parameters'] / 1e6:.1f}M"
    assert set(re.findall(r"[\d.]+M(?= parameters)", (ROOT / page).read_text("utf-8"))) == {size}
