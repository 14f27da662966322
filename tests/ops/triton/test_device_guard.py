"""Operators launch their kernels on the device of their tensors, not on the current one."""

import contextlib

import pytest
import torch

from diffattn.lab.testing.inputs import OpCase

from .kernel_calls import decode, differential, inputs_of, softmax

pytest.importorskip("triton")

CASE = OpCase(name="", num_queries=3, num_keys=5, batch=1, num_heads=2, num_kv_heads=1,
              head_dim=32, value_dim=32, shared_keys=True, lam_axes="h")  # fmt: skip
BACKWARD = ["fwd", "bwd_preprocess", "bwd_dkv", "bwd_dq"]
KERNELS = {differential: BACKWARD, softmax: BACKWARD, decode: ["decode", "combine"]}


@pytest.fixture
def current(monkeypatch):
    """The tensors whose devices have been made the current one, the innermost last."""
    guards = []

    @contextlib.contextmanager
    def device_of(x):
        guards.append(x)
        yield
        guards.pop()

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    return guards


@pytest.mark.parametrize("op", KERNELS, ids=lambda op: op.__name__)
def test_kernels_run_under_the_guard_of_their_queries(op, current, monkeypatch):
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    launch, launches = interpreter.GridExecutor.__call__, []

    def record(self, *args, **options):
        launches.append((self.fn.__name__, current[-1] if current else None))
        return launch(self, *args, **options)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", record)
    inputs = inputs_of(op, CASE)
    out = op(*inputs.tensors().values(), backend="triton")
    if out.requires_grad:
        out.sum().backward()
    for name, guard in launches:
        assert guard is not None, f"{name} was launched on the current device"
        assert guard.data_ptr() == inputs.q.data_ptr()
    for kernel in KERNELS[op]:
        assert any(kernel in name for name, _ in launches), kernel
