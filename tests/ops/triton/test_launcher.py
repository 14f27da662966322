"""Launches that pass Triton's binder by start the form that it would have found."""

from pathlib import Path

import pytest

from .test_aot import fresh

pytest.importorskip("triton")

SCRIPT = str(Path(__file__).with_name("same_forms.py"))
COUNTS = """
import torch
from diffattn.lab.benchmark.host import record_launches, host_call, no_device

with no_device():
    for name in ("V1", "V2"):
        for with_backward in (False, True):
            call, _ = host_call(name, with_backward, "cpu")
            call()  # compiles
            with torch.profiler.profile() as profile:
                call()
            events = profile.key_averages()
            tensors = sum(e.count for e in events if e.key.startswith("aten::empty"))
            print(len(record_launches(call)), tensors)
"""


def test_the_form_is_the_one_that_triton_finds(tmp_path):
    done = fresh([SCRIPT], tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


def test_a_call_makes_no_more_launches_and_tensors_than_the_record_says(tmp_path):
    """docs/records/host_time.md."""
    done = fresh(["-c", COUNTS], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["1 3", "4 10", "1 3", "4 10", ""]
