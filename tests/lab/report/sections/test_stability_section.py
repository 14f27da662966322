"""The report of a stability study, from a made-up folder."""

import shutil

import plotly.graph_objects as go
import pytest

from diffattn.lab.report.build import build_report, markdown_results
from diffattn.lab.report.sections.stability import over_rates, read_stability_study
from lab.report.made_up_stability import RATES, TYPES, write_stability
from lab.report.page_reader import shown


@pytest.fixture
def study(tmp_path):
    return write_stability(tmp_path / "study")


def test_the_page_shows_measures_divergence_and_definitions(study):
    text = shown(study)
    assert "What is missing" not in text
    for words in (
        "Made-up verdict.",
        "Made-up &lt;i&gt;statement&lt;/i&gt;.",
        "Made-up &lt;b&gt;chip&lt;/b&gt;",
        "1 of 2 at step 150 diff-lr0.128-seed1",
        "2 learning rates from 0.002 to 0.128, with 2 seeds",
        "exceeds the median of the 32 steps before by more than 5 robust standard deviations",
        "0.250 0.000 to 0.500",
        "DIFF V1 − Transformer (softmax) Final validation loss 0.128 +0.1250",
        "0.012 0.046",
        "Measure Rates Difference 95 % interval p p, Holm Remark",
        "Final validation loss 0.128 +0.1250 −0.125 to +0.375 0.012 0.046 not both do",
        "Clipped steps 0.002, 0.128 +0.1250 −0.125 to +0.375 0.012 0.046 at no rate do both",
        "Sensitivity to the rate — +0.1250 −0.125 to +0.375 0.012 0.046 counted by earlier rules",
        "DIFF V1 − No attention Final validation loss 0.128 −0.3750",
        "DIFF V1 − No attention, wider FFN Final validation loss 0.128 −0.3750",
        "a model whose whole intervals lie 0.1 nats or more below 0 uses its context",
        "those that say nothing counting with 1",
    ):
        assert words in text, words


def test_charts_hold_every_type_and_rate(study):
    chart = over_rates(read_stability_study(study), "loss", "chart")
    assert [trace["x"] for trace in chart.traces] == 2 * [list(RATES)]
    assert chart.traces[0]["error_y"]["array"] == [0.25, 0.25]
    assert len(go.Figure(chart.figure).data) == len(TYPES)


def test_the_same_study_gives_the_same_bytes(study):
    assert build_report(study).read_bytes() == build_report(study).read_bytes()


def test_markdown(study):
    lines = markdown_results(study).splitlines()
    assert len(lines) == 2 + 4
    cells = " | ".join(["0.250 (0.000 to 0.500)"] * 4)
    assert lines[-1] == f"| DIFF V1 | 0.128 | 1 of 2 | {cells} |"


def test_missing_records_are_named(study):
    shutil.rmtree(study / "runs" / "softmax-lr0.002-seed0")
    (study / "results.json").unlink()
    text = shown(study)
    assert "Run softmax-lr0.002-seed0 was not found." in text
    assert "results.json is missing" in text
    assert "nothing is counted yet" in text
