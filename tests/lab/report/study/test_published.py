"""A published study beside another: whole, as a summary, or of another protocol."""

import json

import pytest

from diffattn.errors import CheckpointError
from diffattn.files.io import append_jsonl
from diffattn.lab.records.launches import LAUNCHES
from diffattn.lab.report.build import build_report
from diffattn.lab.report.page.run_tables import cost_table, models_table
from diffattn.lab.report.page.wording import number
from diffattn.lab.report.study.files import read_study
from diffattn.lab.report.study.published import read_published, study_summary
from diffattn.lab.report.study.tables import verdict_table
from lab.report.made_up_study import ALL, TYPES, VERDICT
from lab.report.page_reader import SECTIONS, build, outline_of
from record_files import change_record, read_record, write_record

IN_A_SUMMARY = ["results", "models", "costs", "lambda"]


def test_published_study_has_its_own_provenance(make_study):
    published = make_study("published", scale="study", num_steps=500, num_layers=2)
    outline = outline_of(page := build(make_study(), published=published))
    here = [name.removeprefix("published-") for name in outline.ids if "published-" in name]
    expected = [name for name in SECTIONS if name not in ("rates", "matching")]
    assert [name for name in here if name in SECTIONS] == expected
    assert outline.ids.index("published") < outline.ids.index("provenance")
    assert "run on 2001-02-03 on Made-up processor at commit c0ffeec0ffee" in page
    assert page.count('<td data-label="Study">published</td>') == 3


def test_every_commit_and_processor_of_a_mixed_study_is_named(make_study):
    published = make_study("published", variants=("softmax", "diff"), seeds=(0, 1), num_steps=10)
    study, runs = make_study(), published / "runs"
    change_record(runs / "softmax-seed1" / "run.json", commit="decade" * 7)
    other = {"processor": "Another processor", "machine": "none"}
    change_record(runs / "diff-seed0" / "run.json", hardware=other)
    text = "on Made-up processor and Another processor at commits c0ffeec0ffee and decadedecade."
    assert f"run on 2001-02-03 {text} It has" in build(study, published=published)
    path = runs / "diff-seed1" / "run.json"
    write_record(path, read_record(path) | {"commit": None})
    text = "at commits c0ffeec0ffee, decadedecade and not recorded."
    assert text in build(study, published=published)


def test_a_run_that_went_on_at_another_commit_names_both(make_study, tmp_path):
    published = make_study("published", variants=("softmax", "diff"), seeds=(0, 1), num_steps=10)
    record = read_record(published / "runs" / "diff-seed0" / "run.json")
    for commit in (record["commit"], "be" * 20):
        append_jsonl(published / "runs" / "diff-seed0" / LAUNCHES, {"commit": commit})
    assert f", continued at {'be' * 20} (diff-seed0)" in build(published)
    path = tmp_path / "summary.json"
    write_record(path, study_summary(published))
    said = "at commits c0ffeec0ffee and bebebebebebe."
    study = make_study()
    for other in (published, path):
        assert said in build(study, published=other)


def test_a_summary_shows_its_numbers_and_no_gaps(make_study, tmp_path):
    folder = make_study(
        "published", scale="study", num_layers=2, variants=(*TYPES, "none", "softmax_half")
    )
    path = tmp_path / "summary.json"
    write_record(path, study_summary(folder))
    part = outline_of(page := build(make_study(), published=path))
    ids = [name.removeprefix("published-") for name in part.ids if "published-" in name]
    assert [name for name in ids if name in SECTIONS] == [*IN_A_SUMMARY, "provenance"]
    text = " ".join(" ".join(part.text).split())
    assert "are in published/text of the repository" in text
    assert page.count('class="gap"') == 1  # for readers without scripts
    assert "published-chart-differences" in part.ids
    shown = text[text.index("Published study", text.index("Published study") + 1) :]
    assert VERDICT["sentence"] in shown
    study = read_record(folder / "results.json")
    for entry in study["variants"].values():
        assert f"{entry['at']['best']['validation_loss']['mean']:.4f}" in shown
    for difference in study["differences"]:
        if difference["metric"] == "validation_loss":
            assert number(difference["mean"], signed=True) in shown
    for fact in (
        "912,768",
        "runs.jsonl.gz, row diff-seed0",
        "c0ffeec0ffee",
        "7,990",
    ):
        assert fact in shown


def test_a_summary_has_costs_and_no_rows_without_runs(make_study):
    folder = make_study(variants=("softmax", "diff", "softmax_half"))
    path = folder.with_name("summary.json")
    write_record(path, study_summary(folder))
    whole, summary = read_study(folder), read_published(path)
    for made in (models_table, cost_table):
        shown = made(summary).rows
        assert shown == made(whole).rows[:2]
        assert [row[0].text for row in shown] == ["Transformer (softmax)", "DIFF V1"]
    times = [row[5].text for row in cost_table(summary).rows]
    assert times[0] == "59.5 s"
    assert "— s" not in times


def test_a_summary_compares_no_more_than_its_folder(make_study):
    folder = make_study(variants=("softmax", "diff"))
    results = read_record(folder / "results.json")
    test = {"variant": "diff", "baseline": "softmax", "at": "best"}
    test |= {"p": 0.01, "p_holm": 0.02, "shown": True}
    for name, steps in (("softmax", [100] * 3), ("diff", [None] * 3)):
        results["variants"][name]["at"]["best"]["phase_steps"] = steps
    write_record(folder / "results.json", results | {"tests": [test]})
    path = folder.with_name("summary.json")
    write_record(path, study_summary(folder))
    whole, summary = (verdict_table(of) for of in (read_study(folder), read_published(path)))
    assert summary.rows == whole.rows
    words = " ".join(cell.text for row in summary.rows for cell in row)
    assert "not compared: one has passed the induction phase" in words


def test_a_summary_leaves_details_in_the_folder(make_study):
    folder = make_study(variants=ALL, sweep=True, num_steps=50)
    summary = study_summary(folder)
    whole = sum(path.stat().st_size for path in folder.rglob("*.json*"))
    assert len(json.dumps(summary)) < whole / 10
    assert {run["record"]["name"].rpartition("-")[0] for run in summary["runs"]} == {
        *TYPES,
        "none",
    }
    results = folder / "results.json"
    results.unlink()
    with pytest.raises(CheckpointError, match="results of a finished study"):
        study_summary(folder)


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 1}', '{"schema": 7}'])
def test_damaged_summary_is_refused(make_study, tmp_path, content):
    (tmp_path / "summary.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"summary\.json"):
        build_report(make_study(), published=tmp_path / "summary.json")


def test_protocol_versions_share_no_table(make_study):
    published = make_study("published")
    path = published / "results.json"
    value = read_record(path)
    value["protocol"]["version"] = 3
    write_record(path, value)
    page = build(make_study(), published=published)
    assert "so their numbers share no table" in page
    assert 'data-label="Study"' not in page


def test_results_of_another_schema_are_refused_by_name(make_study):
    published = make_study("published")
    change_record(published / "results.json", schema=1)
    for page in (lambda: build_report(published), lambda: build(make_study(), published=published)):
        with pytest.raises(CheckpointError, match=r"published/results\.json: schema must be 2"):
            page()
