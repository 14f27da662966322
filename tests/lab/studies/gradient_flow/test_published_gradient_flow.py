"""The committed gradient-flow study: whole, clean, and its summary follows from its runs."""

from pathlib import Path

import pytest

from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.report.build import markdown_results
from diffattn.lab.studies.gradient_flow.reproduce import gradient_flow_study
from diffattn.lab.studies.gradient_flow.summary import gradient_flow_results
from lab.studies.published_study import (
    as_it_was_run,
    assert_records_only,
    clean_records,
    run_results,
)

ROOT = Path(__file__).parents[4]
STUDY = ROOT / "published" / "gradient_flow"


@pytest.fixture(scope="module")
def config():
    seeds = read_json(STUDY / "study.json")["seeds"]
    assert len(seeds) >= 3
    return as_it_was_run(gradient_flow_study("laptop", seeds=seeds), STUDY)


@pytest.fixture(scope="module")
def results(config):
    return run_results(config, STUDY)


def test_gradient_results_follow_from_the_runs(config, results, assert_same_statistics):
    rows = {
        name: read_jsonl(STUDY / "runs" / name / "gradients.jsonl", recorded=of["gradients"])
        for name, of in results.items()
    }
    committed = read_json(STUDY / "results.json")
    recomputed = gradient_flow_results(config, results, rows)
    assert assert_same_statistics(recomputed, committed) > len(committed["ratios"])


def test_every_gradient_run_is_whole_and_from_one_clean_commit(config, results):
    records = clean_records(config.members(), STUDY)
    assert len({record.commit for record in records}) == 1
    for record in records:
        assert record.config["gradient_steps"] == list(config.steps)


def test_the_printed_gradient_table_is_what_the_records_generate():
    """After a new study: ``diffattn report published/gradient_flow --markdown``."""
    assert markdown_results(STUDY) in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_gradient_records_only():
    """Weights stay out: the repository carries these files."""
    assert_records_only(STUDY, 12_000_000)
