"""The report of a gradient-flow study, from a made-up folder."""

import shutil

import plotly.graph_objects as go
import pytest

from diffattn.lab.report.build import markdown_results
from diffattn.lab.report.sections.gradient_flow import (
    over_training,
    over_width,
    read_gradient_flow_study,
)
from lab.report.made_up_gradient_flow import write_gradient_flow
from lab.report.page_reader import shown


@pytest.fixture
def study(tmp_path):
    return write_gradient_flow(tmp_path / "study")


def test_the_page_shows_judgements_ratios_and_heads(study):
    text = shown(study)
    assert "What is missing" not in text
    for words in (
        "Made-up &lt;b&gt;claim&lt;/b&gt;: disagrees (factor 8.00). Of 2 statements: "
        "disagrees 1 and uninformative 1.",
        "Made-up &lt;i&gt;statement&lt;/i&gt;.",
        "Made-up &lt;b&gt;chip&lt;/b&gt;",
        "Made-up other uninformative start — — below 2 so are the control&#39;s",
        "the same magnitude is a factor below 2, a constant one that changes by less than a factor "
        "of 1.5",
        "DIFF V1 over Softmax, half the heads 8.00 4.00 to 16.00",
        "Softmax, half the heads, next seed over Softmax, half the heads 1.12 0.56 to 2.25",
        "DIFF V1 over Softmax, half the heads 3.00 1.50 to 6.00",
        "width-64 (2 layers, width 64) 8.00",
        "start, layer 2 0.750 0.062 0.031 to 0.125",
    ):
        assert words in text, words


def test_charts_hold_every_matrix_at_every_phase_and_width(study):
    read = read_gradient_flow_study(study)
    chart = over_training(read, "gradient")
    assert {trace["name"]: trace["x"] for trace in chart.traces if trace["x"]} == {
        "W_Q": [1, 9.5], "FFN": [1, 9.5],
    }  # fmt: skip
    assert chart.traces[0]["error_y"]["array"] == [8.0, 8.0]
    (band,) = chart.look["shapes"]
    assert (band["y0"], band["y1"]) == (0.5, 2.0)
    assert len(go.Figure(chart.figure).data) == 5
    assert over_width(read).traces[0]["x"] == [64, 128]


def test_markdown(study):
    lines = markdown_results(study).splitlines()
    assert lines[2] == (
        "| Made-up <b>claim</b> | disagrees | start | 8.00 (4.00 to 16.00) | below 2 | — |"
    )
    assert len(lines) == 4


def test_what_is_missing_is_named(study):
    shutil.rmtree(study / "runs" / "base-softmax-seed0")
    (study / "results.json").unlink()
    text = shown(study)
    assert "Run base-softmax-seed0 was not found." in text
    assert "results.json is missing" in text
    assert "nothing is judged yet" in text
