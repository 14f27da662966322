"""Launches that pass Triton's binder by, and how many a call and a layer make.

docs/records/host_time.md has the numbers.
"""

import json
from pathlib import Path

import pytest

from .test_aot import fresh

pytest.importorskip("triton")

BY_CALLS = [[1, 3], [4, 10], [1, 3], [4, 10]]
"""Launches and tensors of V1 without and with its backward, and of V2."""
BY_FORMULAS = {
    "softmax": [1, 14, 1, 20], "diff": [1, 32, 3, 46], "diff_v2": [1, 17, 3, 25],
    "shared_diff": [1, 38, 3, 60],
}  # fmt: skip
"""Forward: of attention, of all else. Backward: likewise."""
BY_KERNELS = {
    "softmax": [1, 5, 1, 11], "diff": [1, 7, 3, 15], "diff_v2": [1, 7, 3, 15],
    "shared_diff": [1, 13, 3, 29],
}  # fmt: skip


def test_launches_are_those_of_triton_and_no_more_than_the_record_says(tmp_path):
    printed = fresh([str(Path(__file__).with_name("layer_launches.py"))], tmp_path)
    forms, *counted = map(json.loads, printed.splitlines())
    assert forms > 20
    assert counted == [BY_CALLS, BY_FORMULAS, BY_KERNELS]
