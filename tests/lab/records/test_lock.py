"""Two processes never write into one folder."""

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys

import pytest

from diffattn.errors import CheckpointError
from diffattn.lab.records.lock import sole_writer

HOLD = """
import sys, time
from pathlib import Path
from diffattn.lab.records.lock import sole_writer
with sole_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_held_folder_is_refused_until_its_holder_is_gone(tmp_path):
    command = [sys.executable, "-c", HOLD, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match="one process at a time"), sole_writer(tmp_path):
            pass
        other.kill()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    with sole_writer(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_is_locked_is_a_file_open_for_writing(tmp_path, monkeypatch):
    """Of others no other machine hears on a network file system."""
    locked = []
    monkeypatch.setattr(fcntl, "flock", lambda handle, how: locked.append(handle))
    with sole_writer(tmp_path):
        assert stat.S_ISREG(os.fstat(locked[0]).st_mode)
        assert fcntl.fcntl(locked[0], fcntl.F_GETFL) & os.O_RDWR


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch):
    def flock(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    message = r"has no locks \(No locks available\)"
    with pytest.warns(UserWarning, match=message), sole_writer(tmp_path / "new"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_hold_survives_that_its_folder_is_removed(tmp_path):
    with sole_writer(tmp_path / "gone"):
        shutil.rmtree(tmp_path / "gone")
    assert list(tmp_path.iterdir()) == []
