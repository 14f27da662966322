"""No call waits for the device to look at a value: every option on tensors that have none.

Meta tensors take the way of an accelerator's and refuse what a GPU would have to wait for: item,
tolist, the truth of a tensor, shapes that depend on values, copies to the CPU.
"""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from backend_skips import require_backend
from diffattn import diff_attention, diff_attention_maps
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.backends import custom_op, flex
from diffattn.ops.inputs import backends
from diffattn.ops.inputs.masking import AttentionMask
from diffattn.ops.softmax_attention import softmax_attention, softmax_attention_maps

SHAPE = {"name": "", "num_queries": 6, "head_dim": 64, "value_dim": 128, "lam_axes": "h"}
CACHE = SHAPE | {"num_queries": 3, "num_keys": 7}
OPTIONS = {
    "causal": OpCase(**SHAPE),
    "not causal": OpCase(**SHAPE, causal=False),
    "window": OpCase(**SHAPE, window=2),
    "window behind a cache": OpCase(**CACHE, window=2),
    "padding": OpCase(**SHAPE, padding=((1, 0), (0, 2))),
    "kv_lengths": OpCase(**CACHE, kv_lengths=(7, 4)),
    "documents": OpCase(**SHAPE | {"batch": 1}, documents=(2, 4)),
    "documents and window": OpCase(**SHAPE | {"batch": 1}, documents=(2, 4), window=2),
    "all of a cache": OpCase(**CACHE, window=2, padding=((1, 0), (0, 2)), kv_lengths=(7, 4)),
}
option = pytest.mark.parametrize("case", OPTIONS.values(), ids=OPTIONS)


WAITS = {torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__bool__, torch.Tensor.cpu,
         torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.nonzero}  # fmt: skip


class NoLook(TorchFunctionMode):
    """Says so where a call would wait, even if the error of a meta tensor is caught there."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in WAITS and args[0].is_meta:
            raise AssertionError(f"{function.__name__} of a tensor on a device")
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _no_look():
    with NoLook():
        yield


def on_meta(case, dtype=torch.float32):
    """Leaves and options without values."""
    inputs = make_diff_attention_inputs(case, dtype=dtype)
    options = {
        name: x.to("meta") if isinstance(x, torch.Tensor) else x
        for name, x in inputs.options.items()
    }
    return inputs.map_tensors(lambda x: x.to("meta")).tensors(), options


def called(function, leaves, options):
    """The output, after its gradients."""
    out = function(*leaves, **options)
    if out.requires_grad:
        torch.autograd.grad(out.sum(), leaves)
    return out


@option
@pytest.mark.parametrize("backend", ["auto", *backends.names("diff_attention")])
def test_diff_attention(backend, case):
    dtype = torch.bfloat16 if backend == "hopper" else torch.float32
    leaves, options = on_meta(case, dtype)
    if backend != "auto":
        require_backend("diff_attention", backend, device="meta", dtype=dtype, case=case)
    if backend == "hopper" and set(options) - {"causal"}:
        pytest.skip("backend 'hopper' takes no mask besides causal")
    if backend == "triton_decode" and "cu_seqlens" in options:
        pytest.skip("backend 'triton_decode' takes no document borders")
    with torch.set_grad_enabled(backend != "triton_decode"):
        out = called(
            lambda *x, **options: diff_attention(*x, backend=backend, **options),
            list(leaves.values()), options,
        )  # fmt: skip
    assert out.shape == (case.batch, case.num_queries, 4, 128)


@option
@pytest.mark.parametrize("backend", ["auto", *backends.names("softmax_attention")])
def test_softmax_attention(backend, case):
    leaves, options = on_meta(case)
    if backend != "auto":
        require_backend("softmax_attention", backend, device="meta", dtype=torch.float32, case=case)
    q, k = (leaves[name].detach()[:, :, :, 0].requires_grad_() for name in "qk")
    out = called(
        lambda *x, **options: softmax_attention(*x, backend=backend, **options),
        [q, k, leaves["v"]], options,
    )  # fmt: skip
    assert out.shape == (case.batch, case.num_queries, 4, 128)


@option
def test_maps(case):
    leaves, options = on_meta(case)
    q, k, lam = leaves["q"], leaves["k"], leaves["lam"]
    rows = torch.tensor([0, 2], device="meta")
    diff_attention_maps(q, k, lam, rows=rows, **options)
    softmax_attention_maps(q[:, :, :, 0], k[:, :, :, 0], rows=rows, **options)


@option
@pytest.mark.parametrize("op", ["diff", "softmax", "decode"])
def test_what_runs_before_the_kernels(op, case, monkeypatch):
    """The operators as a GPU calls them: all but the kernels themselves."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    launches = []
    monkeypatch.setattr(
        interpreter.GridExecutor, "__call__", lambda self, *args, **kw: launches.append(self.fn)
    )
    leaves, options = on_meta(case)
    q, k, v, lam = (x.detach() for x in leaves.values())
    mask = AttentionMask(**options).flat()
    if op == "decode":
        if "cu_seqlens" in options:
            pytest.skip("backend 'triton_decode' takes no document borders")
        custom_op.triton_decode._init_fn(q, k, v, lam, 0.2, *mask[:-1])
    else:
        if op == "softmax":
            q, k, lam = q[:, :, :, :1], k[:, :, :, 0], None
        saved = custom_op._diff_attention._init_fn(q, k, v, lam, 0.2, *mask)
        custom_op.diff_attention_backward._init_fn(saved[0], q, k, v, lam, *saved, 0.2, *mask)
    assert len(launches) >= 2


@option
def test_the_blocks_of_flex(case):
    leaves, options = on_meta(case)
    mask = AttentionMask(**options)
    first, last = mask.key_ranges(
        case.num_queries, leaves["k"].shape[1], device=torch.device("meta")
    )
    flex.range_mask(first, last, leaves["k"].shape[1], mask.key_padding_mask)
