"""The committed study: whole, clean, and its summary follows from its runs."""

from pathlib import Path

import pytest

from diffattn.records.io import read_json, read_jsonl
from diffattn.records.run import RunRecord
from diffattn.report.study.files import read_study
from diffattn.report.study.published import ALL_RECORDS, PUBLISHED, read_published, study_summary
from diffattn.report.study.summary import differences, variants_of
from diffattn.studies.text.comparison import Sweep, best_rates
from diffattn.studies.text.reproduce import comparison
from diffattn.studies.text.summary import study_results
from studies.published_study import as_it_was_run, assert_records_only

STUDY = Path(__file__).parents[3] / "published" / "text"


@pytest.fixture(scope="module")
def study():
    return read_json(STUDY / "study.json")


@pytest.fixture(scope="module")
def config(study):
    # The recipe had more steps when the records of laptop scale were made.
    as_then = {"laptop": ["train.num_steps=500"]}.get(study["scale"], [])
    config = comparison(study["scale"], seeds=study["seeds"], settings=as_then)
    return as_it_was_run(config, STUDY)


@pytest.fixture(scope="module")
def sweeps():
    variants = read_json(STUDY / "results.json")["rates"]["variants"]
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
def recomputed(config, sweeps):
    return study_results(config, sweeps, read_json(STUDY / "counts.json")["models"], STUDY)


def test_results_follow_from_the_runs(recomputed, assert_same_statistics):
    committed = read_json(STUDY / "results.json")
    intervals = len(committed["differences"])
    assert assert_same_statistics(recomputed, committed) > 2 * intervals > 0


def test_the_printed_intervals_follow_from_the_runs(recomputed):
    """Those of the table, which stands in the README or a page of ``docs``."""
    root = STUDY.parents[1]
    pages = [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]
    printed = "".join(page.read_text(encoding="utf-8") for page in pages).replace("−", "-")
    assert recomputed["verdict"]["sentence"].replace("−", "-") in " ".join(printed.split())
    for row in recomputed["differences"]:
        about = (row["baseline"], row["at"], row["metric"])
        if about == ("softmax", "best", "validation_loss"):
            cells = f"| {row['mean']:+.4f} | {row['low']:+.4f} to {row['high']:+.4f} | "
            assert cells in printed, row["variant"]


def test_every_run_is_whole_and_from_a_clean_commit(config, sweeps):
    for member in config.trials(best_rates(config, sweeps)):
        record = RunRecord.read(STUDY / "runs" / member.config.name)
        assert record.commit
        assert record.dirty is False
        assert record.config["model"] == member.config.model.settings()
        rows = read_jsonl(STUDY / "runs" / member.config.name / "metrics.jsonl")
        steps = [row["step"] for row in rows if "validation_loss" in row]
        assert steps[0] == 0
        assert steps[-1] == member.config.train.num_steps


def test_members_share_their_data(config, sweeps):
    facts = [
        RunRecord.read(STUDY / "runs" / member.config.name).config["data"]
        for member in config.trials(best_rates(config, sweeps))
    ]
    assert all(data == facts[0] for data in facts)


def test_records_only():
    """Weights and tokens stay out: the repository carries these files."""
    assert_records_only(STUDY, 5_000_000)


def test_the_package_carries_its_summary():
    """After a new study: ``python -m diffattn.report.study.published published/text``."""
    whole = read_study(STUDY)
    carried = read_published(PUBLISHED)
    assert (Path(__file__).parents[3] / ALL_RECORDS).samefile(STUDY)
    assert carried is not None
    assert read_json(PUBLISHED) == study_summary(STUDY)
    assert PUBLISHED.stat().st_size < 150_000
    assert differences(whole) == differences(carried)
    for name, variant in variants_of(whole).items():
        assert variants_of(carried)[name].best.loss == variant.best.loss
