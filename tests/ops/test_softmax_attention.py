"""The baseline operator against a second oracle, and its own maps."""

from dataclasses import replace

import pytest
import torch

from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.softmax_attention import softmax_attention, softmax_attention_maps
from ops.backend_cases import assert_same
from ops.plain_attention import plain_attention, plain_maps
from ops.test_diff_attention import assert_zero_without_keys
from ops.test_reference import CASES as ALL_CASES
from ops.test_softmax_backends import softmax
from rounding_bounds import assert_equal_to_rounding

_SMALL = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 3, "value_dim": 2, "shared_keys": True}
CASES = [replace(case, lam_axes="", **_SMALL) for case in ALL_CASES if not case.shared_keys]


def softmax_inputs(case, **kwargs):
    """Inputs of the other operator, of which the first map is used; and q, k, v."""
    inputs = make_diff_attention_inputs(case, **kwargs)
    return inputs, (inputs.q[:, :, :, 0], inputs.k, inputs.v)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_definition(case, device):
    inputs, (q, k, v) = softmax_inputs(case, dtype=torch.float64, device=device)
    tensors = (inputs.q, k, v, torch.zeros_like(inputs.lam))
    tensors = [x.detach().cpu() for x in tensors]
    options = {
        name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in inputs.options.items()
    }
    out = plain_attention(*tensors, **options)
    expected = plain_maps(tensors[0], tensors[1], tensors[3], **options)[0][0]
    assert_same(softmax_attention(q, k, v, **inputs.options).cpu(), out, inputs)
    maps = softmax_attention_maps(q, k, **inputs.options).cpu()
    assert_same(maps, expected, inputs)
    assert torch.equal(maps == 0, expected == 0)
    rows = torch.tensor([case.num_queries - 1, 0])
    some = softmax_attention_maps(q, k, rows=rows.to(device), **inputs.options).cpu()
    assert_same(some, expected[:, :, rows], inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_16_bits_round_the_output_and_little_else(case, dtype, device):
    """Scaled operands and logits of size L move weight and normaliser: 6 L; map and output: 2."""
    inputs, tensors = softmax_inputs(case, dtype=dtype, device=device)
    actual = softmax_attention(*tensors, **inputs.options)
    exact = softmax_attention(*(x.double() for x in tensors), **inputs.options)
    assert actual.dtype == dtype
    assert softmax_attention_maps(*tensors[:2], **inputs.options).dtype == torch.float32
    q, k, v = (x.detach().double().abs().max() for x in tensors)
    logit = abs(inputs.options.get("scale", case.head_dim**-0.5)) * case.head_dim * float(q * k)
    assert_equal_to_rounding(actual, exact, steps=3 * logit + 1, magnitude=float(v))


@pytest.mark.parametrize(
    "case", [x for x in CASES if x.name in ("T>S", "padding", "kv_lengths")], ids=str
)
def test_query_without_keys_gives_zero_and_finite_gradients(case, device):
    assert_zero_without_keys(softmax, make_diff_attention_inputs(case, device=device), "auto")


@pytest.mark.parametrize("sizes", [(0, 3, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0)], ids=str)
@pytest.mark.parametrize("are_masked", [False, True])
@pytest.mark.parametrize("causal", [True, False])
def test_empty_batch_or_length(sizes, are_masked, causal, device):
    batch, num_queries, num_keys = sizes
    case = OpCase(name="", batch=batch, num_queries=num_queries, num_keys=num_keys, **_SMALL)
    _, (q, k, v) = softmax_inputs(case, device=device)
    options = {"causal": causal}
    if are_masked:
        real = torch.ones(batch, num_keys, dtype=torch.bool, device=device)
        options |= {"key_padding_mask": real, "kv_lengths": real.sum(1, dtype=torch.int32)}
    out = softmax_attention(q, k, v, **options)
    assert out.shape == (batch, num_queries, 4, 2)
    assert (out == 0).all()
    assert softmax_attention_maps(q, k, **options).shape == (batch, 4, num_queries, num_keys)
    out.sum().backward()  # does not raise


def test_autocast_keeps_the_dtype_of_the_queries(device):
    _, (q, k, v) = softmax_inputs(CASES[0], device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert softmax_attention(q, k, v).dtype == torch.float32
        maps = softmax_attention_maps(q, k)
    assert maps.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("scale", [-0.5, 0.0])
@pytest.mark.parametrize("causal", [True, False])
def test_scales_below_and_at_zero(scale, causal, dtype, device):
    """PyTorch's causal CPU kernel gives NaN there: minus infinity times the scale."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 34, 3, 8, device=device).to(dtype).requires_grad_() for _ in "qkv")
    out = softmax_attention(q, k, v, scale=scale, causal=causal)
    q_64, k_64, v_64 = (x.detach().double().requires_grad_() for x in (q, k, v))
    wanted = softmax_attention(q_64, k_64, v_64, scale=scale, causal=causal, backend="reference")
    grads = torch.autograd.grad(out.double().sum(), (q, k, v))
    wanted_grads = torch.autograd.grad(wanted.sum(), (q_64, k_64, v_64))
    tolerance = 16 * torch.finfo(dtype).eps
    for got, want in zip((out, *grads), (wanted, *wanted_grads), strict=True):
        assert (got - want).abs().max() <= tolerance * max(1.0, float(want.detach().abs().max()))


def test_the_result_may_be_changed_in_place():
    """As that of PyTorch's own call, where its backward does not need it."""
    q, k, v = (torch.zeros(2, 5, *sizes) for sizes in ((4, 3), (2, 3), (2, 6)))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    changed = softmax_attention(q, k, v, window=4, backend="sdpa")
    changed.mul_(2)
    grads = torch.autograd.grad(changed.sum(), (q, k, v))
    plain = torch.autograd.grad(2 * softmax_attention(q, k, v, window=4).sum(), (q, k, v))
    torch.testing.assert_close(grads, plain)
