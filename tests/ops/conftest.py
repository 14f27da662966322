"""Memory that shows when it is read unwritten, and what of the backends runs at every push."""

import zlib
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from diffattn.ops.inputs import backends

EVERY_PUSH = {"test_properties", "test_groups", "test_empty_batch_or_length"}
"""Modules and tests of which each kernel runs one case."""


@pytest.hookimpl(tryfirst=True)  # before marks are chosen
def pytest_collection_modifyitems(items):
    """Leave most of FlexAttention to the scheduled tier: half a second a case on a CPU.

    A push runs its own tests (test_flex.py), and a ninth of the cases in one dtype.
    """
    for item in items:
        if not (item.path.is_relative_to(Path(__file__).parent) and hasattr(item, "callspec")):
            continue
        params = item.callspec.params
        in_every_push = (
            item.originalname == "test_backend_matches_reference"
            and params.get("dtype") is torch.float32
            and zlib.crc32(item.name.encode()) % 9 == 0
        )
        if params.get("backend", params.get("name")) == "flex" and not in_every_push:
            item.add_marker(pytest.mark.scheduled)
    _leave_most_kernels_to_the_scheduled_tier(items)


def _leave_most_kernels_to_the_scheduled_tier(items):
    """Half a second of the interpreter a case, and ``triton/`` has the tests of the kernels alone.

    Of each property one case a kernel runs at every push, chosen by a hash of its name, as the
    first would hold one value of every option.
    """
    cases = defaultdict(list)
    for item in items:
        if item.path.parent == Path(__file__).parent and hasattr(item, "callspec"):
            backend = item.callspec.params.get("backend")
            computes = "device" in item.callspec.params or item.path.stem == "test_groups"
            if backend in ("triton", "triton_decode") and computes:
                cases[item.path.stem, item.originalname, backend].append(item)
    for (module, test, _), group in cases.items():
        group.sort(key=lambda item: zlib.crc32(item.name.encode()))
        for i, item in enumerate(group):
            if i == 0 and {module, test} & EVERY_PUSH:
                # Instead of the share that a test names for its other backends.
                item.add_marker(pytest.mark.sampled(one_of=1), append=False)
            else:
                item.add_marker(pytest.mark.scheduled)


@pytest.fixture(autouse=True)
def _nan_filled_memory():
    """``torch.empty`` gives NaN, so that reading what nobody wrote cannot go unseen."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _no_gradient_where_there_is_none(request):
    """A backend that has no gradient on a device is tested there under ``torch.no_grad``."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    name, device = params.get("backend", params.get("name")), params.get("device", "cpu")
    rows = [row for row in backends.table("diff_attention") if row.name == name]
    missing = any(device in row.no_gradient_on for row in rows)
    with torch.set_grad_enabled(not missing):
        yield


@pytest.fixture
def launches(monkeypatch):
    """Name, grid and options of every kernel that the interpreter runs from here on."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    run, launches = interpreter.GridExecutor.__call__, []

    def record(self, *args, **options):
        launches.append(SimpleNamespace(name=self.fn.__name__, grid=self.grid, options=options))
        return run(self, *args, **options)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", record)
    return launches
