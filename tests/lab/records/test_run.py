"""A record says what ran; files of another kind, and folders of another run, are refused."""

import os
import shutil
import subprocess

import pytest

import diffattn
from diffattn.errors import CheckpointError
from diffattn.files.io import read_json, write_json
from diffattn.lab.records import run
from diffattn.lab.records.run import (
    LAUNCHES,
    RunRecord,
    append_launch,
    claim_run,
    config_hash,
    git_state,
    is_claimed,
    read_launches,
)

COMMIT = {f"GIT_{role}_NAME": "a" for role in ("AUTHOR", "COMMITTER")}
COMMIT |= {f"GIT_{role}_EMAIL": "a@b.c" for role in ("AUTHOR", "COMMITTER")}
COMMIT |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


def make_record(**changes):
    values = {"name": "diff-seed1", "config": {"train": {"lr": 1e-3, "λ": None}}, "seed": 1}
    return RunRecord(**values | changes)


def test_round_trip_is_exact(tmp_path):
    record = make_record(backends={"diff_attention": "composed"}, model={"parameters": 12})
    record.write(tmp_path)
    assert RunRecord.read(tmp_path) == record
    assert record.schema == 1
    assert record.versions["diffattn"] == diffattn.__version__
    assert set(record.versions) >= {"python", "torch", "transformers"}
    assert record.hardware["processor"]
    value = {"a": 1, "b": {"c": [1, 2], "d": None}}
    assert config_hash(value) == config_hash({"b": {"d": None, "c": [1, 2]}, "a": 1})
    assert config_hash(value) != config_hash({"a": 1, "b": {"c": [2, 1], "d": None}})


def test_missing_damaged_and_foreign_records_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"run\.json: file must exist"):
        RunRecord.read(tmp_path)
    path = tmp_path / "run.json"
    make_record().write(tmp_path)
    good = read_json(path)
    for value, message in (
        (good | {"schema": 2}, "schema must be 1, got 2"),
        ({"name": "x"}, "schema must be 1, got None"),
        (good | {"surprise": 1}, "must hold name, .* alone, got 'surprise' too"),
        ({k: v for k, v in good.items() if k != "seed"}, r"run\.json: must hold seed"),
        (good | {"versions": {"python": 3}}, r"run\.json: versions\.python must be text, got 3"),
    ):
        write_json(path, value)
        with pytest.raises(CheckpointError, match=message):
            RunRecord.read(tmp_path)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A git checkout with this package's module in it."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    for name, value in COMMIT.items():
        monkeypatch.setenv(name, value)
    module = tmp_path / "src" / "diffattn" / "lab" / "records" / "run.py"
    module.parent.mkdir(parents=True)
    shutil.copy(run.__file__, module)
    (tmp_path / "notes.txt").write_text("1")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(run, "__file__", str(module))
    return tmp_path


def test_git_state_of_a_checkout(checkout):
    command = ["git", "rev-parse", "HEAD"]
    head = subprocess.check_output(command, cwd=checkout, text=True).strip()
    assert git_state() == (head, False)
    (checkout / "runs").mkdir()  # results beside the sources change nothing
    (checkout / "runs" / "x.json").touch()
    assert git_state() == (head, False)
    new = checkout / "src" / "diffattn" / "new.py"
    new.touch()  # code that git does not know runs all the same
    assert git_state() == (head, True)
    new.unlink()
    (checkout / "notes.txt").write_text("2")
    assert git_state() == (head, True)


def test_git_state_outside_a_checkout(checkout, tmp_path_factory, monkeypatch):
    # Installed inside somebody else's checkout: their commit says nothing about us.
    for place in (tmp_path_factory.mktemp("installed"), checkout / ".venv"):
        module = place / "diffattn" / "lab" / "records" / "run.py"
        module.parent.mkdir(parents=True)
        shutil.copy(run.__file__, module)
        monkeypatch.setattr(run, "__file__", str(module))
        assert git_state() == (None, None)
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("no_git")))
    assert git_state() == (None, None)


def run_of(**config):
    return RunRecord(name="run", config=config, seed=config.pop("seed", 0))


def test_a_free_folder(tmp_path):
    assert not is_claimed(tmp_path / "new", "run.json", "a run")
    assert not is_claimed(tmp_path, "run.json", "a run")
    (tmp_path / "data").mkdir()
    (tmp_path / ".temporary").touch()
    assert not is_claimed(tmp_path, "run.json", "a run", besides="data")
    with pytest.raises(
        CheckpointError, match=r"must be empty or hold a run \(run.json\), got other"
    ):
        is_claimed(tmp_path, "run.json", "a run")
    (tmp_path / "run.json").touch()
    assert is_claimed(tmp_path, "run.json", "a run")


def test_the_same_run_goes_on_and_another_is_refused(tmp_path):
    record = run_of(model={"width": 8, "path": "here"}, items=[1, 2])
    claim_run(tmp_path / "a", record, "a run")
    written = (tmp_path / "a" / "run.json").read_bytes()
    claim_run(tmp_path / "a", record, "a run")
    moved = run_of(model={"width": 8, "path": "there"}, items=[1, 2])
    claim_run(tmp_path / "a", moved, "a run", free=["model.path"])
    for other, fault in (
        (moved, "model.path 'there' where 'here' is recorded"),
        # Hashes are named last: they follow from settings that are easier to read.
        (run_of(model={"weights": "b", "width": 9}, items=[1, 2]), "got model.width 9 where 8"),
        (run_of(model={"path": "here"}, items=[1, 2]), "model.width None where 8"),
        (run_of(model={"width": 8, "path": "here"}, items=[2]), r"items \[2\] where \[1, 2\]"),
        (run_of(model={"width": 8, "path": "here"}, items=[1, 2], seed=3), "seed 3 where 0"),
    ):
        with pytest.raises(CheckpointError, match=fault):
            claim_run(tmp_path / "a", other, "a run")
    assert (tmp_path / "a" / "run.json").read_bytes() == written


def test_a_row_lies_on_the_disk_before_the_run_goes_on(tmp_path, monkeypatch):
    """The results of a finished run do: a loss of power must not halve what is read beside them."""
    synced, real = {}, os.fsync

    def fsync(handle):
        real(handle)
        synced[os.fstat(handle).st_ino] = os.fstat(handle).st_size

    monkeypatch.setattr(os, "fsync", fsync)
    path = tmp_path / LAUNCHES
    for step in (0, 4):
        append_launch(tmp_path, step=step, device="cpu", threads=1, engine={})
        assert synced[path.stat().st_ino] == path.stat().st_size
    assert [row["step"] for row in read_launches(tmp_path)] == [0, 4]
