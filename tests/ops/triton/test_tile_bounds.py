"""Which tiles a kernel visits, and which of them unmasked, against the mask written out."""

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from diffattn.ops.inputs.masking import AttentionMask
from diffattn.ops.triton import launch
from diffattn.ops.triton.tiles import keys_of_block, query_bounds

BLOCK_M, BLOCK_N = 4, 8


@triton.jit
def _bounds_kernel(
    p_out, p_first, p_last, p_begin, p_end, p_before, num_queries, num_keys,
    CAUSAL: tl.constexpr, RANGES: tl.constexpr, PADDING: tl.constexpr, BY_KEYS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The four bounds of every block of queries, or of keys."""
    i_block = tl.program_id(0)
    if BY_KEYS:
        bounds = query_bounds(
            p_begin, p_end, p_before, i_block * BLOCK_N, num_queries, num_keys, CAUSAL, RANGES,
            PADDING, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    else:
        _, _, start, full, edge, stop = keys_of_block(
            p_first, p_last, p_before, i_block * BLOCK_M, num_queries, num_keys, CAUSAL, RANGES,
            PADDING, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        bounds = (start, full, edge, stop)
    for i in tl.static_range(4):
        tl.store(p_out + 4 * i_block + i, bounds[i])


def bounds_of(mask, num_queries, num_keys, by_keys):
    """start, full, edge, stop of every block; the mask of one batch row."""
    q, k = torch.zeros(1, num_queries), torch.zeros(1, num_keys)
    seen = launch.key_mask(q, k, mask, gradient=True)
    num_blocks = triton.cdiv(num_keys, BLOCK_N) if by_keys else triton.cdiv(num_queries, BLOCK_M)
    out = torch.zeros(num_blocks, 4, dtype=torch.int32)
    pointers = (seen.first, seen.last, seen.begin, seen.end, seen.before)
    _bounds_kernel[(num_blocks,)](out, *pointers, num_queries, num_keys, **seen.flags,
                                  BY_KEYS=by_keys, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N)  # fmt: skip
    return out.tolist()


def hole(num_keys, *gap):
    real = torch.ones(1, num_keys, dtype=torch.bool)
    real[:, slice(*gap)] = False
    return real


def mask_cases():
    borders = torch.tensor([0, 3, 3, 20, 40], dtype=torch.int32)
    yield "causal", 40, 40, AttentionMask()
    yield "T<S", 13, 41, AttentionMask()
    yield "T>S", 41, 13, AttentionMask()
    yield "cross", 9, 30, AttentionMask(causal=False)
    for window in (1, 7, 8, 9, 16, 17, 33):
        yield f"window-{window}", 40, 43, AttentionMask(window=window)
    yield "packed", 40, 40, AttentionMask(cu_seqlens=borders)
    yield "packed-noncausal", 40, 40, AttentionMask(causal=False, cu_seqlens=borders)
    for length in (0, 5, 32):
        lengths = torch.tensor([length], dtype=torch.int32)
        yield f"length-{length}", 11, 40, AttentionMask(kv_lengths=lengths)
    for name, gap in {"left": (0, 9), "aligned-left": (0, 8), "right": (30, 40), "hole": (17, 18),
                      "none": (0, 0), "all": (0, 40)}.items():  # fmt: skip
        padding = hole(40, *gap)
        yield f"padding-{name}", 40, 40, AttentionMask(key_padding_mask=padding)
        yield f"padding-{name}-full", 21, 40, AttentionMask(False, None, padding)
        yield f"padding-{name}-window", 21, 40, AttentionMask(True, 19, padding)


CASES = list(mask_cases())


@pytest.mark.parametrize("by_keys", [False, True], ids=["keys-of-queries", "queries-of-keys"])
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_tiles_between_the_bounds(case, by_keys):
    """No pair that is seen lies outside, none that is hidden in the unmasked middle; and the
    middle leaves out no full tile, but beside a hole in the padding."""
    name, num_queries, num_keys, mask = case
    device = torch.device("cpu")
    seen = mask.visible_keys(num_queries, num_keys, device=device)
    seen = torch.ones(1, 1, 1, dtype=bool) if seen is None else seen
    seen = seen.expand(1, num_queries, num_keys)[0]
    block, step = (BLOCK_N, BLOCK_M) if by_keys else (BLOCK_M, BLOCK_N)
    seen = seen.T if by_keys else seen  # [rows of a block, what the loop goes over]
    length = seen.shape[1]
    num_full = 0
    for i, (start, full, edge, stop) in enumerate(bounds_of(mask, num_queries, num_keys, by_keys)):
        rows = seen[i * block : (i + 1) * block]
        assert start % step == 0
        assert full % step == 0 or full == stop
        visited = torch.zeros(length, dtype=torch.bool)
        for first, last in ((start, full), (full, edge), (edge, stop)):
            for tile in range(first, last, step):  # as the loops of a kernel
                assert not visited[tile : tile + step].any()
                visited[tile : tile + step] = True
        assert not rows[:, ~visited].any()
        assert rows[:, full:edge].all()
        ragged = by_keys and len(rows) < block
        if "hole" in name or ragged:
            continue
        last_tile = length if by_keys else length // step * step
        whole = [tile for tile in range(0, last_tile, step) if rows[:, tile : tile + step].all()]
        in_the_middle = [tile for tile in whole if full <= tile < edge]
        assert in_the_middle == whole
        num_full += len(whole)
    if name in ("causal", "window-33", "packed", "padding-left", "padding-none-full"):
        assert num_full
