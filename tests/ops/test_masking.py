"""Which key a query sees, row by row, and the softmax over what it sees."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from diffattn.ops.inputs.masking import AttentionMask, masked_softmax, query_ranges

CPU = torch.device("cpu")


def pattern(mask):
    """Rows of ``x`` (seen) and ``.`` (hidden), one list per batch row."""
    return [["".join(".x"[int(seen)] for seen in row) for row in rows] for rows in mask]


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def bools(*rows):
    return torch.tensor([[letter == "x" for letter in row] for row in rows])


@pytest.mark.parametrize(
    ("sizes", "options", "expected"),
    [
        ((3, 3), {}, [["x..", "xx.", "xxx"]]),
        ((2, 4), {}, [["xxx.", "xxxx"]]),  # the last query is the last key
        ((4, 2), {}, [["..", "..", "x.", "xx"]]),
        ((4, 4), {"window": 2}, [["x...", "xx..", ".xx.", "..xx"]]),
        ((2, 3), {"kv_lengths": int32(0, 1)}, [["...", "..."], ["...", "x.."]]),
        ((2, 2), {"key_padding_mask": bools(".x", "x.")}, [["..", ".x"], ["x.", "x."]]),
        ((5, 5), {"cu_seqlens": int32(0, 2, 2, 5)},
         [["x....", "xx...", "..x..", "..xx.", "..xxx"]]),
        ((4, 4), {"cu_seqlens": int32(0, 1, 4), "window": 2, "key_padding_mask": bools("xx.x")},
         [["x...", ".x..", ".x..", "...x"]]),
    ],
)  # fmt: skip
def test_visible_keys(sizes, options, expected):
    mask = AttentionMask(**options).visible_keys(*sizes, device=CPU)
    assert mask.dtype == torch.bool
    assert pattern(mask) == expected


def test_no_mask_where_every_query_sees_every_key():
    assert AttentionMask(causal=False).visible_keys(3, 5, device=CPU) is None
    assert AttentionMask().visible_keys(1, 5, device=CPU) is None  # one query at the end


DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masked_softmax_is_wide_and_zero_where_hidden(dtype):
    """Whatever the hidden logits are, infinite and NaN included."""
    logits = torch.randn(3, 4, dtype=dtype, requires_grad=True)
    visible = bools("xx..", "....", "xxxx")
    wide = logits.detach().to(torch.promote_types(dtype, torch.float32))
    assert torch.equal(masked_softmax(logits, None), wide.softmax(-1))
    weights = masked_softmax(logits, visible)
    assert weights.dtype == wide.dtype
    assert torch.equal(weights[0, :2], wide[0, :2].softmax(-1))
    assert torch.equal(weights[2], wide[2].softmax(-1))
    assert (weights[~visible] == 0).all()
    for garbage in (torch.nan, torch.inf, -torch.inf):
        assert torch.equal(masked_softmax(logits.masked_fill(~visible, garbage), visible), weights)
    weights.square().sum().backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[~visible] == 0).all()
    assert (logits.grad[2] != 0).all()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 3])
def test_lengths_that_nobody_looked_at_are_cut(causal, window):
    """As on a device, where a look would wait for it: no key outside of the tensors is named."""

    def masked(*lengths):
        mask = AttentionMask(causal, window, kv_lengths=int32(*lengths))
        return (
            mask.visible_keys(4, 5, device=CPU),
            *mask.key_ranges(4, 5, device=CPU),
            *mask.without_unseen(4, torch.ones(4, 5, 1, 1)),
        )

    wild = masked(6, 2**31 - 1, -1, -(2**31))
    for got, cut in zip(wild, masked(5, 5, 0, 0), strict=True):
        assert torch.equal(got, cut)


LENGTHS = [(1, 1), (1, 9), (5, 9), (9, 5), (9, 9)]
RANGES = [
    (num_queries, num_keys, {"causal": causal, "window": window, **more})
    for (num_queries, num_keys), causal, window, more in product(
        LENGTHS,
        [True, False],
        [None, 1, 3, 20],
        [{}, {"kv_lengths": (0, 1)}, {"kv_lengths": (1, 5)},
         {"cu_seqlens": (0, 3, 3, 9)}, {"cu_seqlens": (0, 9)},
         {"cu_seqlens": (0, 3, 6)}, {"cu_seqlens": (0, 3, 12)}],  # as on a device: nobody looked
    )
    if max(more.get("kv_lengths", (0,))) <= num_keys
    and ("cu_seqlens" not in more or (num_queries, num_keys) == (9, 9))
]  # fmt: skip


@pytest.mark.parametrize(("num_queries", "num_keys", "options"), RANGES)
def test_ranges_say_the_same_as_the_mask(num_queries, num_keys, options):
    """``key_ranges`` is ``visible_keys``; ``query_ranges`` leaves no visible pair out."""
    options = {
        name: torch.tensor(value, dtype=torch.int32) if isinstance(value, tuple) else value
        for name, value in options.items()
    }
    options = AttentionMask(**options)
    mask = options.visible_keys(num_queries, num_keys, device=CPU)
    first, last = options.key_ranges(num_queries, num_keys, device=CPU)
    keys = torch.arange(num_keys)
    inside = (first[..., None] <= keys) & (keys < last[..., None])
    mask = torch.ones(1, 1, num_keys, dtype=torch.bool) if mask is None else mask
    assert torch.equal(inside, mask.expand_as(inside))
    assert (first.diff(dim=1) >= 0).all()
    assert (last.diff(dim=1) >= 0).all()
    begin, end = query_ranges(first, last, num_keys)
    queries = torch.arange(num_queries)[:, None]
    seen = (begin[:, None] <= queries) & (queries < end[:, None])
    assert (seen | ~inside).all()
    if num_queries == num_keys and options.causal and replace(options, window=None).at_most_causal:
        assert torch.equal(begin[0], keys.int())  # nor more than needed
