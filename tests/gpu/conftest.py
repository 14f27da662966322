"""The GPU tier. Without a GPU the same bodies run on CPU tensors, at sizes for that."""

import zlib
from pathlib import Path

import pytest

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
