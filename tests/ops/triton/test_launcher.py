"""Launches that pass Triton's binder by, and how many a call and a layer make.

docs/records/host_time.md has the numbers.
"""

import json
from pathlib import Path

import pytest

from .test_aot import fresh

pytest.importorskip("triton")

HERE = Path(__file__).parent
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
BY_FORMULAS = {
    "softmax": [1, 14, 1, 20], "diff": [1, 32, 3, 46], "diff_v2": [1, 17, 3, 25],
    "shared_diff": [1, 38, 3, 60],
}  # fmt: skip
"""Forward: of attention, of all else. Backward: likewise."""
BY_KERNELS = {
    "softmax": [1, 5, 1, 11], "diff": [1, 7, 3, 15], "diff_v2": [1, 7, 3, 15],
    "shared_diff": [1, 13, 3, 29],
}  # fmt: skip


def test_the_form_is_the_one_that_triton_finds(tmp_path):
    assert int(fresh([str(HERE / "same_forms.py")], tmp_path)) > 20


def test_a_call_makes_no_more_launches_and_tensors_than_the_record_says(tmp_path):
    printed = fresh(["-c", COUNTS], tmp_path)
    assert printed.split("\n") == ["1 3", "4 10", "1 3", "4 10", ""]


def test_a_layer_makes_no_more_launches_than_the_record_says(tmp_path):
    printed = fresh([str(HERE / "layer_launches.py")], tmp_path)
    assert [json.loads(line) for line in printed.splitlines()] == [BY_FORMULAS, BY_KERNELS]
