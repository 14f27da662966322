"""Rows of the starts of a run."""

import os

from diffattn.lab.records.run import LAUNCHES, append_launch, read_launches


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
