"""The decode kernel through a block table, in Triton's interpreter and on a GPU if there is one."""

from dataclasses import replace
from itertools import cycle

import pytest
import torch

from diffattn.errors import BackendError
from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.attention import paged_decode
from diffattn.ops.backends import custom_op
from diffattn.ops.inputs import backends
from ops.paged_inputs import pages_of, scattered

from .test_decode import CASES as DENSE_CASES
from .test_decode import GQA, V1, V2

pytest.importorskip("triton", reason="the kernels need triton")

PAGE_SIZES = (16, 64, 5, 1, 256, 32)
"""Of one case after the other; pages know no padding."""
CASES = [
    (replace(case, padding=None), size)
    for case, size in zip(DENSE_CASES, cycle(PAGE_SIZES), strict=False)
]


@pytest.mark.sampled(one_of=12)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("case", "page_size"), CASES, ids=[str(case) for case, _ in CASES])
def test_pages_give_what_the_keys_in_a_row_give(case, page_size, dtype, kernel_device):
    """Against the eager definition in float64 on keys that were never paged."""
    inputs = make_diff_attention_inputs(case, dtype=dtype, device=kernel_device)
    assert_close_to_reference(pages_of(page_size), inputs, backend="triton", gradients=False)


@torch.no_grad()
def test_pages_are_read_where_they_lie(device):
    """K and V of several layers in one pool, as continuous batching keeps them; shared pages.

    One kernel: where a key lies changes no rounding, and other pages change nothing.
    """
    case = OpCase(name="", num_queries=2, num_keys=40, **V1, **GQA)
    q, k, v, lam = make_diff_attention_inputs(case, device=device).tensors().values()
    k_pages, table = scattered(k, 8, fill=1e30)
    v_pages, _ = scattered(v, 8, fill=1e30)
    pool = torch.full((len(k_pages), 3, 8, 2, 64), 1e30, device=device)
    pool[:, 1], pool[:, 2] = k_pages.flatten(3), v_pages
    table = table.clone()
    table[1] = table[0]  # the second sequence has the first one's keys
    lengths = torch.tensor([40, 23], dtype=torch.int32, device=device)
    arguments = {"block_table": table, "kv_lengths": lengths}
    own_keys = pool[:, 1].unflatten(-1, (2, 32))
    got = paged_decode(q, own_keys, pool[:, 2], lam, backend="triton", **arguments)
    k, v = k[:1].expand_as(k), v[:1].expand_as(v)
    assert torch.equal(
        got, custom_op.triton_decode(q, k, v, lam, 32**-0.5, True, None, None, lengths)
    )


@torch.no_grad()
def test_a_table_that_nobody_looked_at_reads_no_other_memory(device):
    """The operator itself, as on a GPU: pages outside of the pool are the nearest, lengths cut."""
    case = OpCase(name="", num_queries=1, num_keys=32, **V2)
    q, k, v, lam = make_diff_attention_inputs(case, device=device).tensors().values()
    k_pages, v_pages = (scattered(x, 16)[0] for x in (k, v))
    last = len(k_pages) - 1

    def run(table, lengths):
        table, lengths = (
            torch.tensor(x, dtype=torch.int32, device=device) for x in (table, lengths)
        )
        return custom_op.triton_paged_decode(
            q, k_pages, v_pages, lam, table, lengths, 0.2, True, None
        )

    wild = run([[-1, 2**31 - 1], [-(2**31), 0]], [33, -1])
    assert torch.equal(wild, run([[0, last], [0, 0]], [32, 0]))


def test_opcheck_of_the_paged_operator(device):
    case = replace(CASES[0][0], num_heads=1, num_kv_heads=1, num_keys=20)
    inputs = make_diff_attention_inputs(case, device=device)
    q, k, v, lam = (x.detach() for x in inputs.tensors().values())
    k_pages, table = scattered(k, 16)
    lengths = torch.full((2,), k.shape[1], dtype=torch.int32, device=device)
    arguments = (q, k_pages, scattered(v, 16)[0], lam, table, lengths, 0.2, True, 9)
    torch.library.opcheck(custom_op.triton_paged_decode, arguments)


def test_a_gradient_through_pages_is_refused(device):
    inputs = make_diff_attention_inputs(CASES[0][0], device=device)
    q, k, v, lam = inputs.tensors().values()
    k_pages, table = scattered(k.detach(), 16)
    v_pages, _ = scattered(v.detach(), 16)
    lengths = torch.full((2,), 70, dtype=torch.int32, device=device)
    if device.type == "cpu":
        with pytest.raises(BackendError, match="'triton' has no gradient on cpu"):
            paged_decode(
                q, k_pages, v_pages, lam, block_table=table, kv_lengths=lengths, backend="triton"
            )
    arguments = (q, k_pages, v_pages, lam, table, lengths, 0.2, True, None)
    with pytest.raises(RuntimeError, match=r"no autograd formula was registered"):
        custom_op.triton_paged_decode(*arguments).sum().backward()


def test_auto_takes_the_kernel_where_the_dense_one_is_taken(monkeypatch):
    facts = {"device": "cuda", "dtype": torch.float16, "batch": 4, "num_heads": 8, "num_keys": 16}
    facts |= {"head_dim": 64, "value_dim": 128, "elsewhere": True}

    def chosen(num_queries, **changes):
        inputs = backends.Inputs(num_queries=num_queries, **(facts | changes))
        return backends.resolve("paged_decode", "auto", inputs)

    for dense, taken in (("triton_decode", "triton"), ("composed", "gathered")):
        monkeypatch.setitem(backends._AUTO, "diff_attention", lambda inputs, name=dense: name)
        assert chosen(1) == chosen(16, head_dim=32, value_dim=32) == taken
        assert chosen(17) == chosen(1, head_dim=80) == "gathered"
