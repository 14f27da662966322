"""The reports of studies on gradient flow, scaling and stability, from made-up folders."""

import shutil
from types import SimpleNamespace

import plotly.graph_objects as go
import pytest

from diffattn.lab.report.page.runs import Study
from diffattn.lab.report.sections.gradient_flow import over_training, read_gradient_flow_study
from diffattn.lab.report.sections.scaling import loss_chart, read_scaling_study
from diffattn.lab.report.sections.stability import over_rates, read_stability_study
from lab.report.made_up_studies import (
    RATES,
    TWO_TYPES,
    write_gradient_flow,
    write_scaling,
    write_stability,
)
from lab.report.page_reader import shown

WRITERS = {
    "gradient-flow": write_gradient_flow, "scaling": write_scaling, "stability": write_stability,
}  # fmt: skip
SHOWN = {
    "gradient-flow": (
        "Made-up &lt;b&gt;claim&lt;/b&gt;: disagrees (factor 8.00). Of 2 statements: "
        "disagrees 1 and uninformative 1.",
        "Made-up other uninformative start — — below 2 so are the control&#39;s",
        "width-64 (2 layers, width 64) 8.00",
        "start, layer 2 0.750 0.062 0.031 to 0.125",
    ),
    "scaling": (
        "models of 96,000 to 192,000 parameters at equal tokens, and one size with 51,200 to",
        "Transformer (softmax) parameters 96,000 4.250 120,000 80 % extrapolated 60 to 90 %",
        "no estimate: made-up &lt;i&gt;reason&lt;/i&gt;",
        "No fit: made-up &lt;i&gt;why&lt;/i&gt;.",
        "0.5 0.25 to 0.75",
        "6.8 billion parameters 2.917 10.93 62.2 % 17 to 232 % 62.3 %",
        "160 billion tokens 2.536 251.26 63.7 % 55 to 74 % 63.7 %",
    ),
    "stability": (
        "Made-up verdict.",
        "2 learning rates from 0.002 to 0.128, with 2 seeds",
        "0.250 0.000 to 0.500",
        "Final validation loss 0.128 +0.1250 −0.125 to +0.375 0.012 0.046 not both do",
        "Clipped steps 0.002, 0.128 +0.1250 −0.125 to +0.375 0.012 0.046 at no rate do both",
        "DIFF V1 − No attention Final validation loss 0.128 −0.3750",
        "a model whose whole intervals lie 0.1 nats or more below 0 uses its context",
    ),
}
"""Words of the page, by kind of study."""
A_RUN = {
    "gradient-flow": "base-softmax-seed0",
    "scaling": "softmax-h32-s200-seed0",
    "stability": "softmax-lr0.002-seed0",
}


@pytest.fixture(params=WRITERS)
def kind(request):
    return request.param


@pytest.fixture
def study(kind, tmp_path):
    return WRITERS[kind](tmp_path / "study")


def test_the_page_shows_what_the_records_hold(kind, study):
    text = shown(study)
    assert "What is missing" not in text
    _, _, after = text.partition("Provenance ")  # the contents
    assert kind != "scaling" or after.startswith("Made-up &lt;b&gt;verdict&lt;/b&gt;. Compared:")
    in_all = ("Made-up &lt;i&gt;statement&lt;/i&gt;.", "Made-up &lt;b&gt;chip&lt;/b&gt;")
    for words in (*in_all, *SHOWN[kind]):
        assert words in text, words


def test_missing_records_are_named(kind, study):
    shutil.rmtree(study / "runs" / A_RUN[kind])
    (study / "results.json").unlink()
    text = shown(study)
    assert f"Run {A_RUN[kind]} was not found." in text
    assert "results.json is missing" in text
    assert "nothing is compared yet" in text


def test_charts_of_gradients_hold_every_matrix_at_every_phase(tmp_path):
    read = read_gradient_flow_study(write_gradient_flow(tmp_path))
    chart = over_training(read, "gradient")
    assert {trace["name"]: trace["x"] for trace in chart.traces if trace["x"]} == {
        "W_Q": [1, 9.5], "FFN": [1, 9.5],
    }  # fmt: skip
    assert chart.traces[0]["error_y"]["array"] == [8.0, 8.0]
    (band,) = chart.look["shapes"]
    assert (band["y0"], band["y1"]) == (0.5, 2.0)
    assert len(go.Figure(chart.figure).data) == 5


def test_charts_of_scaling_hold_every_run_and_every_fit(tmp_path):
    axes = read_scaling_study(write_scaling(tmp_path)).results["axes"]
    both = loss_chart(axes["parameters"], "parameters")
    assert [trace["mode"] for trace in both.traces] == 2 * ["lines", "markers"]
    assert both.traces[1]["x"] == [96_000, 96_000, 192_000, 192_000]
    assert both.traces[1]["y"] == [4.0, 4.5, 4.0, 4.5]
    x, y = (both.traces[0][axis][0] for axis in "xy")
    assert (x, y) == (96_000, pytest.approx(0.5 * 96_000**-0.5 + 0.5, abs=1e-6))
    refused = loss_chart(axes["tokens"], "tokens")
    assert [trace["mode"] for trace in refused.traces] == ["lines", "markers", "markers"]
    assert len(go.Figure(refused.figure).data) == 3


def test_charts_of_stability_hold_every_type_and_rate(tmp_path):
    chart = over_rates(read_stability_study(write_stability(tmp_path)), "loss", "chart")
    assert [trace["x"] for trace in chart.traces] == 2 * [list(RATES)]
    assert chart.traces[0]["error_y"]["array"] == [0.25, 0.25]
    assert len(go.Figure(chart.figure).data) == len(TWO_TYPES)


def test_a_control_of_the_same_type_has_runs_of_its_own():
    """V1 without head norm has V1's attention type."""
    runs = [SimpleNamespace(name=f"{name}-lr0.1-seed0") for name in ("diff", "diff_no_norm")]
    study = Study(info={}, runs=tuple(runs), results=None, maps=None, gaps=())
    assert [study.runs_of(name) for name in ("diff", "diff_no_norm")] == [[run] for run in runs]
