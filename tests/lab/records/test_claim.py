"""A folder is free, holds the work asked for, or is left alone."""

import pytest

from diffattn.errors import CheckpointError
from diffattn.lab.records.run import RunRecord, claim_run, is_claimed


def run(**config):
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
    record = run(model={"width": 8, "path": "here"}, items=[1, 2])
    claim_run(tmp_path / "a", record, "a run")
    written = (tmp_path / "a" / "run.json").read_bytes()
    claim_run(tmp_path / "a", record, "a run")
    moved = run(model={"width": 8, "path": "there"}, items=[1, 2])
    claim_run(tmp_path / "a", moved, "a run", free=["model.path"])
    for other, fault in (
        (moved, "model.path 'there' where 'here' is recorded"),
        (run(model={"width": 9, "path": "here"}, items=[1, 2]), "model.width 9 where 8"),
        (run(model={"path": "here"}, items=[1, 2]), "model.width None where 8"),
        (run(model={"width": 8, "path": "here"}, items=[2]), r"items \[2\] where \[1, 2\]"),
        (run(model={"width": 8, "path": "here"}, items=[1, 2], seed=3), "seed 3 where 0"),
    ):
        with pytest.raises(CheckpointError, match=fault):
            claim_run(tmp_path / "a", other, "a run")
    assert (tmp_path / "a" / "run.json").read_bytes() == written


def test_hashes_are_named_last(tmp_path):
    claim_run(tmp_path, run(model={"weights": "aa", "width": 8}), "a run")
    with pytest.raises(CheckpointError, match=r"got model\.width 9"):
        claim_run(tmp_path, run(model={"weights": "bb", "width": 9}), "a run")
