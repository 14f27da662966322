"""The committed study: whole, clean, and its summary follows from its runs."""

from pathlib import Path

import pytest

from diffattn.records.io import read_json, read_jsonl
from diffattn.records.run import RunRecord
from diffattn.report.study.files import read_study
from diffattn.report.study.published import ALL_RECORDS, PUBLISHED, read_published, study_summary
from diffattn.report.study.summary import differences, variants_of
from diffattn.studies.text.reproduce import comparison
from diffattn.studies.text.summary import comparison_results

STUDY = Path(__file__).parents[3] / "published" / "text"


@pytest.fixture(scope="module")
def study():
    return read_json(STUDY / "study.json")


@pytest.fixture(scope="module")
def config(study):
    """The recipe, as it was run: if the recipe moves on, the study must be run again."""
    config = comparison("study", seeds=study["seeds"])
    assert config.resolved()["config"] == study["config"]
    return config


@pytest.fixture(scope="module")
def recomputed(config):
    names = [member.config.name for member in config.members()]
    results = {name: read_json(STUDY / "runs" / name / "results.json") for name in names}
    return comparison_results(config, results)


def test_results_follow_from_the_runs(config, recomputed, assert_same_statistics):
    compared = assert_same_statistics(recomputed, read_json(STUDY / "results.json"))
    assert compared == 2 * len(config.types) + 2 * (len(config.types) - 1)


def test_the_printed_intervals_follow_from_the_runs(recomputed):
    """Those of the table, which stands in the README or a page of ``docs``."""
    root = STUDY.parents[1]
    pages = [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]
    printed = "".join(page.read_text(encoding="utf-8") for page in pages).replace("−", "-")
    for name, entry in recomputed["types"].items():
        loss = entry["validation_loss"]
        cells = f"| {loss['mean']:.4f} | {loss['low']:.4f} to {loss['high']:.4f} | "
        if name == "softmax":
            cells += "— | — | baseline"
        else:
            (row,) = (row for row in recomputed["differences"] if row["type"] == name)
            cells += f"{row['mean']:+.4f} | {row['low']:+.4f} to {row['high']:+.4f} | "
        assert cells in printed, name


def test_every_run_is_whole_and_from_a_clean_commit(config):
    for member in config.members():
        record = RunRecord.read(STUDY / "runs" / member.config.name)
        assert record.commit
        assert record.dirty is False
        assert record.config["model"] == member.config.model.settings()
        rows = read_jsonl(STUDY / "runs" / member.config.name / "metrics.jsonl")
        steps = [row["step"] for row in rows if "validation_loss" in row]
        assert steps[0] == 0
        assert steps[-1] == member.config.train.num_steps


def test_members_share_their_data(config):
    facts = [
        RunRecord.read(STUDY / "runs" / member.config.name).config["data"]
        for member in config.members()
    ]
    assert all(data == facts[0] for data in facts)


def test_records_only():
    """Weights and tokens stay out: the repository carries these files."""
    files = [path for path in STUDY.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".jsonl"}
    assert sum(path.stat().st_size for path in files) < 2_000_000


def test_the_package_carries_its_summary():
    """After a new study: ``python -m diffattn.report.study.published published/text``."""
    whole = read_study(STUDY)
    carried = read_published(PUBLISHED)
    assert (Path(__file__).parents[3] / ALL_RECORDS).samefile(STUDY)
    if whole.foreign_protocol:  # of version 1, which no page shows
        assert carried is None
        return
    assert carried is not None
    assert read_json(PUBLISHED) == study_summary(STUDY)
    assert PUBLISHED.stat().st_size < 100_000
    assert differences(whole) == differences(carried)
    for name, variant in variants_of(whole).items():
        assert variants_of(carried)[name].best.loss == variant.best.loss
