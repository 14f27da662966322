"""How far rounding moves attention: the same on every machine, and as far as it may."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from diffattn.lab.testing.assertions import (
    assert_close_to_reference,
    compare,
    exact_weights,
    output_and_gradients,
    reference_by_rows,
)
from diffattn.lab.testing.inputs import OP_CASES, OpCase, make_diff_attention_inputs
from diffattn.lab.testing.rounding import _softmax_moves, rounding_errors
from diffattn.ops.attention import diff_attention

CASE = OpCase(name="", num_queries=9, num_keys=13, num_kv_heads=2, lam_axes="bth")


def errors_of(inputs):
    out = diff_attention(*inputs.tensors().values(), backend="reference", **inputs.options)
    return out, rounding_errors(inputs, torch.ones_like(out))


@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_one_rounding_of_a_result_is_allowed(case):
    """Every value has a budget of its shape, of at least the rounding of the value itself."""
    inputs = make_diff_attention_inputs(case)
    out, errors = errors_of(inputs)
    grads = torch.autograd.grad(out, list(inputs.tensors().values()), torch.ones_like(out))
    values = {f"gradient of {n}": x for n, x in zip(inputs.tensors(), grads, strict=True)}
    values["output"] = out.detach()
    assert values.keys() == errors.keys()
    eps = torch.finfo(torch.float32).eps
    for name, value in values.items():
        assert errors[name].shape == value.shape
        assert errors[name].dtype == torch.float64
        largest = float(value.abs().max())
        assert eps * largest <= 1.01 * float(errors[name].max()), name


def test_what_cancels_is_seen():
    """Equal maps at λ = 1: the output is 0 but O1 and O2 are not."""
    inputs = make_diff_attention_inputs(CASE)
    same = inputs.map_tensors(lambda x: x[:, :, :, :1].expand_as(x) if x.ndim == 5 else x)
    with torch.no_grad():
        same.lam.fill_(1.0)
    out, errors = errors_of(same)
    assert out.abs().max() < 1e-5
    assert errors["output"].max() > torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_order_of_summation_does_not_matter(dtype):
    """The kernels of a machine choose it: the budget must be the same whatever they choose."""
    inputs = make_diff_attention_inputs(replace(CASE, causal=False), dtype=dtype)
    order = torch.randperm(CASE.num_keys)
    moved = replace(inputs, k=inputs.k[:, order], v=inputs.v[:, order])
    expected, actual = errors_of(inputs)[1], errors_of(moved)[1]
    for name in ("gradient of k", "gradient of v"):
        expected[name] = expected[name][:, order]
    for name, want in expected.items():
        assert torch.allclose(actual[name], want, rtol=1e-9, atol=0), name


def test_weights_move_to_their_extremes():
    """The extremes are reached where one logit goes up and all others go down, or the reverse."""
    logits = torch.tensor([0.3, -1.0, 2.0, -torch.inf, 1.9], dtype=torch.float64)
    off = torch.tensor([0.1, 3.0, 0.5, 1.0, 0.2], dtype=torch.float64)
    weights = logits.softmax(-1)
    most = torch.zeros_like(weights)
    for signs in product((-1.0, 1.0), repeat=5):
        moved = (logits + off * torch.tensor(signs)).softmax(-1)
        most = torch.maximum(most, (moved - weights).abs())
    assert torch.allclose(_softmax_moves(logits, off), most, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
def test_numbers_below_the_smallest_normal_one_keep_their_spacing(dtype):
    """No budget is below it; gradients of a tiny scale are multiples of it."""
    case = replace(CASE, num_keys=None, scale=1e-5)
    inputs = make_diff_attention_inputs(case, dtype=dtype)
    spacing = torch.finfo(dtype).eps * torch.finfo(dtype).smallest_normal
    assert all((error >= spacing).all() for error in errors_of(inputs)[1].values())
    assert_close_to_reference(diff_attention, inputs, backend="flash_diff_attn_1")


def test_no_keys():
    """What is left is the spacing of the numbers nearest to zero."""
    inputs = make_diff_attention_inputs(replace(CASE, num_keys=0))
    for error in errors_of(inputs)[1].values():
        assert (error <= 1e-44).all()


@pytest.mark.parametrize("factors", ["", "λ", "sλ"])
def test_underflow_of_the_logits_gradient_is_allowed_with_any_factor_in_it(factors):
    """Float16 rounds dS to steps of 6e-8; kernels keep it with or without λ and s. Here λ is small,
    as many weights are, so that most of dS underflows."""
    case = OpCase(name="", num_queries=1, num_keys=2_048, batch=1, num_heads=1, num_kv_heads=1,
                  head_dim=64, value_dim=128, causal=False)  # fmt: skip
    inputs = make_diff_attention_inputs(case, dtype=torch.float16)
    with torch.no_grad():
        inputs.lam.fill_(0.01)
        inputs.v.mul_(0.1)
    exact = inputs.map_tensors(Tensor.double)
    weights = exact_weights(torch.empty(1, 1, 1, 128, dtype=torch.float64))
    out = diff_attention(*exact.tensors().values(), backend="reference", causal=False)
    want = output_and_gradients(out, exact.tensors(), weights)
    off = rounding_errors(inputs, weights)
    scale, lam = 64**-0.5, float(exact.lam.detach())
    q, k, v = (x.detach() for x in (exact.q, exact.k, exact.v))
    per_key = v[0, :, 0] @ weights[0, 0, 0]  # dP: [S]
    for i in range(2):
        keys, query = k[0, :, 0, i], q[0, 0, 0, i]
        map_ = (scale * keys @ query).softmax(0)
        per_logit = map_ * (per_key - map_ @ per_key)  # dS
        own = (1.0, -lam)[i]
        kept = (own if "λ" in factors else 1.0) * (scale if "s" in factors else 1.0)
        rounded = (kept * per_logit).half().double() * (scale * own / kept)
        for name, actual in (
            ("gradient of q", rounded @ keys), ("gradient of k", rounded[:, None] * query)
        ):  # fmt: skip
            at = (0, 0, 0, i) if name.endswith("q") else (0, slice(None), 0, i)
            result = compare(actual.half(), want[name][at], off[name][at])
            assert result.problem is None, (name, i, result)
            assert result.error > 0


@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_blocks_change_nothing(case):
    """Up to the order of float64 sums."""
    inputs = make_diff_attention_inputs(case)
    exact = inputs.map_tensors(Tensor.double)
    out = diff_attention(*exact.tensors().values(), backend="reference", **exact.options)
    weights = exact_weights(out)
    whole = output_and_gradients(out, exact.tensors(), weights)
    few = 2 * out.shape[0] * out.shape[2] * inputs.k.shape[1] * 5
    in_blocks = reference_by_rows(inputs, weights, scores=few)
    assert whole.keys() == in_blocks.keys()
    for name, value in whole.items():
        torch.testing.assert_close(in_blocks[name], value, rtol=1e-12, atol=1e-12)
    errors = rounding_errors(inputs, weights)
    for name, value in rounding_errors(inputs, weights, scores=few).items():
        torch.testing.assert_close(value, errors[name], rtol=1e-8, atol=0)
