"""The launches of one attention layer, in both directions; docs/records/host_time.md has them."""

import json
from pathlib import Path

import pytest

from .test_aot import fresh

pytest.importorskip("triton")

BY_FORMULAS = {
    "softmax": [1, 14, 1, 20], "diff": [1, 32, 3, 46], "diff_v2": [1, 17, 3, 25],
    "shared_diff": [1, 38, 3, 60],
}  # fmt: skip
"""Forward: of attention, of all else. Backward: likewise."""
BY_KERNELS = {
    "softmax": [1, 5, 1, 11], "diff": [1, 7, 3, 15], "diff_v2": [1, 7, 3, 15],
    "shared_diff": [1, 13, 3, 29],
}  # fmt: skip


def test_a_layer_makes_no_more_launches_than_the_record_says(tmp_path):
    done = fresh([str(Path(__file__).with_name("layer_launches.py"))], tmp_path)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [BY_FORMULAS, BY_KERNELS]
