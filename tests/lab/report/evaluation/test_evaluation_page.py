"""The page of an evaluation folder, from records alone."""

from dataclasses import replace

import pytest
from markupsafe import escape

from diffattn.errors import CheckpointError
from diffattn.lab.records.evaluations import Comparison, EvalResult, Metric
from diffattn.lab.report.build import build_evaluation_report
from diffattn.lab.report.evaluation.tables import value_with_interval
from diffattn.lab.report.page.charts import model_colors
from diffattn.lab.report.page.wording import type_color
from evaluation_folders import paired
from lab.report.made_up_evaluation import write_evaluation
from lab.report.page_reader import figures
from record_files import read_record, write_record


@pytest.fixture
def folder(tmp_path):
    write_evaluation(tmp_path)
    return tmp_path


def test_every_model_has_a_color_of_its_own():
    kinds = {"a": "diff", "b": "llama", "c": "gpt", "d": "softmax", "e": "softmax"}
    colors = model_colors(kinds)
    assert list(colors) == list(kinds)
    assert colors["a"] == type_color("diff")
    assert len(set(colors.values())) == len(kinds)


def test_charts_hold_the_values_of_their_model(folder):
    page = build_evaluation_report(folder).read_text(encoding="utf-8")
    assert "loss, task a over length. No intervals." in page
    bounds = {"low": 0.2, "high": 2.5, "method": "bootstrap over texts"}
    for label in ("one", "two"):
        kept = EvalResult.read(folder / label / "needle")
        metrics = [replace(m, **bounds) if m.name == "loss" else m for m in kept.metrics]
        replace(kept, metrics=metrics).write(folder / label / "needle")
    page = build_evaluation_report(folder).read_text(encoding="utf-8")
    assert "loss, task a over length. Bars: intervals by bootstrap over texts, 95 %." in page
    charts = figures(page)
    for index, shift in enumerate((0.0, 0.1)):
        (map_,) = charts[f"protocol-0-chart-0-{index}"]["data"]
        assert (map_["x"], map_["y"]) == (["2", "4", "8"], ["0", "50"])
        by_depth = ([0.1, 0.2, 0.3], [0.2, 0.3, 0.4])
        for row, values in zip(map_["z"], by_depth, strict=True):
            assert row == pytest.approx([x + shift for x in values])
        line = charts["protocol-0-chart-1"]["data"][index]
        losses = [1 + shift, 1 / 2 + shift, 1 / 3 + shift]
        assert line["x"] == [4, 16, 64]
        assert line["y"] == pytest.approx(losses)
        assert line["error_y"]["array"] == pytest.approx([2.5 - x for x in losses])
        assert line["error_y"]["arrayminus"] == pytest.approx([x - 0.2 for x in losses])


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (182.879, "perplexity", "182.9 (91.4 to 365.8)"),
        (1_580_333.0, "perplexity", "1,580,333 (790,166 to 3,160,666)"),
        (38_137_920_067_191.0, "perplexity", "3.81e+13 (1.91e+13 to 7.63e+13)"),
        (512.0, "tokens", "512 (256 to 1,024)"),
    ],
)
def test_digits_end_where_they_mean_nothing(value, unit, shown):
    metric = Metric(name="a", value=value, n=9, unit=unit, low=value / 2, high=value * 2)
    assert value_with_interval(metric) == shown


def test_the_page_shows_values_charts_and_what_is_missing(folder):
    page = build_evaluation_report(folder).read_text(encoding="utf-8")
    for text in (
        "0.500 (0.400 to 0.900)", "0.600 (0.400 to 0.900)", "three has no result of needle.",
        "one, needle: 2 of 12 items failed.", "McNemar, exact", "+0.1000", "completion &amp; more",
        "protocol-0-chart-0-1", "protocol-0-chart-1", "&lt;b&gt;x&lt;/b&gt;",
    ):  # fmt: skip
        assert text in page, text
    assert page.count("three has no result of needle.") == 1
    assert "<b>x</b>" not in page
    assert build_evaluation_report(folder, folder / "b.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "it is of needle, version 2, where one has needle, version 1."),
        ({"parameters": {"samples": 4, "haystack": "b"}},
         "samples, haystack differ from those of one."),
    ],
    ids=["versions", "parameters"],
)  # fmt: skip
def test_other_questions_share_no_table(folder, change, why):
    path = folder / "two" / "needle" / "result.json"
    write_record(path, read_record(path) | change)
    page = build_evaluation_report(folder).read_text(encoding="utf-8")
    assert f"two is left out of needle: {why}" in page
    assert "0.500 (0.400 to 0.900)" in page
    assert "0.600 (0.400 to 0.900)" not in page
    assert "two − one" not in page


@pytest.mark.parametrize(
    "damage", [{"kind": "x"}, {"schema": 7}, {"metrics": [{"nam": 1}]}, {"version": "1"}]
)
def test_damaged_records_are_named_and_left_out(folder, damage):
    path = folder / "one" / "needle" / "result.json"
    write_record(path, read_record(path) | damage)
    page = build_evaluation_report(folder).read_text(encoding="utf-8")
    assert f"one is left out of needle: {escape(path)}" in page
    assert "0.600 (0.400 to 0.900)" in page
    assert "two − one" not in page
    other = folder / "two" / "needle" / "result.json"
    write_record(other, read_record(other) | damage)
    with pytest.raises(CheckpointError, match=r"result\.json: .*must"):
        build_evaluation_report(folder)


def primary(**more):
    values = {
        "model": "two", "baseline": "one", "difference": 0.25, "low": 0.125, "high": 0.375,
        "method": "Tango", "p_value": 0.001, "test": "McNemar, exact", "n": 40, "num_items": 40,
        "primary": True, "higher_is_better": True, "value": 0.75, "baseline_value": 0.5,
        "p_holm": 0.002, "chance": 0.0, "guess_ceiling": 0.125, "guess": "always the same",
        "verdict": "higher",
    } | more  # fmt: skip
    return paired(**values)


def test_the_page_begins_with_verdicts(folder):
    part = primary(where={"length": 8}, primary=False, verdict="", difference=-0.375)
    Comparison(baseline="one", differences=[primary(), part]).write(folder)
    page = build_evaluation_report(folder).read_text(encoding="utf-8")
    first = page.split('<section id="verdicts">')[1].split("</section>")[0]
    assert "recall of two minus one +0.250 (95 % 0.125 to 0.375, more is better): higher." in first
    for text in ("One model of each kind", "0.125", "always the same"):
        assert text in first
    assert "length 8" not in first
    assert "recall, part by part" in page
    assert "−0.375" in page
    claims = page.split('<section id="claims">')[1].split("</section>")[0]
    assert "Of 6 needles 2 asked for" in claims
    assert "Models must be called softmax-seed0, diff-seed0, … to be compared by seed;" in claims
    of_seeds = {"over": "seeds", "model": "diff", "baseline": "softmax", "n": 3}
    Comparison(baseline="one", differences=[primary(), primary(**of_seeds)]).write(folder)
    page = build_evaluation_report(folder).read_text(encoding="utf-8")
    assert "needle, over seeds: recall of diff minus softmax +0.250" in page
    assert "One model of each kind" not in page
