"""The report of a scaling study, from a made-up folder."""

import shutil

import plotly.graph_objects as go
import pytest

from diffattn.lab.report.build import build_report, markdown_results
from diffattn.lab.report.sections.scaling import loss_chart, read_scaling_study
from lab.report.made_up_scaling import write_scaling
from lab.report.page_reader import shown


@pytest.fixture
def study(tmp_path):
    return write_scaling(tmp_path / "study")


def test_the_page_begins_with_the_verdict_and_shows_fits_and_refusals(study):
    text = shown(study)
    assert "What is missing" not in text
    _, _, after = text.partition("Provenance ")  # the contents
    assert after.startswith("Made-up &lt;b&gt;verdict&lt;/b&gt;. Compared:")
    for words in (
        "Made-up &lt;i&gt;statement&lt;/i&gt;.",
        "models of 96,000 to 192,000 parameters at equal tokens, and one size with 51,200 to "
        "102,400 tokens",
        "DIFF V1 Transformer (softmax) 96,000 4.250 120,000 80 % 60 to 90 % extrapolated",
        "read for the verdict; not said: made-up &lt;i&gt;reason&lt;/i&gt;",
        "No fit: made-up &lt;i&gt;why&lt;/i&gt;.",
        "0.5 0.25 to 0.75",
        "Made-up &lt;b&gt;chip&lt;/b&gt;",
    ):
        assert words in text, words


def test_the_published_points_stand_beside(study):
    text = shown(study)
    for words in (
        "6.8 billion parameters 2.917 10.93 62.2 % 17 to 232 % 62.3 %",
        "7.8 billion parameters 2.909 13.12 59.5 % 12 to 296 % 59.5 %",
        "160 billion tokens 2.536 251.26 63.7 % 55 to 74 % 63.7 %",
        "25.17 plotted: 25.1708",
        "0.3201 plotted: 0.3206",
    ):
        assert words in text, words


def test_charts_hold_every_run_and_every_fit(study):
    axes = read_scaling_study(study).results["axes"]
    both = loss_chart(axes["parameters"], "parameters")
    assert [trace["mode"] for trace in both.traces] == 2 * ["lines", "markers"]
    assert both.traces[1]["x"] == [96_000, 96_000, 192_000, 192_000]
    assert both.traces[1]["y"] == [4.0, 4.5, 4.0, 4.5]
    curve = both.traces[0]
    assert (curve["x"][0], curve["y"][0]) == (
        96_000,
        pytest.approx(0.5 * 96_000**-0.5 + 0.5, abs=1e-6),
    )
    refused = loss_chart(axes["tokens"], "tokens")
    assert [trace["mode"] for trace in refused.traces] == ["lines", "markers", "markers"]
    assert len(go.Figure(refused.figure).data) == 3


def test_the_same_study_gives_the_same_bytes(study):
    assert build_report(study).read_bytes() == build_report(study).read_bytes()


def test_markdown(study):
    lines = markdown_results(study).splitlines()
    assert len(lines) == 2 + 4
    parts = " | ".join(3 * ["0.5 (0.25 to 0.75)"])
    assert lines[2] == f"| parameters | Transformer (softmax) | {parts} | 192,000 | — | — |"
    assert lines[5] == "| tokens | DIFF V1 | — | — | — | 102,400 | — | — |"


def test_missing_records_are_named(study):
    shutil.rmtree(study / "runs" / "softmax-h32-s200-seed0")
    (study / "results.json").unlink()
    text = shown(study)
    assert "Run softmax-h32-s200-seed0 was not found." in text
    assert "results.json is missing" in text
    assert "nothing is fitted yet" in text
