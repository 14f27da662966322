"""The numbers of the page on converting are those of the record."""

from pathlib import Path

import pytest

from diffattn.files.io import read_json
from diffattn.lab.stats.paired import paired_difference
from published_pages import estimate, prose

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "converting.md").read_text(encoding="utf-8")
RECORD = read_json(ROOT / "docs" / "records" / "softmax_start.json")
ROWS = {
    "dex": "| `dex` |",
    "diff_v2": "| `diff_v2` |",
    "diff_v2_gate": "| control: gated softmax (`gated_head`) |",
    "diff": "| `diff` |",
    "diff_plain": "| `diff` with `head_norm=false` |",
}


def shown(interval):
    text = estimate(interval, "{:.3f}".format).replace("-0.000", "0.000").replace("-", "−")
    return "0.000" if text == "0.000 (0.000 to 0.000)" else text


@pytest.mark.parametrize("way", ROWS)
def test_the_table_is_the_records(way):
    (row,) = (line for line in PAGE.splitlines() if line.startswith(ROWS[way]))
    parameters, jump, end = (cell.strip() for cell in row.split("|")[2:-1])
    runs, twins = RECORD["ways"][way], RECORD["ways"]["softmax"]
    assert parameters == f"{runs[0]['parameters'] / twins[0]['parameters']:.2f} ×"
    assert jump == shown(RECORD["jump"][way])
    assert end == shown(RECORD["difference"][way])


def test_the_words_are_the_records():
    assert not RECORD["dirty"]
    differences = [(way, RECORD["difference"][way]) for way in ROWS if way != "diff"]
    shown_ways = {way for way, of in differences if of["low"] > 0 or of["high"] < 0}
    assert shown_ways == {"diff_v2", "diff_plain"}
    assert {len(runs) for runs in RECORD["ways"].values()} == {3}
    assert {max(map(float, rates)) for rates in RECORD["rates"].values()} == set(
        RECORD["chosen"].values()
    )
    ends = {way: [run["loss"] for run in runs] for way, runs in RECORD["ways"].items()}
    second_map = paired_difference(ends["diff_v2"], ends["diff_v2_gate"])
    words = f"V2 minus its gate alone is {shown(second_map)}: no"
    assert words in prose("docs/guides/converting.md")
