"""The GPU tier. Without a GPU the same bodies run on CPU tensors, at sizes for that."""

import zlib
from pathlib import Path

import pytest
import torch

from . import gpu_cases

RUNS_AT_A_PUSH = 60
"""Of the operators on a CPU one case in so many; the scheduled tier has all, as it takes long."""


@pytest.hookimpl(tryfirst=True)  # before marks are chosen
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path != Path(__file__).with_name("test_operators_on_gpu.py"):
            continue
        on_cpu = item.callspec.params["kernel_device"] == "cpu"
        if on_cpu and zlib.crc32(item.name.encode()) % RUNS_AT_A_PUSH:
            item.add_marker(pytest.mark.scheduled)


@pytest.fixture(autouse=True)
def _returned_memory(request):
    """Several processes share the GPU, and each would keep what its longest case took."""
    yield
    case = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    if gpu_cases.ON_GPU and case is not None and case.num_queries > 1_024:
        torch.cuda.empty_cache()
