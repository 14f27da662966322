"""Decoding against pages without a kernel: what it means, and what it refuses."""

import re

import pytest
import torch

from diffattn.errors import BackendError, ShapeError
from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention
from diffattn.ops.paged_decode import gathered_pages, paged_decode
from ops.paged_inputs import pages_of, scattered

GQA = {"num_kv_heads": 2}
V2 = {"shared_keys": True, "value_dim": 8}
CASES = [
    OpCase(name="v1-T1", num_queries=1, num_keys=13, **GQA),
    OpCase(name="v1-T20-lengths", num_queries=20, num_keys=31, kv_lengths=(31, 9), **GQA),
    OpCase(name="v2-T3-window", num_queries=3, num_keys=17, window=4, kv_lengths=(0, 16), **V2),
    OpCase(name="v2-noncausal", num_queries=3, num_keys=17, causal=False, lam_axes="bth", **V2),
]


@pytest.mark.parametrize("page_size", [1, 5, 16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gathered_pages_match_the_reference(case, page_size, device):
    """Also where nobody wrote: NaN in pages of others and after a sequence's end."""
    inputs = make_diff_attention_inputs(case, device=device)
    run = pages_of(page_size, fill=torch.nan)
    assert_close_to_reference(run, inputs, backend="gathered", gradients=False)


def test_the_definition_is_attention_to_the_gathered_pages(device):
    """Gradients too, which add up where sequences share a page."""
    case = OpCase(name="", num_queries=3, num_keys=12, **GQA)
    q, k, v, lam = (
        make_diff_attention_inputs(case, dtype=torch.float64, device=device).tensors().values()
    )
    k_pages, table = scattered(k.detach(), 4)
    v_pages, _ = scattered(v.detach(), 4)
    leaves = [x.requires_grad_() for x in (q, k_pages, v_pages, lam)]
    table[1, :2] = table[0, :2]
    lengths = torch.tensor([12, 10], dtype=torch.int32, device=device)
    out = paged_decode(*leaves, block_table=table, kv_lengths=lengths, backend="reference")
    k = torch.stack([torch.cat([k_pages[i] for i in row]) for row in table.tolist()])
    v = torch.stack([torch.cat([v_pages[i] for i in row]) for row in table.tolist()])
    assert torch.equal(gathered_pages(k_pages, table), k)
    expected = diff_attention(q, k, v, lam, kv_lengths=lengths, backend="reference")
    assert torch.equal(out, expected)
    grads = [torch.autograd.grad(x.square().sum(), leaves) for x in (out, expected)]
    for got, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-14)  # another order of sums


def test_auto_on_a_cpu_gathers_and_equals_the_reference():
    inputs = make_diff_attention_inputs(CASES[1])
    tensors = inputs.tensors()
    auto, gathered = (
        pages_of(16)(**tensors, backend=name, **inputs.options) for name in ("auto", "gathered")
    )
    assert torch.equal(auto, gathered)


@pytest.mark.parametrize("shape", [(0, 1), (2, 0)], ids=["no-sequence", "no-query"])
def test_nothing_to_compute(shape):
    batch, num_queries = shape
    lengths, table = (torch.zeros(x, dtype=torch.int32) for x in ((batch,), (batch, 2)))
    out = paged_decode(
        torch.zeros(batch, num_queries, 2, 2, 8), torch.zeros(3, 4, 2, 2, 8),
        torch.zeros(3, 4, 2, 16), torch.tensor(0.5), kv_lengths=lengths, block_table=table,
    )  # fmt: skip
    assert out.shape == (batch, num_queries, 2, 16)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


Q, K, V = torch.randn(2, 1, 4, 2, 8), torch.randn(5, 4, 2, 2, 8), torch.randn(5, 4, 2, 16)
POOL = "pages, page size, Hkv"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": Q[0]}, "q must be [B, T, H, 2, D] or in groups [B, T, G, R + 1, D], "
         "got [1, 4, 2, 8]."),
        ({"k_pages": K[..., :4]}, f"k_pages must be [{POOL}, 2, D] or [{POOL}, D] with D = 8, got "
         "[5, 4, 2, 2, 4]."),
        ({"k_pages": K[:0]}, f"k_pages must be [{POOL}, 2, D] or [{POOL}, D] with D = 8, got "
         "[0, 4, 2, 2, 8]."),
        ({"v_pages": V[:3]}, f"v_pages must be [{POOL}, Dv] with [{POOL}] = [5, 4, 2], got "
         "[3, 4, 2, 16]."),
        ({"v_pages": V.half()}, "v_pages must have q's dtype torch.float32, got torch.float16."),
        ({"k_pages": K.mT.contiguous().mT}, "k_pages must have neighbouring channels beside each "
         "other, got stride 2."),
        ({"q": Q[:, :, :3]}, "the number of key/value heads must divide the 3 query heads, got 2. "
         "Heads are on axis 2, tokens on axis 1: [B, T, H, ...]."),
        ({"block_table": torch.zeros(2, 3, dtype=torch.int64)},
         "block_table must be int32 [B, table pages] with B = 2, got torch.int64 [2, 3]."),
        ({"block_table": torch.zeros(3, 3, dtype=torch.int32)},
         "block_table must be int32 [B, table pages] with B = 2, got torch.int32 [3, 3]."),
        ({"block_table": [[0]]}, "block_table must be a tensor, got "),
        ({"block_table": torch.tensor([[0, 1, 2], [3, 5, 9]], dtype=torch.int32)},
         "block_table must name pages in [0, 5), got 5 for sequence 1."),
        ({"block_table": torch.tensor([[0, 1, -1], [3, 4, 2]], dtype=torch.int32)},
         "block_table must name pages in [0, 5), got -1 for sequence 0."),
        ({"kv_lengths": int32(3)}, "kv_lengths must be torch.int32 [2], got torch.int32 [1]."),
        ({"kv_lengths": int32(3, 13)}, "kv_lengths must lie in [0, 12], the reach of 3 pages of 4, "
         "got 3 to 13."),
        ({"kv_lengths": int32(-1, 3)}, "kv_lengths must lie in [0, 12], the reach of 3 pages of 4, "
         "got -1 to 3."),
        ({"window": 0}, "window must be an integer of 1 or more tokens, got 0."),
        ({"lam": torch.zeros(3)}, "lam must be broadcastable to [B, T, H] = [2, 1, 4], got [3]."),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(change, message):
    arguments = {"q": Q, "k_pages": K, "v_pages": V, "lam": torch.tensor(0.3)}
    arguments |= {"block_table": torch.tensor([[0, 1, 2], [3, 4, 0]], dtype=torch.int32)}
    arguments |= {"kv_lengths": int32(12, 7)} | change
    with pytest.raises(ShapeError, match="^paged_decode: " + re.escape(message)):
        paged_decode(**arguments)


def test_entries_past_a_sequences_end_may_say_anything():
    table = torch.tensor([[0, 1, 2], [3, 4, 99]], dtype=torch.int32)
    arguments = {"lam": torch.tensor(0.3), "kv_lengths": int32(12, 8)}
    out = paged_decode(Q, K, V, block_table=table, **arguments)
    table[1, 2] = 0
    assert torch.equal(out, paged_decode(Q, K, V, block_table=table, **arguments))


def test_a_named_backend_of_pages_never_falls_back():
    table, lengths = torch.zeros(2, 3, dtype=torch.int32), int32(12, 7)
    with pytest.raises(BackendError, match=r"backend 'triton' needs .* Usable here: reference, ga"):
        paged_decode(
            Q, K, V, torch.tensor(0.3), block_table=table, kv_lengths=lengths, backend="triton"
        )
