"""The GPU tier. Without a GPU the same bodies run on CPU tensors, at sizes for that."""

import zlib
from pathlib import Path

import pytest
import torch

from . import gpu_cases

RUNS_AT_A_PUSH = 60
"""On a CPU one case in so many, and all in the scheduled tier: the interpreter is slow."""


@pytest.hookimpl(tryfirst=True)  # before marks are chosen
def pytest_collection_modifyitems(items):
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent) or not hasattr(item, "callspec"):
            continue
        on_cpu = item.callspec.params.get("kernel_device") == "cpu"
        if on_cpu and zlib.crc32(item.name.encode()) % RUNS_AT_A_PUSH:
            item.add_marker(pytest.mark.scheduled)


@pytest.fixture(autouse=True)
def _returned_memory(request):
    """Several processes share the GPU, and each would keep what its longest case took."""
    yield
    case = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    if gpu_cases.ON_GPU and case is not None and case.num_queries > 1_024:
        torch.cuda.empty_cache()
