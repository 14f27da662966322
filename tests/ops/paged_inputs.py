"""The keys and values of a case scattered over pages, and the operator on them."""

from functools import partial

import torch

from diffattn.ops.attention import paged_decode
from diffattn.ops.backends import reference
from diffattn.ops.inputs.masking import AttentionMask


def scattered(x, page_size, *, spare=3, fill=0.0, seed=0):
    """``[B, S, ...]`` to pages in random order among spare ones, and the block table."""
    batch, num_keys = x.shape[:2]
    per_row = -(-num_keys // page_size)
    whole = x.new_full((batch, per_row * page_size, *x.shape[2:]), fill)
    whole[:, :num_keys] = x
    order = torch.randperm(batch * per_row + spare, generator=torch.Generator().manual_seed(seed))
    order = order.to(x.device)
    pages = x.new_full((len(order), page_size, *x.shape[2:]), fill)
    pages[order[: batch * per_row]] = whole.reshape(batch * per_row, page_size, *x.shape[2:])
    return pages, order[: batch * per_row].view(batch, per_row).to(torch.int32)


@torch.no_grad()
def paged(q, k, v, lam, *, backend, page_size, op=paged_decode, fill=0.0, **options):
    """The shape of ``diff_attention`` for :func:`assert_close_to_reference`.

    The oracle is the eager definition on keys that were never paged.
    """
    lengths = options.pop("kv_lengths", None)
    if lengths is None:
        lengths = torch.full((q.shape[0],), k.shape[1], dtype=torch.int32, device=q.device)
    if backend == "reference":
        scale = options.pop("scale", q.shape[-1] ** -0.5)
        mask = AttentionMask(kv_lengths=lengths, **options)
        return reference.forward(q, k, v, lam, scale=scale, mask=mask)
    k_pages, table = scattered(k, page_size, fill=fill)
    v_pages, _ = scattered(v, page_size, fill=fill)
    return op(
        q, k_pages, v_pages, lam, block_table=table, kv_lengths=lengths, backend=backend, **options
    )


def pages_of(page_size, **changes):
    """:func:`paged` with its page size chosen."""
    return partial(paged, page_size=page_size, **changes)
