"""Contenders on a paged cache: one query per row, keys and values in pages of a pool.

T copies the softmax twin's pages into one tensor for PyTorch's attention, which cannot read pages.
TC reads the pages in place, with the kernel of ``triton`` and one map. The DIFF contenders include
two backends of ``diff_attention`` on the same keys without pages, which show the cost of pages.
"""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from diffattn.lab.benchmark.checking import Exact
from diffattn.lab.benchmark.config import DENSE, DIFF, PAGED_SOFTMAX, SDPA, TC, Case, T
from diffattn.lab.benchmark.contenders import (
    Contender,
    Qkv,
    cached,
    contender,
    draw_inputs,
    facts_of,
    refuses,
    sdpa_of,
    softmax_twin,
)
from diffattn.ops.attention import diff_attention, gathered_pages, paged_decode
from diffattn.ops.backends import custom_op
from diffattn.ops.inputs import backends
from diffattn.ops.inputs.masking import AttentionMask

PAGE_SIZE = 64
"""Tokens per page."""


def paged_contenders(case: Case, only: tuple[str, ...] = ()) -> list[Contender]:
    """Every contender on one paged cache, T first, or T and ``only`` these."""
    inputs, table = draw_inputs(case), _scattered(case)
    lengths = torch.full(table.shape[:1], case.shape["S"], dtype=torch.int32, device=case.device)
    pages = {name: _in_pages(getattr(inputs, name), table, case.shape["page"]) for name in "kv"}
    in_pages = replace(inputs, k=pages["k"], v=pages["v"])
    dense = replace(inputs, k=cached(inputs.k), v=cached(inputs.v))
    twin, pool = softmax_twin(inputs), softmax_twin(in_pages)
    softmax, diff = Exact.softmax(twin), Exact(inputs)
    paged = {backend.name: backend for backend in backends.table("paged_decode")}
    by_name = {backend.name: backend for backend in backends.table("diff_attention")}
    mask = AttentionMask(kv_lengths=lengths)
    q, k, v = (x.detach() for x in (twin[0], *pool[1:]))
    scale = q.shape[-1] ** -0.5
    gathered = partial(_gathered_softmax, twin[0], pool, table, case.shape["S"])
    kernel = partial(custom_op.paged_softmax, q, k, v, table, scale=scale, mask=mask)
    decode = partial(paged_decode, *in_pages.tensors().values(), block_table=table)
    attend = partial(diff_attention, *dense.tensors().values())
    refusal = refuses(case, paged["triton"], facts_of(case, twin[0], *pool[1:]))
    contenders = [
        contender(case, softmax, SDPA, "sdpa (gathered pages)", gathered, role=T, technique=SDPA),
        contender(case, softmax, PAGED_SOFTMAX, "triton", kernel, role=TC, refusal=refusal),
    ]
    runs = [
        (name, backend, partial(decode, kv_lengths=lengths, backend=name), in_pages)
        for name, backend in paged.items()
    ]
    runs += [
        (name, by_name[known], partial(attend, backend=known), dense)
        for name, known in DENSE.items()
    ]
    for name, backend, run, cache in runs:
        refusal = refuses(case, backend, facts_of(case, inputs.q, cache.k, cache.v))
        contenders.append(
            contender(case, diff, name, backend.name, run, role=DIFF, refusal=refusal)
        )
    return [c for c in contenders if c.role == T or not only or c.name in only]


def _scattered(case: Case) -> Tensor:
    """The block table ``[B, pages per row]``: each page of the pool once, in random order."""
    pages = -(-case.shape["S"] // case.shape["page"])
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(case.shape["B"] * pages, generator=generator)
    return order.view(case.shape["B"], pages).to(case.device, torch.int32)


def _in_pages(x: Tensor, table: Tensor, page: int) -> Tensor:
    """``[B, S, ...]`` cut into pages ``[pages, page, ...]``; a row's last page is padded with 0."""
    rows = x.new_zeros(table.shape[0], table.shape[1] * page, *x.shape[2:])
    rows[:, : x.shape[1]] = x.detach()
    pool = torch.empty_like(rows).view(table.numel(), page, *x.shape[2:])
    pool[table.flatten().long()] = rows.view_as(pool)
    return pool


def _gathered_softmax(q: Tensor, pool: Qkv, table: Tensor, num_keys: int) -> Tensor:
    k, v = (gathered_pages(x, table)[:, :num_keys] for x in pool[1:])
    return sdpa_of((q, k, v))
