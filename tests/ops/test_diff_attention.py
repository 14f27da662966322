"""Every backend against the float64 reference, and the inputs that break kernels."""

from dataclasses import replace

import pytest
import torch

from backend_skips import require_backend
from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OP_CASES, OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention
from diffattn.ops.inputs.backends import names
from ops.backend_cases import every_backend
from tools.fuzz_calls import LAYOUTS

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
V1 = OpCase(name="v1", num_queries=9, num_keys=13, num_kv_heads=2, lam_axes="bth")
V2 = OpCase(name="v2", num_queries=9, num_keys=13, num_kv_heads=2, lam_axes="bth",
            shared_keys=True, value_dim=8)  # fmt: skip


def run(inputs, backend, **options):
    return diff_attention(*inputs.tensors().values(), backend=backend, **inputs.options, **options)


def inputs_with_lambda(value, case, **where):
    """λ about a value, another one in every place."""
    inputs = make_diff_attention_inputs(case, **where)
    with torch.no_grad():
        inputs.lam.copy_(value + 0.1 * torch.arange(inputs.lam.numel()).view(inputs.lam.shape))
    return inputs


def inputs_of_steep_logits(case, **where):
    """Logits of ±1e4, nothing between."""
    inputs = make_diff_attention_inputs(case, **where)
    size = (1e4 * case.head_dim**-0.5) ** 0.5  # head_dim products of size², times scale: 1e4
    with torch.no_grad():
        for x in (inputs.q, inputs.k):
            x.copy_(x[..., :1].sign() * size)
    return inputs


def assert_zero_without_keys(op, inputs, backend):
    """Exactly 0 in the output and in its gradient; no NaN anywhere on the way back."""
    ones, zero = torch.ones_like(inputs.v), torch.zeros_like(inputs.lam)
    sums = op(inputs.q, inputs.k, ones, zero, backend="reference", **inputs.options)
    sees_none = sums[..., 0] == 0  # [B, T, H]: weights sum to 1, or there are none
    assert sees_none.any()
    tensors, grads = list(inputs.tensors().values()), []
    with torch.autograd.set_detect_anomaly(True):
        out = op(*tensors, backend=backend, **inputs.options)
        if out.requires_grad:
            grads = torch.autograd.grad(out.float().square().sum(), tensors)
    assert (out[sees_none] == 0).all()
    if grads:
        assert (grads[0][sees_none] == 0).all()
        assert (grads[3].expand(sees_none.shape)[sees_none] == 0).all()
    for x in (out, *grads):
        assert x.isfinite().all()
    if not sees_none.all():
        assert (out[~sees_none] != 0).any()


@pytest.mark.sampled(one_of=3)
@every_backend(*OP_CASES, dtypes=DTYPES, without=("reference",))
def test_backend_matches_reference(backend, dtype, case, device):
    """Output and every gradient stay within twice the error that rounding alone causes."""
    require_backend("diff_attention", backend, device=device, dtype=dtype, case=case)
    inputs = make_diff_attention_inputs(case, dtype=dtype, device=device)
    assert_close_to_reference(diff_attention, inputs, backend=backend)


@every_backend(V1, without=("reference",))
@pytest.mark.parametrize(
    ("value", "axes"),
    [*((1.8, axes) for axes in ("", "h", "t", "th", "b", "bh", "bt", "bth")),
     (-0.7, "bth"), (0.0, ""), (1.0, "h")],
)  # fmt: skip
def test_any_lambda_of_any_shape(backend, dtype, value, axes, case, device):
    """λ is neither clamped nor confused with another axis: below 0, 0, 1, and above."""
    case = replace(case, lam_axes=axes)
    require_backend("diff_attention", backend, device=device, dtype=dtype, case=case)
    inputs = inputs_with_lambda(value, case, dtype=dtype, device=device)
    assert_close_to_reference(diff_attention, inputs, backend=backend)


@every_backend(V1, V2)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_any_strides(backend, dtype, layout, case, device):
    require_backend("diff_attention", backend, device=device, dtype=dtype, case=case)
    strided = make_diff_attention_inputs(case, dtype=dtype, device=device).map_tensors(layout)
    assert not any(x.is_contiguous() for x in strided.tensors().values())
    assert_close_to_reference(diff_attention, strided, backend=backend)


MASKED = (
    replace(V1, name="0", num_queries=13, num_keys=5),
    replace(V2, name="1", num_queries=13, num_keys=5),
    replace(V1, name="2", padding=((13, 0), (2, 3))),
    replace(V2, name="3", padding=((13, 0), (2, 3)), causal=False),
    replace(V1, name="4", kv_lengths=(0, 4)),
    replace(V1, name="5", kv_lengths=(0, 4), causal=False),
    replace(V2, name="6", num_queries=1, kv_lengths=(0, 4)),
    replace(V1, name="7", window=2, padding=((0, 4), (0, 0))),
    replace(V1, name="8", batch=1, num_queries=13, documents=(4, 9), padding=((4, 0),)),
)


@pytest.mark.sampled(one_of=3)
@every_backend(*MASKED, dtypes=DTYPES)
def test_query_without_keys_gives_zero(backend, dtype, case, device):
    require_backend("diff_attention", backend, device=device, dtype=dtype, case=case)
    inputs = make_diff_attention_inputs(case, dtype=dtype, device=device)
    assert_zero_without_keys(diff_attention, inputs, backend)


@every_backend(V1, without=[x for x in names("diff_attention") if x not in ("chunked", "triton")])
@pytest.mark.parametrize("sizes", [(0, 3, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0)], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": False}, {"window": 2}, {"padding": ()}, {"kv_lengths": ()},
     {"padding": (), "kv_lengths": (), "window": 1}],
    ids=str,
)  # fmt: skip
def test_empty_batch_or_length(backend, dtype, sizes, options, case, device):
    """By the definition, whatever backend is named."""
    batch, num_queries, num_keys = sizes
    case = replace(case, batch=batch, num_queries=num_queries, num_keys=num_keys)
    require_backend("diff_attention", backend, device=device, dtype=dtype, case=case)
    inputs = make_diff_attention_inputs(case, dtype=dtype, device=device)
    options = dict(options)
    if "padding" in options:
        del options["padding"]
        options["key_padding_mask"] = torch.ones(batch, num_keys, dtype=torch.bool, device=device)
    if "kv_lengths" in options:
        options["kv_lengths"] = torch.full((batch,), num_keys, dtype=torch.int32, device=device)
    out = run(inputs, backend, **options)
    assert out.shape == (batch, num_queries, 4, case.value_dim)
    assert (out == 0).all()
    if not out.requires_grad:  # the backend has none here
        return
    grads = torch.autograd.grad(out.sum(), list(inputs.tensors().values()))
    for grad, x in zip(grads, inputs.tensors().values(), strict=True):
        assert grad.shape == x.shape
        assert (grad == 0).all()


@pytest.mark.sampled(one_of=3)
@every_backend(
    replace(V1, name="d4", head_dim=4, value_dim=8),
    replace(V1, name="d64", head_dim=64, value_dim=128), dtypes=DTYPES,
)  # fmt: skip
def test_logits_of_ten_thousand(backend, dtype, case, device):
    """exp does not overflow, and float16 holds the products of queries and keys."""
    require_backend("diff_attention", backend, device=device, dtype=dtype, case=case)
    inputs = inputs_of_steep_logits(case, dtype=dtype, device=device)
    assert_close_to_reference(diff_attention, inputs, backend=backend)


@every_backend(V1, dtypes=(torch.float64,))
def test_float64_takes_lambda_in_both_widths(backend, dtype, case, device):
    require_backend("diff_attention", backend, device=device, dtype=dtype, case=case)
    inputs = make_diff_attention_inputs(case, dtype=dtype, device=device)
    narrow = inputs.lam.detach().float()
    wide = diff_attention(inputs.q, inputs.k, inputs.v, narrow.double(), backend=backend)
    out = diff_attention(inputs.q, inputs.k, inputs.v, narrow, backend=backend)
    assert out.dtype == torch.float64
    assert torch.equal(out, wide)
