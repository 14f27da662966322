"""Committed studies of rows: whole, clean, and their summaries follow from their runs."""

from pathlib import Path

import pytest

from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.report.build import markdown_results
from diffattn.lab.report.study.files import read_study
from diffattn.lab.studies.text.reproduce import comparison
from diffattn.lab.studies.text.summary import study_results
from lab.studies.published_study import as_it_was_run, assert_records_only, clean_records

ROOT = Path(__file__).parents[4]
pytestmark = pytest.mark.parametrize("kind", ["ablations", "rank"])


def folder(kind):
    return ROOT / "published" / kind


def config_of(kind):
    study = read_json(folder(kind) / "study.json")
    assert study["scale"] == "study"
    return as_it_was_run(comparison("study", kind=kind, seeds=study["seeds"]), folder(kind))


def test_results_follow_from_the_runs(kind, assert_same_statistics):
    config, study = config_of(kind), folder(kind)
    committed = read_json(study / "results.json")
    counts = read_json(study / "counts.json")["models"]
    computed = study_results(config, {}, counts, study)
    assert assert_same_statistics(computed, committed) > 2 * len(committed["rows"]) > 0
    assert read_study(study).gaps == ()


def test_every_run_is_whole_and_from_a_clean_commit(kind):
    config, study = config_of(kind), folder(kind)
    members = config.trials(config.base_rates())
    assert {path.name for path in (study / "runs").iterdir()} == {m.config.name for m in members}
    records = clean_records(members, study)
    assert all(record.config["data"] == records[0].config["data"] for record in records)
    for member in members:
        rows = read_jsonl(study / "runs" / member.config.name / "metrics.jsonl")
        steps = [row["step"] for row in rows if "validation_loss" in row]
        assert (steps[0], steps[-1]) == (0, member.config.train.num_steps)


def test_runs_of_the_study_of_types_are_the_same(kind):
    """Copied, so that a type has one number in both."""
    types = ROOT / "published" / "text"
    both = {path.name for path in (folder(kind) / "runs").iterdir()}
    both &= {path.name for path in (types / "runs").iterdir()}
    members = {"softmax", "diff", "none"}
    assert members <= {name.partition("-seed")[0] for name in both}
    for name in both:
        for file in ("metrics.jsonl", "results.json"):
            at = Path("runs") / name / file
            assert (folder(kind) / at).read_bytes() == (types / at).read_bytes()


def test_the_printed_table_is_what_the_records_generate(kind):
    """After a new study: ``diffattn report published/KIND --markdown``."""
    printed = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert markdown_results(folder(kind)) in printed


def test_records_only(kind):
    """Weights and tokens stay out: the repository carries these files."""
    assert_records_only(folder(kind), 5_000_000)
