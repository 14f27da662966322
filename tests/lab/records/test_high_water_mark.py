"""The high-water mark of this process, and setting it back."""

import subprocess
import sys

import pytest

from diffattn.lab.records import memory

_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the mark is Linux's")
_SIZE = 200 * 2**20


def in_a_process(code):
    """Bytes that the code prints: in a process of its own, as the mark is of the whole process."""
    start = "from diffattn.lab.records.memory import *\n"
    printed = subprocess.check_output([sys.executable, "-c", start + code], text=True)
    return [int(line) for line in printed.split()]


@_LINUX
def test_what_was_held_before_is_forgotten():
    before, after, again = in_a_process(
        f"big = bytearray({_SIZE}); print(highest())\n"
        "del big; give_back(); reset_highest(); print(highest())\n"
        f"big = bytearray({_SIZE} // 2); print(highest())"
    )
    assert before > _SIZE
    assert after < before - 0.9 * _SIZE
    assert again == pytest.approx(after + _SIZE / 2, rel=0.1)


def test_without_its_files_the_mark_is_of_the_process_so_far(monkeypatch, tmp_path):
    expected = memory.highest()
    monkeypatch.setattr(memory, "_CLEAR", tmp_path / "none" / "clear_refs")
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "none")
    assert memory.reset_highest() is False
    assert memory.highest() > 0.5 * expected
