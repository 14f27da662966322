"""What a machine with a GPU collects, seen without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .gpu_cases import BACKENDS, KERNELS

pytest.importorskip("triton", reason="the kernels need triton")

TESTS = Path(__file__).parents[1]


def collected(*folders):
    """Names of the tests of the tier, and of all others."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    paths = [str(TESTS.parent / "src"), str(TESTS / "gpu"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "pretended_cuda",
         "-p", "no:cacheprovider", *folders],
        cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    lines = [line.split(" ", 1) for line in done.stdout.splitlines() if "::" in line]
    return [[name for tier, name in lines if tier == wanted] for wanted in ("GPU", "ANY")]


def values(name):
    """Of the parameters of a test."""
    return name.partition("[")[2].rstrip("]").split("-")


def assert_on_cuda_tensors_alone(tier, others):
    """With compiled kernels a case on CPU tensors cannot pass."""
    assert not [name for name in tier if "cpu" in values(name)]
    assert not [name for name in others if "cpu" in values(name) and {*values(name)} & {*KERNELS}]
    decoding = [name for name in (*tier, *others) if "triton/test_decode.py" in name]
    assert not [name for name in decoding if "cpu" in values(name)]


def test_the_tier_is_collected_on_cuda_tensors_alone():
    tier, others = collected("tests/gpu", "tests/ops/test_diff_attention.py", "tests/ops/triton")
    assert_on_cuda_tensors_alone(tier, others)
    assert len([name for name in tier if "cuda" in values(name)]) > 2_000
    for backend in BACKENDS:
        for dtype in ("fp32", "fp16", "bf16"):
            for width in ("d64", "d128"):
                assert any({"cuda", backend, dtype, width} <= {*values(n)} for n in tier)
    for length in ("N1024", "N8192"):
        assert any(length in values(name) for name in tier)
    assert len([name for name in tier if name.startswith("tests/ops/triton/")]) > 100
    assert [name for name in others if {"cpu", "reference"} <= {*values(name)}]


@pytest.mark.scheduled
def test_no_test_of_the_project_names_a_kernel_on_cpu_tensors():
    tier, others = collected("tests")
    assert_on_cuda_tensors_alone(tier, others)
    print(len(tier), "tests in the tier")
