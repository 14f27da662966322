"""The committed scaling study: whole, clean, and its fits follow from its runs."""

from pathlib import Path

import pytest

from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.report.build import markdown_results
from diffattn.lab.report.scaling.files import read_scaling_study
from diffattn.lab.studies.scaling.reproduce import scaling_study
from diffattn.lab.studies.scaling.summary import scaling_results
from lab.studies.published_study import (
    as_it_was_run,
    assert_records_only,
    clean_records,
    run_results,
)

ROOT = Path(__file__).parents[4]
STUDY = ROOT / "published" / "scaling"
FITTED = frozenset({"mean", "r2", "max_error", "other_x", "loss", "ratio"})


@pytest.fixture(scope="module")
def config():
    return as_it_was_run(scaling_study("laptop"), STUDY)


@pytest.fixture(scope="module")
def results(config):
    return run_results(config, STUDY)


def test_results_follow_from_the_runs(config, results, assert_same_statistics):
    losses = {name: of["validation_loss"] for name, of in results.items()}
    committed = read_json(STUDY / "results.json")
    compared = assert_same_statistics(
        scaling_results(config, losses), committed, fitted=FITTED, rel=1e-4
    )
    points = len(config.types) * (len(config.widths) + len(config.budgets))
    assert compared > points
    assert read_scaling_study(STUDY).gaps == ()


def test_every_run_is_whole_and_from_one_clean_commit(config, results):
    assert len({record.commit for record in clean_records(config.members(), STUDY)}) == 1
    for member in config.members():
        name, train = member.config.name, member.config.train
        assert results[name]["tokens"] == train.num_steps * train.batch_tokens
        path = STUDY / "runs" / name / "metrics.jsonl"
        rows = read_jsonl(path, recorded=results[name]["metrics"])
        measured = [row["step"] for row in rows if "validation_loss" in row]
        assert (measured[0], measured[-1]) == (0, train.num_steps)


def test_the_printed_table_is_what_the_records_generate():
    """After a new study: ``diffattn report published/scaling --markdown``."""
    assert markdown_results(STUDY) in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_records_only():
    """Weights stay out: the repository carries these files."""
    assert_records_only(STUDY, 6_000_000)
