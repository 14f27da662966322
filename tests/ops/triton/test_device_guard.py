"""Operators launch their kernels on the device of their tensors, not on the current one."""

import contextlib

import pytest
import torch

from diffattn.errors import BackendError
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.backends import custom_op, decode_op, hopper_op

pytest.importorskip("triton")

CASE = OpCase(name="", num_queries=3, num_keys=5, batch=1, num_heads=2, num_kv_heads=1,
              head_dim=32, value_dim=64, lam_axes="h")  # fmt: skip
KERNELS = {
    "diff": ["fwd", "bwd_preprocess", "bwd_dkv", "bwd_dq"],
    "softmax": ["fwd", "bwd_preprocess", "bwd_dkv", "bwd_dq"],
    "decode": ["decode", "combine"],
}


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


@pytest.mark.parametrize("op", KERNELS)
def test_kernels_run_under_the_guard_of_their_queries(op, current, monkeypatch):
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    launch, launches = interpreter.GridExecutor.__call__, []

    def record(self, *args, **options):
        launches.append((self.fn.__name__, current[-1] if current else None))
        return launch(self, *args, **options)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", record)
    inputs = make_diff_attention_inputs(CASE)
    q, *rest = inputs.tensors().values()
    if op == "softmax":
        q = q.detach()[:, :, :, 0].requires_grad_()
        out = custom_op.softmax_attention(q, rest[0][:, :, :, 0], rest[1], scale=0.2)
    elif op == "decode":
        with torch.no_grad():
            out = decode_op.forward(q, *rest, scale=0.2)
    else:
        out = custom_op.diff_attention(q, *rest, scale=0.2)
    if out.requires_grad:
        out.sum().backward()
    for name, guard in launches:
        assert guard is not None, f"{name} was launched on the current device"
        assert guard.data_ptr() == q.data_ptr()
    for kernel in KERNELS[op]:
        assert any(kernel in name for name, _ in launches), kernel


def test_the_hopper_kernel_runs_under_the_guard_of_its_queries(current, monkeypatch):
    """Its launcher alone is called: this machine knows no Gluon."""
    hopper = pytest.importorskip("diffattn.ops.hopper.forward")
    q, k, v, lam = make_diff_attention_inputs(CASE).tensors().values()

    def launch(*tensors, **options):
        assert current[-1].data_ptr() == q.data_ptr()
        raise BackendError("launched")

    monkeypatch.setattr(hopper, "forward", launch)
    with torch.no_grad(), pytest.raises(BackendError, match="launched"):
        hopper_op.diff_attention(q, k, v, lam, scale=0.2)
