"""Runs of one study that are runs of another, too: copied as they are, or trained."""

import shutil

import pytest

from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.io import read_json
from diffattn.lab.catalog.models import STUDY_MODELS, SWEPT
from diffattn.lab.report.study.files import read_study
from diffattn.lab.studies import reproduce as module
from diffattn.lab.studies import workers
from diffattn.lab.studies.reproduce import reproduce
from diffattn.lab.studies.text.comparison import comparison
from record_files import change_record, contents

SHARED = [f"{name}-seed0" for name in STUDY_MODELS["ablations"] if name in SWEPT]


def planned_runs(settings, kind="ablations"):
    config = comparison("smoke", kind=kind, settings=settings)
    return config.trials(config.base_rates())


@pytest.fixture
def facts(study):
    data = read_json(study / "study.json")["data"]
    names = ("corpus_hash", "tokenizer_hash", "train_hash", "validation_hash")
    counts = ("train_tokens", "validation_tokens", "validation_bytes")
    return {name: data[name] for name in (*names, *counts)}


def test_a_study_trains_only_what_another_has_not(study, settings, tmp_path, monkeypatch):
    trained, lines = [], []

    def note(waiting, data, folder, **kwargs):
        trained.extend(run.config.name for run in waiting)
        raise KeyboardInterrupt  # more is not asked here

    monkeypatch.setattr(workers, "train_runs", note)
    out = tmp_path / "ablations"
    options = {"settings": settings, "reuse": [study], "on_message": lines.append}
    for _ in range(2):  # the second call finds the copies and neither copies nor trains them
        with pytest.raises(KeyboardInterrupt):
            reproduce("smoke", kind="ablations", out=out, **options)
    needed = [run.config.name for run in planned_runs(settings)]
    assert trained == 2 * [name for name in needed if name not in SHARED]
    assert [line for line in lines if line.startswith("comparison")] == [
        f"comparison: copied {len(SHARED)} of {len(needed)} models",
        *2 * [f"comparison: training {len(needed) - len(SHARED)} of {len(needed)} models"],
    ]
    for name in SHARED:
        assert contents(out / "runs" / name) == contents(study / "runs" / name) != {}


def cut_off_copy(study):
    """What a kill in the middle of a copy leaves."""
    folder = study / "runs" / ".none-seed0.copying"
    folder.mkdir()
    for name in ("run.json", "results.json"):
        (folder / name).write_text("{", encoding="utf-8")


def test_a_copy_goes_by_its_name_here(study, copied, settings, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_Worker", None)  # no process is started
    here, there, out = "diff-seed0", "diff-common-seed77", tmp_path / "out"
    source = (copied / "runs" / here).rename(copied / "runs" / there)
    change_record(source / "run.json", name=there)
    for name in ("results.json", "costs.json"):
        change_record(source / name, run=there)
    shutil.copytree(study / "data", out / "data")
    cut_off_copy(copied)
    page = reproduce("smoke", settings=settings, out=out, reuse=[copied], on_message=[].append)
    assert read_json(out / "runs" / here / "run.json")["name"] == there
    assert read_json(out / "costs.json")["runs"][here]["run"] == here
    for name in ("results.json", "maps.json"):
        assert (out / name).read_bytes() == (study / name).read_bytes()
    cut_off_copy(out)
    read = read_study(out)
    assert read.gaps == ()
    (run,) = read.runs_of("diff")
    assert (run.name, run.record.name) == (here, there)
    text = page.read_text(encoding="utf-8")
    assert text.count(f"{here}, recorded as {there}") == text.count(there) == 1


@pytest.mark.parametrize("changed", ["model.hidden_size=32", "train.learning_rate=0.01", ""])
def test_other_settings_or_tokens_are_other_runs(study, settings, facts, tmp_path, changed):
    settings = (*settings, changed) if changed else settings
    if not changed:
        facts["train_hash"] = "0" * 64
    assert module.reuse_runs(planned_runs(settings), facts, tmp_path / "runs", [study]) == []
    assert not (tmp_path / "runs").exists()


def test_what_is_unfinished_here_or_there_is_left_alone(copied, settings, facts, tmp_path):
    runs = tmp_path / "other" / "runs"
    (runs / SHARED[0]).mkdir(parents=True)
    (copied / "runs" / SHARED[1] / "results.json").unlink()
    (copied / "runs" / SHARED[2] / "checkpoints").mkdir()
    assert module.reuse_runs(planned_runs(settings), facts, runs, [copied]) == SHARED[3:]
    assert list((runs / SHARED[0]).iterdir()) == []


def test_committed_records_without_weights_are_reused(copied, settings, facts, tmp_path):
    for name in SHARED:
        shutil.rmtree(copied / "runs" / name / "model")
    assert module.reuse_runs(planned_runs(settings), facts, tmp_path / "runs", [copied]) == SHARED


@pytest.mark.parametrize("file", ["metrics.jsonl", "model/config.json"])
def test_a_damaged_run_is_refused_and_nothing_of_it_copied(copied, settings, facts, tmp_path, file):
    (copied / "runs" / SHARED[0] / file).write_text("{}\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=SHARED[0]):
        module.reuse_runs(planned_runs(settings), facts, tmp_path / "runs", [copied])
    assert not (tmp_path / "runs" / SHARED[0]).exists()


@pytest.mark.parametrize("begins", [True, False])
def test_a_study_that_has_trained_nothing_is_refused_first(begins, study, settings, tmp_path):
    out, begun = tmp_path / "out", tmp_path / "begun"
    begun.mkdir()
    if begins:
        shutil.copy(study / "study.json", begun)
    message = r"studies \(study\.json, and runs/ or runs\.jsonl\.gz\), got .*/begun\.$"
    with pytest.raises(ConfigError, match=message):
        reproduce("smoke", kind="rank", settings=settings, out=out, reuse=[study, begun])
    assert not out.exists()
