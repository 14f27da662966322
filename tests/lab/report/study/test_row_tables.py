"""Tables of what is tested and the chart of a study of ablations, from made-up records."""

import plotly.graph_objects as go
import pytest

from diffattn.lab.report.build import markdown_results
from diffattn.lab.report.page.wording import type_name
from diffattn.lab.report.study.files import read_study
from diffattn.lab.report.study.tables import holm_table, other_tables
from lab.report.page_reader import build, figures, outline_of
from record_files import change_record, read_record

VARIANTS = ("softmax", "diff", "diff_no_norm", "shared_diff", "none")
ROWS = [
    {"variant": variant, "baseline": baseline, "at": "best", "p": p, "p_holm": p_holm,
     "shown": p_holm == 0.0012}
    for variant, baseline, p, p_holm in (
        ("diff", "softmax", 0.0004, 0.0012), ("diff_no_norm", "diff", 0.03, 0.06),
        ("shared_diff", "softmax", None, None),
    )
]  # fmt: skip


@pytest.fixture
def folder(make_study):
    """A made-up comparison that says to be one of ablations."""
    study = make_study(variants=VARIANTS, num_steps=25, num_layers=2)

    variants = read_record(study / "results.json")["variants"]
    variants["diff"]["attention_parameters"] = 1_000
    variants["shared_diff"]["attention_parameters"] = 1_250
    change_record(study / "results.json", rows=ROWS, variants=variants)
    change_record(study / "study.json", kind="ablations")
    return study


def cells(table, row):
    return [cell.text for cell in table.rows[row]]


def test_every_row_stands_beside_the_papers(folder):
    study = read_study(folder)
    table = holm_table(study)
    assert len(table.rows) == len(ROWS)
    first, second, third = (cells(table, i) for i in range(3))
    assert first[-3:-1] == ["0.001", "−0.025"]  # of 3.062 − 3.087
    assert second[-3:-1] == ["0.060", "+0.060"]
    assert third[-3:-1] == ["—", "—"]
    assert first[-1].startswith("lower by 0.0")
    assert second[-1] == "no reliable difference after Holm"
    assert "adjusted by Holm over these 3;" in table.caption


def test_a_row_that_diverged_says_so(folder):
    recorded = read_record(folder / "results.json")
    variants = recorded["variants"]
    del variants["diff_no_norm"]
    left = [entry for entry in recorded["differences"] if entry["variant"] != "diff_no_norm"]
    rows = [ROWS[0], ROWS[1] | {"p": None, "p_holm": 1.0}, ROWS[2]]
    change_record(
        folder / "results.json", rows=rows, variants=variants, differences=left,
        diverged={"diff_no_norm": [1, 3]},
    )  # fmt: skip
    table = holm_table(read_study(folder))
    assert cells(table, 1)[-1] == (
        "not compared: DIFF V1 without head norm diverged in 1 of 3 runs"
    )
    assert "diverged in 1 of 3 runs" in " ".join(outline_of(build(folder)).text)


def test_a_rank_above_break_even_is_marked(folder):
    table = holm_table(read_study(folder))
    assert table.rows[2][2].note == "1.25× V1's: above break-even"
    assert table.rows[0][2].note == "1.00× V1's"


def test_a_comparison_shows_every_test_that_its_verdict_rests_on(make_study):
    study = make_study(variants=VARIANTS, num_steps=25, num_layers=2)
    assert holm_table(read_study(study)) is None
    variants = read_record(study / "results.json")["variants"]
    for name, step in (("softmax", 20), ("diff", 20), ("shared_diff", None)):
        for group in variants[name]["at"].values():
            group["phase_steps"] = [step] * len(group["runs"])
    tests = [dict(row) for row in ROWS]
    tests[2] |= {"p": 0.002, "p_holm": 1.0}
    change_record(study / "results.json", tests=tests, variants=variants)
    table = holm_table(read_study(study))
    first, second, third = (cells(table, i) for i in range(3))
    assert first[:2] == ["DIFF V1", "Transformer (softmax)"]
    assert (first[3], table.rows[0][3].note) == ("0.001", "below 0.001 alone")
    assert first[4].startswith("lower by 0.0")
    assert (second[3], second[4]) == ("0.060", "no reliable difference after Holm")
    assert (third[3], third[4]) == (
        "1.000", "not compared: one has passed the induction phase and the other has not"
    )  # fmt: skip
    assert "over these 3; a pair that is not compared counts with p = 1" in table.caption
    assert "| 0.060 (" in markdown_results(study)


def test_the_other_tables_keep_the_controls_alone(folder):
    (table,) = other_tables(read_study(folder))
    assert cells(table, 0)[0] == "No attention"


def test_the_page_and_the_markdown_say_it(folder):
    text = " ".join(outline_of(build(folder)).text)
    assert "Differential attention: ablations “laptop”" in text
    assert "p after Holm" in text
    assert "Table 6" in text
    assert "no reliable difference after Holm" in markdown_results(folder)


def test_the_chart_has_a_line_per_row(folder):
    spec = figures(build(folder))["chart-differences"]
    chart = go.Figure(spec)
    assert list(chart.layout.yaxis.ticktext) == [
        f"{type_name(row['variant'])} − {type_name(row['baseline'])}" for row in ROWS
    ]
    assert len(chart.data) == 2 * len(ROWS)  # single pairs, and their mean


def test_ranks_have_no_column_of_the_paper(folder):
    change_record(folder / "study.json", kind="rank")
    assert "Table 6" not in " ".join(outline_of(build(folder)).text)


def test_a_row_of_an_unknown_model_is_shown_without_numbers(folder):
    row = {**ROWS[0], "variant": "new", "baseline": "newer"}
    change_record(folder / "results.json", rows=[row])
    assert cells(holm_table(read_study(folder)), 0)[0] == "new"


def test_a_test_of_the_turned_pair_is_the_same_test(make_study):
    """V2 is tested against its gate alone; the table of ablations holds the gate against V2."""
    folder = make_study(variants=("softmax", "diff_v2", "diff_v2_gate"), num_steps=25)
    test = {"variant": "diff_v2", "baseline": "diff_v2_gate", "at": "best", "p": 0.01}
    change_record(folder / "results.json", tests=[test | {"p_holm": 0.08, "shown": False}])
    row, tested = (line for line in markdown_results(folder).splitlines() if "gate only" in line)
    assert "| no reliable difference after Holm |" in row
    assert "| 0.080 (0.010 alone) |" in tested
    change_record(folder / "results.json", tests=[test | {"p_holm": 0.02, "shown": True}])
    row, _ = (line for line in markdown_results(folder).splitlines() if "gate only" in line)
    assert "not among the tests" not in row
    assert "er by 0." in row
