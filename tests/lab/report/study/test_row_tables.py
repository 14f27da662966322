"""Tables of what is tested and the chart of a study of ablations, from made-up records."""

from dataclasses import replace
from statistics import fmean

import plotly.graph_objects as go
import pytest

from diffattn.lab.report.build import markdown_results
from diffattn.lab.report.page.wording import type_name
from diffattn.lab.report.study.files import at_equal_time, read_study, train_losses
from diffattn.lab.report.study.tables import endpoints_table, other_tables, rows_table
from lab.report.page_reader import build, figures, outline_of
from record_files import change_record, read_record

VARIANTS = ("softmax", "diff", "diff_no_norm", "shared_diff", "none")
PAIRS = (("diff", "softmax"), ("diff_no_norm", "diff"), ("shared_diff", "softmax"))
ROWS = [{"variant": variant, "baseline": baseline, "at": "best"} for variant, baseline in PAIRS]


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
    table = rows_table(study)
    assert len(table.rows) == len(ROWS)
    first, second, third = (cells(table, i) for i in range(3))
    assert first[-2] == "−0.025"  # of 3.062 − 3.087
    assert second[-2] == "+0.060"
    assert third[-2] == "—"
    assert first[-1].startswith("lower by 0.0")
    assert table.rows[0][2].note == "1.00× V1's"
    assert table.rows[2][2].note == "1.25× V1's: above break-even"


def test_a_row_that_diverged_says_so(folder):
    recorded = read_record(folder / "results.json")
    variants = recorded["variants"]
    del variants["diff_no_norm"]
    left = [entry for entry in recorded["differences"] if entry["variant"] != "diff_no_norm"]
    change_record(
        folder / "results.json", variants=variants, differences=left,
        diverged={"diff_no_norm": [1, 3]},
    )  # fmt: skip
    table = rows_table(read_study(folder))
    assert cells(table, 1)[-1] == (
        "not compared: DIFF V1 without head norm diverged in 1 of 3 runs"
    )
    assert "diverged in 1 of 3 runs" in " ".join(outline_of(build(folder)).text)


def test_a_comparison_shows_its_tests(make_study):
    study = make_study(variants=VARIANTS, num_steps=25, num_layers=2)
    assert endpoints_table(read_study(study)) is None
    assert rows_table(read_study(study)) is None
    loss = {"variant": "diff", "mean": -0.1, "low": -0.2, "high": -0.05, "p_holm": 0.0004}
    tokens = {"variant": "diff", "mean": 0.84, "low": None, "high": None, "p_holm": None}
    endpoints = [loss | {"measure": "loss"}, tokens | {"measure": "tokens"}]
    leads = [{"variant": "diff", "mean": -0.01, "low": -0.03, "high": 0.01}]
    change_record(study / "results.json", endpoints=endpoints, adjusted_leads=leads)
    table = endpoints_table(read_study(study))
    effects = ["DIFF V1", "−0.100", "below 0.001", "84", "—"]
    assert [cells(table, 0)[:5], cells(table, 0)[-1]] == [effects, "−0.010"]
    assert table.rows[0][1].note == "−0.200 to −0.050"
    assert "adjusted by Holm over these 2;" in table.caption
    assert "| −0.100 (−0.200 to −0.050) | below 0.001 |" in markdown_results(study)


def test_loss_at_equal_processor_time(make_study):
    """V1 takes 1 / 0.7 times as long, so it stands at 0.7 of the line from its first loss."""
    study = read_study(make_study(variants=VARIANTS, num_steps=25, num_layers=2))
    losses, others = (
        [[loss for _, loss in run.series("validation_loss")] for run in study.runs_of(name)]
        for name in ("diff", "softmax")
    )
    values = [a + 0.7 * (b - a) - c for (a, b), (_, c) in zip(losses, others, strict=True)]
    interval = at_equal_time(study, "diff")
    assert interval["mean"] == pytest.approx(fmean(values))
    assert interval["low"] < interval["mean"] < interval["high"]
    without_costs = replace(study, runs=[replace(run, costs=None) for run in study.runs])
    assert at_equal_time(without_costs, "diff") is None
    without_first = replace(study, runs=study.runs_of("softmax") + study.runs_of("diff")[1:])
    assert at_equal_time(without_first, "diff") is None
    assert train_losses(without_first, "diff") == []


def test_the_other_tables_keep_the_controls_alone(folder):
    """A model without attention never copies: it is compared all the same."""
    table, _ = other_tables(read_study(folder))  # and that of the rows
    assert cells(table, 0)[0] == "No attention"
    assert cells(table, 0)[-1].startswith("higher by 0.6")


def test_a_control_before_the_induction_phase_is_not_compared(make_study):
    study = make_study(variants=("softmax", "softmax_half"), num_steps=25, num_layers=2)
    variants = read_record(study / "results.json")["variants"]
    variants["softmax_half"]["at"]["best"]["phase_steps"] = [None] * 3
    change_record(study / "results.json", variants=variants)
    (table,) = other_tables(read_study(study))
    assert cells(table, 0)[-1] == (
        "not compared: one has passed the induction phase and the other has not"
    )


def test_the_page_the_markdown_and_the_chart_hold_every_row(folder):
    page = build(folder)
    text = " ".join(outline_of(page).text)
    assert "Differential attention: ablations “laptop”" in text
    assert "Table 6" in text
    assert "| lower by 0.0" in markdown_results(folder)
    chart = go.Figure(figures(page)["chart-differences"])
    assert list(chart.layout.yaxis.ticktext) == [
        f"{type_name(row['variant'])} − {type_name(row['baseline'])}" for row in ROWS
    ]
    assert len(chart.data) == 2 * len(ROWS)  # single pairs, and their mean
    # The paper has no such column of ranks.
    change_record(folder / "study.json", kind="rank")
    assert "Table 6" not in " ".join(outline_of(build(folder)).text)
