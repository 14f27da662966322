"""The page of an analysis: what the record holds, hostile tokens as text, damage named."""

import json
from dataclasses import replace

import pytest

from diffattn.errors import CheckpointError
from diffattn.files.io import write_json
from diffattn.lab.report.analysis.page import build_analysis_report, is_analysis_folder
from diffattn.lab.report.analysis.tables import lambda_rows, notes, summary_rows
from lab.report.made_up_analysis import make_analysis, write_analysis
from lab.report.page_reader import figures, outline_of


@pytest.fixture
def folder(tmp_path):
    write_analysis(tmp_path)
    return tmp_path


def test_a_page_shows_what_the_record_holds(folder):
    assert is_analysis_folder(folder)
    page = build_analysis_report(folder).read_text(encoding="utf-8")
    outline = outline_of(page)
    assert {"overview", "attention", "outliers", "lambda", "definitions"} <= set(outline.ids)
    assert all(not load.startswith("http") for load in outline.loads)
    drawn = figures(page)
    (sink,) = (drawn[name] for name in drawn if name == "layer-sink")
    assert [(trace["name"], trace["y"]) for trace in sink["data"]] == [
        ("one", [0.375, 0.375]), ("two", [0.375, 0.375]),
    ]  # fmt: skip
    negative = drawn["layer-negative"]["data"]
    assert [trace["name"] for trace in negative] == ["two"]
    mass = drawn["distance-mass"]["data"]
    assert [trace["name"] for trace in mass] == ["one", "two", "uniform map"]
    assert mass[0]["x"] == ["first", "0", "1", "2–3"]  # beyond there is nothing
    assert {"lambda-layers", "lambda-log-2"} <= set(drawn)
    words = " ".join(outline.text)
    assert "“a⏎” to “<b>”" in words
    assert "layer 1, channel 3, text 0, position 0" in words
    assert "run has no weights." in words
    assert "2 more" in words  # of seven documents


def test_one_row_per_model():
    result = make_analysis()
    rows = summary_rows(result)
    assert [(row["model"], row["negative"], row["λ"]) for row in rows] == [
        ("one", "—", "—"), ("two", "0.375", "−0.10 to 0.40"),
    ]  # fmt: skip
    assert [row["model"] for row in lambda_rows(result)] == ["run"]
    assert notes(result) == ["run has no weights.", "two: Layer 0: λ is below 0."]


def test_other_tokens_are_said():
    result = make_analysis()
    other = replace(result.models[1], tokens={"lengths": [9], "sha256": "0"})
    changed = replace(result, models=[result.models[0], other])
    assert any("did not read the same tokens" in sentence for sentence in notes(changed))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v["models"].clear(), "at least 1 entries"),
        (lambda v: v.update(schema=2), "schema 2"),
    ],
)
def test_damaged_records_are_named(folder, change, message):
    value = json.loads((folder / "analysis.json").read_text(encoding="utf-8"))
    value.pop("checksum", None)
    change(value)
    write_json(folder / "analysis.json", value)
    with pytest.raises(CheckpointError, match=message) as error:
        build_analysis_report(folder)
    assert "analysis.json" in str(error.value)
