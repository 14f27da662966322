"""The committed stability study: whole, clean, and its summary follows from its runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from diffattn.models.attention_types import ATTENTION_TYPES
from diffattn.records.io import read_json, read_jsonl
from diffattn.report.build import markdown_results
from diffattn.studies.stability.config import WITH_NORM
from diffattn.studies.stability.reproduce import stability_study
from diffattn.studies.stability.summary import AGAINST_FLOORS, METRICS, PAIRS, stability_results
from diffattn.studies.variants import FLOOR, WITHOUT_NORM
from studies.published_study import as_it_was_run, assert_records_only, clean_records, run_results

ROOT = Path(__file__).parents[3]
STUDY = ROOT / "published" / "stability"


AS_THEN = (
    "train.num_steps=200", "train.evaluate_every=200", "train.warmup_steps=20",
    "train.learning_rate=2e-3", "train.final_learning_rate=2e-4",
)  # fmt: skip
TYPES = (*ATTENTION_TYPES, WITHOUT_NORM, WITH_NORM, FLOOR)


@pytest.fixture(scope="module")
def config():
    """The study of 120 and 20 runs, made before the recipe moved on: it has one floor of the two.

    It shows nothing of attention, and stays until the recipe of today has been run.
    """
    then = stability_study("study", settings=AS_THEN)
    then = replace(then, learning_rates=(2e-3, 8e-3, 3.2e-2, 0.128), types=TYPES)
    return as_it_was_run(then, STUDY)


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
    assert not any(committed["attending"].values())
    assert committed["verdict"]["informative"] is False


def test_every_run_is_whole_and_from_one_clean_commit(config, results):
    records = clean_records(config.members(), STUDY)
    floor = {record.commit for record in records if record.name.startswith(f"{FLOOR}-")}
    assert len({record.commit for record in records} - floor) == 1
    assert len(floor) == 1  # added after the others had been seen
    for member in config.members():
        train = member.config.train
        assert results[member.config.name]["tokens"] == train.num_steps * train.batch_tokens


def test_the_printed_table_is_what_the_records_generate():
    """After a new study: ``diffattn report published/stability --markdown``."""
    assert markdown_results(STUDY) in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_records_only():
    """Weights stay out: the repository carries these files."""
    assert_records_only(STUDY, 20_000_000)
