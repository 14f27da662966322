"""The committed studies of types: whole, clean, and their summaries follow from their runs."""

from pathlib import Path

import pytest

from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.records.run import RunRecord
from diffattn.lab.report.study.files import read_study
from diffattn.lab.report.study.published import (
    ALL_RECORDS,
    PUBLISHED,
    read_published,
    study_summary,
)
from diffattn.lab.report.study.summary import differences, variants_of
from diffattn.lab.studies.text.comparison import Sweep, best_rates
from diffattn.lab.studies.text.reproduce import comparison
from diffattn.lab.studies.text.summary import study_results
from lab.studies.published_study import as_it_was_run, assert_records_only

ROOT = Path(__file__).parents[4]
AS_THEN = {"text": [], "laptop": ["train.evaluation_tokens=16384"]}
"""Folder to what its recipe has changed since: evaluations during training, no loss of a table."""


@pytest.fixture(scope="module", params=AS_THEN)
def folder(request):
    return ROOT / "published" / request.param


@pytest.fixture(scope="module")
def config(folder):
    study = read_json(folder / "study.json")
    settings = AS_THEN[folder.name]
    return as_it_was_run(
        comparison(study["scale"], seeds=study["seeds"], settings=settings), folder
    )


@pytest.fixture(scope="module")
def sweeps(folder):
    variants = read_json(folder / "results.json")["rates"]["variants"]
    return {
        name: Sweep(
            **{
                key: tuple((t["learning_rate"], t["validation_loss"]) for t in of.get(key, ()))
                for key in ("tried", "whole")
            }
        )
        for name, of in variants.items()
    }


@pytest.fixture(scope="module")
def recomputed(config, sweeps, folder):
    return study_results(config, sweeps, read_json(folder / "counts.json")["models"], folder)


def test_results_follow_from_the_runs(recomputed, folder, assert_same_statistics):
    committed = read_json(folder / "results.json")
    intervals = len(committed["differences"])
    assert assert_same_statistics(recomputed, committed) > 2 * intervals > 0


def test_the_printed_intervals_follow_from_the_runs(recomputed):
    """Those of the table, which stands in the README or a page of ``docs``."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    printed = "".join(page.read_text(encoding="utf-8") for page in pages).replace("−", "-")
    assert recomputed["verdict"]["sentence"].replace("−", "-") in " ".join(printed.split())
    for row in recomputed["differences"]:
        about = (row["baseline"], row["at"], row["metric"])
        if about == ("softmax", "best", "validation_loss"):
            cells = f"| {row['mean']:+.4f} | {row['low']:+.4f} to {row['high']:+.4f} | "
            assert cells in printed, row["variant"]


def test_every_run_is_whole_and_from_a_clean_commit(config, sweeps, folder):
    for member in config.trials(best_rates(config, sweeps)):
        record = RunRecord.read(folder / "runs" / member.config.name)
        assert record.commit
        assert record.dirty is False
        assert record.config["model"] == member.config.model.settings()
        rows = read_jsonl(folder / "runs" / member.config.name / "metrics.jsonl")
        steps = [row["step"] for row in rows if "validation_loss" in row]
        assert steps[0] == 0
        assert steps[-1] == member.config.train.num_steps


def test_members_share_their_data(config, sweeps, folder):
    facts = [
        RunRecord.read(folder / "runs" / member.config.name).config["data"]
        for member in config.trials(best_rates(config, sweeps))
    ]
    assert all(data == facts[0] for data in facts)


def test_records_only(folder):
    """Weights and tokens stay out: the repository carries these files."""
    assert_records_only(folder, 5_000_000)


def test_the_package_carries_its_summary():
    """After a new study: ``python -m diffattn.lab.report.study.published published/text``."""
    study = ROOT / ALL_RECORDS
    whole = read_study(study)
    carried = read_published(PUBLISHED)
    assert carried is not None
    assert read_json(PUBLISHED) == study_summary(study)
    assert PUBLISHED.stat().st_size < 150_000
    assert differences(whole) == differences(carried)
    for name, variant in variants_of(whole).items():
        assert variants_of(carried)[name].best.loss == variant.best.loss
