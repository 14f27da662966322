"""The assertions fail when they should."""

import pytest
import torch

from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention
from rounding_bounds import assert_equal_to_rounding

CASE = OpCase(name="", num_queries=9, num_keys=13, num_kv_heads=2, lam_axes="bth")
DTYPES = {
    "fp32": torch.float32,
    "fp64": torch.float64,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def with_gradient_of(index, factor):
    """The reference, whose gradient of one argument is ``factor`` times the right one."""

    def op(*tensors):
        tensors = list(tensors)
        x = tensors[index]
        tensors[index] = x + (factor - 1) * (x - x.detach())
        return diff_attention(*tensors, backend="reference")

    return op


def without_rescale(q, k, v, lam):
    """Two blocks of keys, each with its own maximum, added as if these were the same."""
    group, (num_queries, num_keys) = q.shape[2] // k.shape[2], (q.shape[1], k.shape[1])
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    wide = torch.promote_types(q.dtype, torch.float32)
    logits = torch.einsum("bthmd,bshmd->bhmts", q * q.shape[-1] ** -0.5, k).to(wide)
    past = torch.ones(num_queries, num_keys).tril(num_keys - num_queries).bool()
    blocks = logits.masked_fill(~past, -torch.inf).tensor_split(2, -1)
    largest = [x.detach().amax(-1, keepdim=True) for x in blocks]
    largest = [x.masked_fill(x == -torch.inf, 0) for x in largest]
    powers = [(x - m).exp() for x, m in zip(blocks, largest, strict=True)]
    map_1, map_2 = torch.nn.functional.normalize(torch.cat(powers, -1), p=1, dim=-1).unbind(2)
    signed = map_1 - lam.expand(q.shape[:3]).transpose(1, 2)[..., None] * map_2
    return (signed.to(v.dtype) @ v.transpose(1, 2)).transpose(1, 2)


def right(q, k, v, lam):
    return diff_attention(q, k, v, lam, backend="reference")


FAULTS = {
    "λ of the other sign": lambda q, k, v, lam: right(q, k, v, -lam),
    "maps swapped": lambda q, k, v, lam: right(q.flip(3), k.flip(3), v, lam),
    "heads of another group": lambda q, k, v, lam: right(
        q, k.repeat(1, 1, 2, 1, 1), v.repeat(1, 1, 2, 1), lam
    ),
    "last key hidden": lambda q, k, v, lam: right(q, k[:, :-1], v[:, :-1], lam),
    "window too short": lambda q, k, v, lam: diff_attention(q, k, v, lam, window=k.shape[1] - 2),
    "gradient of v": with_gradient_of(2, 1.25),
    "gradient of lam": with_gradient_of(3, 1.25),
    "no rescale": without_rescale,
    "scale": lambda q, k, v, lam: diff_attention(q, k, v, lam, scale=0.25),  # not 8 ** -0.5
    "gradient of q": with_gradient_of(0, 1.25),
    "gradient of k": with_gradient_of(1, 1.25),
    "λ in bfloat16": lambda q, k, v, lam: right(q, k, v, lam.bfloat16().to(lam)),
}
OTHER = dict.fromkeys(DTYPES.values(), torch.float64) | {torch.float64: torch.float32}
BROKEN = {
    "NaN": lambda *tensors: right(*tensors) * torch.nan,
    "dtype": lambda *tensors: right(*tensors).to(OTHER[tensors[0].dtype]),
    "shape": lambda *tensors: right(*tensors)[:, :1],
}
ALL = tuple(FAULTS)
KEYS = ALL[:5]
"""Which key, which head, which sign."""
NOTICED = {
    ("fp32", None): ALL, ("fp32", 300): ALL, ("fp32", 1e4): ALL,
    ("fp64", None): ALL, ("fp64", 300): ALL, ("fp64", 1e4): ALL,
    # A λ in bfloat16 has as many digits as these outputs.
    ("fp16", None): ALL[:-1], ("fp16", 300): ALL[:-1], ("fp16", 1e4): ALL[:6],
    # A logit of 300 is known to 1, one of 1000 to 4: which of two near keys wins is open. At 1e4
    # no key of these rows is safe, and nothing is promised.
    ("bf16", None): ALL[:-1], ("bf16", 300): ALL[:8], ("bf16", 1e3): KEYS,
}  # fmt: skip


def make_inputs(dtype, limit):
    """Logits of a few units, or spread up to ``limit``."""
    inputs = make_diff_attention_inputs(CASE, dtype=DTYPES[dtype])
    if limit is not None:
        size = (limit * CASE.head_dim**-0.5) ** 0.5
        with torch.no_grad():
            for x in (inputs.q, inputs.k):
                x.mul_(size / x.abs().max())
    return inputs


def op_with(wrong):
    def op(*tensors, backend, **options):
        if backend == "wrong":
            return wrong(*tensors)
        return diff_attention(*tensors, backend=backend, **options)

    return op


@pytest.mark.parametrize(
    ("dtype", "limit", "name"),
    [(dtype, limit, name) for (dtype, limit), names in NOTICED.items() for name in names],
)
def test_a_planted_error_is_noticed(name, dtype, limit):
    """In every dtype; also where logits are so large that their rounding moves the maps."""
    inputs = make_inputs(dtype, limit)
    with pytest.raises(AssertionError, match=f"backend 'wrong' in {inputs.q.dtype}") as error:
        assert_close_to_reference(op_with(FAULTS[name]), inputs, backend="wrong")
    if name.startswith("gradient"):
        assert name in str(error.value)
        assert "output" not in str(error.value)


@pytest.mark.parametrize(
    "backend", ["reference", "composed", "flash_diff_attn_1", "flash_diff_attn_2"]
)
@pytest.mark.parametrize(("dtype", "limit"), NOTICED)
def test_a_right_backend_passes(dtype, limit, backend):
    assert_close_to_reference(diff_attention, make_inputs(dtype, limit), backend=backend)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_backend_is_noticed(name, dtype):
    with pytest.raises(AssertionError, match="backend 'wrong'"):
        assert_close_to_reference(op_with(BROKEN[name]), make_inputs(dtype, None), backend="wrong")


def test_float32_computed_in_float16_is_noticed():
    def half(q, k, v, lam):
        return diff_attention(q.half(), k.half(), v.half(), lam).float()

    with pytest.raises(AssertionError, match="than rounding explains: output: error"):
        assert_close_to_reference(op_with(half), make_inputs("fp32", None), backend="wrong")


def test_gradients_can_be_left_out():
    inputs = make_diff_attention_inputs(CASE)
    assert_close_to_reference(
        op_with(FAULTS["gradient of k"]), inputs, backend="wrong", gradients=False
    )
    with pytest.raises(AssertionError):
        assert_close_to_reference(
            op_with(FAULTS["maps swapped"]), inputs, backend="wrong", gradients=False
        )


def test_equal_to_rounding():
    exact = torch.ones(3)
    near = exact + torch.tensor([0.0, 3.0, 0.0]) * torch.finfo(torch.float32).eps
    assert_equal_to_rounding(near, exact, steps=3, magnitude=1.0)
    assert_equal_to_rounding(near, exact.double(), steps=3, magnitude=1.0)
    for actual, expected, steps, magnitude in (
        (near, exact, 2, 1.0),
        (near, exact, 3, 0.5),
        (near, exact[:2], 99, 1.0),
        (near[:1] * torch.nan, exact[:1], 99, 1.0),
        (near, exact * torch.inf, 99, 1.0),
    ):
        with pytest.raises(AssertionError):
            assert_equal_to_rounding(actual, expected, steps=steps, magnitude=magnitude)
