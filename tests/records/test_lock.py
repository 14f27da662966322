"""Two processes never write into one folder."""

import subprocess
import sys

import pytest

from diffattn.errors import CheckpointError
from diffattn.records.lock import sole_writer

HOLD = """
import sys, time
from pathlib import Path
from diffattn.records.lock import sole_writer
with sole_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_held_folder_is_refused_until_its_holder_is_gone(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(CheckpointError, match="one process at a time"),
            sole_writer(tmp_path),
        ):
            pass
        other.kill()
    with sole_writer(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_other_folders_and_later_turns_are_free(tmp_path):
    (tmp_path / "other").mkdir()
    for _ in range(2):
        with sole_writer(tmp_path), sole_writer(tmp_path / "other"):
            pass
