"""The committed stability study: whole, clean, and its summary follows from its runs."""

from pathlib import Path

import pytest

from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.report.build import markdown_results
from diffattn.lab.studies.stability.reproduce import stability_study
from diffattn.lab.studies.stability.summary import AGAINST_FLOORS, METRICS, PAIRS, stability_results
from lab.studies.published_study import (
    as_it_was_run,
    assert_records_only,
    clean_records,
    run_results,
)

ROOT = Path(__file__).parents[4]
STUDY = ROOT / "published" / "stability"


@pytest.fixture(scope="module")
def config():
    return as_it_was_run(stability_study("study"), STUDY)


@pytest.fixture(scope="module")
def results(config):
    return run_results(config, STUDY)


def test_results_follow_from_the_runs(config, results, assert_same_statistics):
    rows = {
        name: read_jsonl(STUDY / "runs" / name / "metrics.jsonl", recorded=of["metrics"])
        for name, of in results.items()
    }
    committed = read_json(STUDY / "results.json")
    recomputed = stability_results(config, results, rows)
    rates = len(config.learning_rates)
    measures = len(PAIRS) * (len(METRICS) * (rates + 1) + 1)  # sensitivity is over all rates
    measures += len([pair for pair in AGAINST_FLOORS if set(pair) <= set(config.types)]) * rates
    assert len(committed["differences"]) == measures
    assert assert_same_statistics(recomputed, committed) > measures


def test_every_run_is_whole_and_from_one_clean_commit(config, results):
    records = clean_records(config.members(), STUDY)
    assert len({record.commit for record in records}) == 1
    for member in config.members():
        train = member.config.train
        assert results[member.config.name]["tokens"] == train.num_steps * train.batch_tokens


def test_the_printed_table_is_what_the_records_generate():
    """After a new study: ``diffattn report published/stability --markdown``."""
    assert markdown_results(STUDY) in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_records_only():
    """Weights stay out: the repository carries these files."""
    assert_records_only(STUDY, 20_000_000)
