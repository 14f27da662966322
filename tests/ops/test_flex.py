"""FlexAttention: its refusals, its block masks, masks of the user's own, and compiled code."""

import re

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

import diffattn
from diffattn.errors import BackendError, ShapeError
from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OP_CASES, OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention
from diffattn.ops.backends.flex import blocks, flex_diff_attention
from diffattn.ops.inputs.masking import AttentionMask, masked_softmax, repeat_heads
from ops import backend_cases

V1 = OpCase(name="v1", num_queries=9, num_keys=13, num_kv_heads=2, lam_axes="bth", causal=False)
V2 = OpCase(name="v2", num_queries=9, num_keys=13, num_kv_heads=2, lam_axes="bth", causal=False,
            shared_keys=True, value_dim=8)  # fmt: skip
LONG = (
    OpCase(name="causal", num_queries=300),
    OpCase(name="window", num_queries=300, num_keys=400, window=150),
    OpCase(name="padding", num_queries=300, padding=((140, 0), (0, 130))),
    OpCase(name="cache", num_queries=140, num_keys=520, kv_lengths=(520, 100)),
    OpCase(name="packed", num_queries=520, batch=1, documents=(260, 0, 4, 256)),
    OpCase(name="whole-blocks", num_queries=256, causal=False, kv_lengths=(256, 130)),
)
"""Several blocks of 128 queries and keys: empty, mixed and whole ones."""


def tensors(case, dtype=torch.float32):
    return [x.detach() for x in make_diff_attention_inputs(case, dtype=dtype).tensors().values()]


def raises(error, message):
    return pytest.raises(error, match="^" + re.escape(message) + "$")


def expected_with(q, k, v, lam, visible=None, score_mod=lambda scores: scores):
    """Eq. (1) with a mask ``[B, H, T, S]`` and a change of the scores ``[B, H, 2, T, S]``."""
    keys = repeat_heads(k[:, :, :, None] if k.ndim == 4 else k, q.shape[2])
    scores = (q * q.shape[-1] ** -0.5).permute(0, 2, 3, 1, 4) @ keys.permute(0, 2, 3, 4, 1)
    scores = score_mod(scores)
    maps = masked_softmax(scores, None if visible is None else visible[:, :, None])
    lam = lam.expand(q.shape[:3]).transpose(1, 2)[..., None]
    signed = maps[:, :, 0] - lam * maps[:, :, 1]
    return (signed @ repeat_heads(v, q.shape[2]).transpose(1, 2)).transpose(1, 2)


def assert_same(actual, expected, case):
    backend_cases.assert_same(actual, expected, make_diff_attention_inputs(case))


@pytest.mark.parametrize("case", [V1, V2], ids=str)
def test_any_mask(case):
    """One that depends on the batch row and on the head of the queries, not of the keys."""
    q, k, v, lam = tensors(case)

    def mask_mod(b, h, i, j):
        return ((i + 2 * j + h + 3 * b) % 3 != 0) & (i != 4)

    b, h, i, j = torch.meshgrid(*(torch.arange(n) for n in (2, 4, 9, 13)), indexing="ij")
    actual = flex_diff_attention(q, k, v, lam, mask_mod=mask_mod)
    assert_same(actual, expected_with(q, k, v, lam, mask_mod(b, h, i, j)), case)
    assert (actual[:, 4] == 0).all()  # no key seen
    block_mask = create_block_mask(mask_mod, 2, 4, 9, 13, device="cpu")
    assert torch.equal(flex_diff_attention(q, k, v, lam, block_mask=block_mask), actual)


@pytest.mark.parametrize("case", [V1, V2], ids=str)
def test_any_change_of_the_scores(case):
    """Of both maps alike: a bias by distance, as ALiBi has."""
    q, k, v, lam = tensors(case)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0])

    def score_mod(score, b, h, i, j):
        return score - slopes[h] * (i - j).abs()

    distance = (torch.arange(9)[:, None] - torch.arange(13)).abs()
    bias = slopes[:, None, None, None] * distance
    actual = flex_diff_attention(q, k, v, lam, score_mod=score_mod)
    expected = expected_with(q, k, v, lam, score_mod=lambda scores: scores - bias)
    assert_same(actual, expected, case)


def test_without_a_mask_every_query_sees_every_key():
    q, k, v, lam = tensors(V1)
    wanted = diff_attention(q, k, v, lam, causal=False, scale=0.3, backend="reference")
    assert_same(flex_diff_attention(q, k, v, lam, scale=0.3), wanted, V1)
    assert diffattn.flex_diff_attention is flex_diff_attention


@pytest.mark.parametrize("sizes", [(0, 3, 3), (2, 0, 3), (2, 3, 0)], ids=str)
def test_empty(sizes):
    batch, num_queries, num_keys = sizes
    case = OpCase(name="", batch=batch, num_queries=num_queries, num_keys=num_keys)
    out = flex_diff_attention(*tensors(case))
    assert out.shape == (batch, num_queries, 4, 16)
    assert (out == 0).all()


def test_no_gradient_on_cpu():
    """An error of one line that names the backend, and none where no gradient is asked for."""
    inputs = make_diff_attention_inputs(V1)
    q, k, v, lam = inputs.tensors().values()
    with raises(
        BackendError,
        "flex_diff_attention has no gradient on cpu: FlexAttention's is missing there. "
        "Detach q, k and v or call it under torch.no_grad().",
    ):
        flex_diff_attention(q, k, v, lam)
    with torch.no_grad():
        wanted = flex_diff_attention(q, k, v, lam)
    out = flex_diff_attention(q.detach(), k.detach(), v.detach(), lam)
    assert torch.equal(out, wanted)
    (grad,) = torch.autograd.grad(out.sum(), lam)  # λ stands outside
    ones = torch.zeros_like(lam), torch.ones_like(lam)
    with torch.no_grad():
        first, both = (flex_diff_attention(q, k, v, x) for x in ones)
    assert_same(grad, (both - first).sum(-1), V1)


def test_refusals_in_compiled_code():
    torch.compiler.reset()
    inputs = make_diff_attention_inputs(V1)
    compiled = torch.compile(flex_diff_attention, backend="eager")
    with pytest.raises(BackendError, match="flex_diff_attention has no gradient on cpu"):
        compiled(*inputs.tensors().values())
    torch.compiler.reset()
    wide = tensors(V1, torch.float64)
    whole = torch.compile(flex_diff_attention, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="has no float64 in compiled code"):
        whole(*wide)
    assert_same(compiled(*wide), flex_diff_attention(*wide), V1)  # breaks the graph, runs unfused


def test_bad_masks():
    q, k, v, lam = tensors(V1)

    def everything(b, h, i, j):
        return i >= 0

    good = create_block_mask(everything, None, None, 9, 13, device="cpu")
    where = "flex_diff_attention"
    with raises(ShapeError, f"{where}: needs mask_mod or block_mask, got both."):
        flex_diff_attention(q, k, v, lam, mask_mod=everything, block_mask=good)
    wanted = f"{where}: block_mask must be [B or 1, H or 1, T, S] with [B, H, T, S] = [2, 4, 9, 13]"
    for shape in ((None, None, 13, 9), (3, None, 9, 13), (None, 2, 9, 13)):
        bad = create_block_mask(everything, *shape, device="cpu")
        got = [1 if size is None else size for size in shape]
        with raises(ShapeError, f"{wanted}, got {got}."):
            flex_diff_attention(q, k, v, lam, block_mask=bad)
    with pytest.raises(ShapeError, match="flex_diff_attention: v must be"):
        flex_diff_attention(q, k, v[:, 1:], lam)


@pytest.mark.parametrize("case", [*OP_CASES, *LONG], ids=str)
def test_blocks_hold_what_they_say(case):
    """No visible pair lies outside the blocks computed, no hidden one in a whole block."""
    options = make_diff_attention_inputs(case).options
    options.pop("scale", None)
    num_keys = case.num_keys or case.num_queries
    device = torch.device("cpu")
    mask = AttentionMask(**options)
    visible = mask.visible_keys(case.num_queries, num_keys, device=device)
    shape = (case.batch, case.num_queries, num_keys)
    visible = torch.ones(shape, dtype=torch.bool) if visible is None else visible.expand(shape)
    first, last = mask.key_ranges(case.num_queries, num_keys, device=device)
    some, whole = blocks(first, last, num_keys, mask.key_padding_mask)
    assert not (whole & ~some).any()
    exact = create_block_mask(
        lambda b, h, i, j: visible[b, i, j],
        case.batch, None, case.num_queries, num_keys, device="cpu",
    )  # fmt: skip
    needed = exact.to_dense().bool()
    full = exact.full_kv_num_blocks
    assert not (needed & ~some).any()
    assert torch.equal(whole.sum(-1).expand_as(full).int(), full)
    if case in LONG:
        assert not some.all() or case.name in ("padding", "whole-blocks")


# Inductor itself still uses what PyTorch has deprecated.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.scheduled
@pytest.mark.parametrize(
    ("case", "dtype"),
    [*((case, torch.float32) for case in LONG), (LONG[3], torch.bfloat16), (V1, torch.float16)],
    ids=str,
)
def test_compiled_to_a_fused_kernel(case, dtype):
    """The kernel skips blocks; unfused code does not, so only this test sees their indices."""
    torch.compiler.reset()

    @torch.compile(fullgraph=True)
    def compiled(q, k, v, lam, options):
        return diff_attention(q, k, v, lam, backend="flex", **options)

    def op(*tensors, backend, **options):
        if backend == "compiled":
            return compiled(*tensors, options)
        return diff_attention(*tensors, backend=backend, **options)

    with torch.no_grad():
        inputs = make_diff_attention_inputs(case, dtype=dtype)
        assert_close_to_reference(op, inputs, backend="compiled")
