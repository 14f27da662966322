"""The reference: against a second oracle, and its derivatives against differences."""

from functools import partial

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention, diff_attention_maps
from ops.backend_cases import assert_same
from ops.plain_attention import plain_attention, plain_maps
from rounding_bounds import assert_equal_to_rounding, rounding_steps

_SMALL = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 2, "value_dim": 3}
CASES = (
    OpCase(name="v1", num_queries=4, lam_axes="bth", **_SMALL),
    OpCase(name="v2", num_queries=4, shared_keys=True, lam_axes="bth", **_SMALL),
    OpCase(name="scale", num_queries=3, scale=-1.3, **_SMALL),
    OpCase(name="decode", num_queries=1, num_keys=4, lam_axes="h", **_SMALL),
    OpCase(name="T<S", num_queries=2, num_keys=4, lam_axes="t", **_SMALL),
    OpCase(name="T>S", num_queries=4, num_keys=2, **_SMALL),
    OpCase(name="cross", num_queries=2, num_keys=3, causal=False, **_SMALL),
    OpCase(name="window", num_queries=4, window=2, **_SMALL),
    OpCase(name="window-noncausal", num_queries=4, num_keys=3, causal=False, window=2, **_SMALL),
    OpCase(name="padding", num_queries=4, padding=((2, 0), (0, 4)), **_SMALL),
    OpCase(name="kv_lengths", num_queries=2, num_keys=4, kv_lengths=(0, 3), **_SMALL),
    OpCase(name="kv_lengths-noncausal", num_queries=2, num_keys=4, causal=False,
           kv_lengths=(1, 3), **_SMALL),
    OpCase(name="packed", num_queries=5, batch=1, documents=(1, 0, 3, 1), lam_axes="h", **_SMALL),
    OpCase(name="packed-noncausal", num_queries=4, batch=1, causal=False, documents=(2, 2),
           **_SMALL),
    OpCase(name="padding-kv_lengths-window", num_queries=3, num_keys=5, window=2,
           padding=((1, 0), (0, 1)), kv_lengths=(5, 4), lam_axes="bth", **_SMALL),
    OpCase(name="packed-window-padding", num_queries=5, batch=1, documents=(3, 2), window=2,
           padding=((0, 1),), shared_keys=True, **_SMALL),
)  # fmt: skip
_HEADS = (
    OpCase(name="mha", num_queries=5, num_heads=3, num_kv_heads=3, lam_axes="h"),
    OpCase(name="gqa", num_queries=5, num_heads=6, num_kv_heads=2, lam_axes="h"),
    OpCase(name="gqa-shared", num_queries=5, num_heads=6, num_kv_heads=3, shared_keys=True),
    OpCase(name="mqa", num_queries=5, num_heads=4, num_kv_heads=1, lam_axes="bh"),
)
# Central differences of the step that balances truncation and rounding, the cube root of the unit
# roundoff, are off by the square of it, times third derivatives and values, here below 100.
_STEP = (torch.finfo(torch.float64).eps / 2) ** (1 / 3)
DIFFERENCES = {"eps": _STEP, "atol": 100 * _STEP**2, "rtol": 0.0}


def arguments(inputs):
    return tuple(inputs.tensors().values())


@pytest.mark.parametrize("case", [*CASES, *_HEADS], ids=str)
def test_equals_equation_1(case):
    inputs = make_diff_attention_inputs(case, dtype=torch.float64)
    out = plain_attention(*arguments(inputs), **inputs.options)
    (map_1, map_2), lam = plain_maps(inputs.q, inputs.k, inputs.lam, **inputs.options)
    actual = diff_attention(*arguments(inputs), backend="reference", **inputs.options)
    assert_same(actual, out, inputs)
    maps = diff_attention_maps(inputs.q, inputs.k, inputs.lam, **inputs.options)
    for actual, expected in zip(maps, (map_1, map_2, map_1 - lam * map_2), strict=True):
        assert_same(actual, expected, inputs)
        assert torch.equal(actual == 0, expected == 0)  # a hidden key has no weight at all


@pytest.mark.parametrize("case", CASES, ids=str)
def test_first_derivatives(case):
    inputs = make_diff_attention_inputs(case, dtype=torch.float64)
    function = partial(diff_attention, backend="reference", **inputs.options)
    assert gradcheck(function, arguments(inputs), **DIFFERENCES)


@pytest.mark.parametrize("case", CASES[:2] + CASES[5:7] + CASES[-2:], ids=str)
def test_second_derivatives(case):
    inputs = make_diff_attention_inputs(case, dtype=torch.float64)
    function = partial(diff_attention, backend="reference", **inputs.options)
    assert gradgradcheck(function, arguments(inputs), **DIFFERENCES)


@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_maps_have_derivatives(case):
    inputs = make_diff_attention_inputs(case, dtype=torch.float64)
    function = partial(diff_attention_maps, **inputs.options)
    assert gradcheck(function, (inputs.q, inputs.k, inputs.lam), **DIFFERENCES)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"]
)
@pytest.mark.parametrize("case", [*CASES, *_HEADS], ids=str)
def test_queries_logits_map_and_output_are_rounded_and_nothing_else(case, dtype, device):
    """In 16 bits two roundings of a logit of size L move weight and normaliser: 4 L; map and
    output: 2."""
    inputs = make_diff_attention_inputs(case, dtype=dtype, device=device)
    exact = inputs.map_tensors(torch.Tensor.double)
    expected = diff_attention(*arguments(exact), backend="reference", **inputs.options)
    actual = diff_attention(*arguments(inputs), backend="reference", **inputs.options)
    assert actual.dtype == dtype
    maps = diff_attention_maps(inputs.q, inputs.k, inputs.lam, **inputs.options)
    assert {x.dtype for x in maps} == {torch.float32}
    steps, magnitude = rounding_steps(inputs)
    if dtype != torch.float32:
        scale = abs(inputs.options.get("scale", case.head_dim**-0.5))
        largest = exact.q.detach().abs().max() * exact.k.detach().abs().max()
        steps = 2 * float(scale * case.head_dim * largest) + 1  # eps is two unit roundoffs
    assert_equal_to_rounding(actual, expected, steps=steps, magnitude=magnitude)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_are_slices_of_the_full_maps(case):
    inputs = make_diff_attention_inputs(case, dtype=torch.float64)
    full = diff_attention_maps(inputs.q, inputs.k, inputs.lam, **inputs.options)
    for chosen in ([case.num_queries - 1, 0], []):  # any order
        rows = torch.tensor(chosen, dtype=torch.int64)
        some = diff_attention_maps(inputs.q, inputs.k, inputs.lam, rows=rows, **inputs.options)
        for actual, expected in zip(some, full, strict=True):
            assert_same(actual, expected[:, :, rows], inputs)
