"""The committed stability study: whole, clean, and its summary follows from its runs."""

from pathlib import Path

import pytest

from diffattn.records.io import read_json, read_jsonl
from diffattn.records.run import RunRecord
from diffattn.report.build import markdown_results
from diffattn.studies.stability.reproduce import stability_study
from diffattn.studies.stability.summary import AGAINST_FLOOR, METRICS, PAIRS, stability_results
from diffattn.studies.variants import FLOOR

ROOT = Path(__file__).parents[3]
STUDY = ROOT / "published" / "stability"


@pytest.fixture(scope="module")
def config():
    """The recipe, as it was run: if the recipe moves on, the study must be run again."""
    config, study = stability_study("study"), read_json(STUDY / "study.json")
    assert {key: study[key] for key in config.resolved()} == config.resolved()
    return config


@pytest.fixture(scope="module")
def results(config):
    names = [member.config.name for member in config.members()]
    return {name: read_json(STUDY / "runs" / name / "results.json") for name in names}


def test_results_follow_from_the_runs(config, results, assert_same_statistics):
    rows = {
        name: read_jsonl(STUDY / "runs" / name / "metrics.jsonl", recorded=of["metrics"])
        for name, of in results.items()
    }
    committed = read_json(STUDY / "results.json")
    recomputed = stability_results(config, results, rows)
    rates = len(config.learning_rates)
    measures = len(PAIRS) * (len(METRICS) * (rates + 1) + 1)  # sensitivity is over all rates
    measures += len(AGAINST_FLOOR) * rates
    assert len(committed["differences"]) == measures
    assert assert_same_statistics(recomputed, committed) > measures


def test_every_run_is_whole_and_from_one_clean_commit(config, results):
    assert {path.name for path in (STUDY / "runs").iterdir()} == set(results)
    records = [RunRecord.read(STUDY / "runs" / name) for name in results]
    assert {record.dirty for record in records} == {False}
    floor = {record.commit for record in records if record.name.startswith(f"{FLOOR}-")}
    assert len({record.commit for record in records} - floor) == 1
    assert len(floor) == 1  # added after the others had been seen
    for member, record in zip(config.members(), records, strict=True):
        assert record.config["model"] == member.config.model.settings()
        train = member.config.train
        assert results[member.config.name]["tokens"] == train.num_steps * train.batch_tokens


def test_the_printed_table_is_what_the_records_generate():
    """After a new study: ``diffattn report published/stability --markdown``."""
    assert markdown_results(STUDY) in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_records_only():
    """Weights stay out: the repository carries these files."""
    files = [path for path in STUDY.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".jsonl"}
    assert sum(path.stat().st_size for path in files) < 8_000_000
