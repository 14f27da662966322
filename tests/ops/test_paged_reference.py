"""Decoding against pages without a kernel: what it means, and what it refuses."""

import pytest
import torch

from diffattn.errors import BackendError
from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention, gathered_pages, paged_decode
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
