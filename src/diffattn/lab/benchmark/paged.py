"""Contenders on a paged cache: one query per row, keys and values in pages of a pool.

T gathers the pages of the softmax twin, which are the same memory, for PyTorch's own call: what a
cache in pages costs a kernel that knows none. TC reads them where they lie, by the kernel of
``triton`` with one map. The differential contenders are the backends of
``paged_decode`` and, for what pages cost at all, decoding from the same keys and values unpaged.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffattn.lab.benchmark.checking import Exact
from diffattn.lab.benchmark.config import Case
from diffattn.lab.benchmark.contender_names import DENSE, PAGED_SOFTMAX, SDPA, TC, T
from diffattn.lab.benchmark.contenders import (
    Contender,
    SoftmaxInputs,
    cached,
    diff_contender,
    facts_of,
    interpreted,
    op_case,
    sdpa_of,
    softmax_contender,
)
from diffattn.lab.testing.inputs import DiffAttentionInputs, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention
from diffattn.ops.backends import decode_op
from diffattn.ops.inputs import backends
from diffattn.ops.inputs.masking import AttentionMask
from diffattn.ops.paged_decode import gathered_pages, paged_decode

PAGE_SIZE = 64
"""Tokens."""


def paged_contenders(case: Case, only: tuple[str, ...] = ()) -> list[Contender]:
    """Every contender on one paged cache, T first.

    Args:
        case: Shape ``B``, ``H``, ``d``, ``N``, ``S`` (cached keys), ``page`` (tokens of one),
            ``attention``.
        only: Names besides T. Default: all.
    """
    inputs = make_diff_attention_inputs(
        op_case(case), dtype=case.torch_dtype, device=case.device, seed=0, drawn_on=case.device
    )
    table = _scattered(case)
    in_pages = replace(
        inputs,
        k=_in_pages(inputs.k, table, case.shape["page"]),
        v=_in_pages(inputs.v, table, case.shape["page"]),
    )
    twin, exact = SoftmaxInputs.from_differential(inputs), Exact.diff(inputs)
    exact_twin = Exact.softmax(twin.leaves())
    pool = SoftmaxInputs.from_differential(in_pages)
    paged = {backend.name: backend for backend in backends.table("paged_decode")}
    run = partial(_gathered_softmax, twin, pool, table, case.shape["S"])
    contenders = [
        softmax_contender(
            case, SDPA, "sdpa (gathered pages)", run, twin, exact_twin, technique=SDPA
        )
    ]
    kernel = paged["triton"]
    q, k, v = (x.detach() for x in (twin.q, pool.k, pool.v))
    run = partial(
        decode_op.paged_softmax,
        *(q, k, v, table),
        scale=q.shape[-1] ** -0.5,
        mask=AttentionMask(kv_lengths=_lengths(case)),
    )
    refusal = kernel.refuses(facts_of(case, twin.q, pool.k, pool.v)) or interpreted(case, kernel)
    contenders.append(
        softmax_contender(
            case, PAGED_SOFTMAX, "triton", run, twin, exact_twin, role=TC, refusal=refusal
        )
    )

    def add(name: str, backend: backends.Backend, run: Any, cache: DiffAttentionInputs) -> None:
        facts = facts_of(case, inputs.q, cache.k, cache.v)
        refusal = backend.refuses(facts) or interpreted(case, backend)
        contenders.append(diff_contender(case, name, backend, run, inputs, exact, refusal))

    tensors, lengths = in_pages.tensors().values(), _lengths(case)
    pages = partial(paged_decode, *tensors, block_table=table, kv_lengths=lengths)
    for name, backend in paged.items():
        add(name, backend, partial(pages, backend=name), in_pages)
    dense = replace(inputs, k=cached(inputs.k), v=cached(inputs.v))
    by_name = {backend.name: backend for backend in backends.table("diff_attention")}
    for name, known in DENSE.items():
        run = partial(diff_attention, *dense.tensors().values(), backend=known)
        add(name, by_name[known], run, dense)
    return [c for c in contenders if c.role == T or not only or c.name in only]


def _scattered(case: Case) -> Tensor:
    """The block table: every page of the pool once, in no order."""
    pages = -(-case.shape["S"] // case.shape["page"])
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(case.shape["B"] * pages, generator=generator)
    return order.view(case.shape["B"], pages).to(case.device, torch.int32)


def _in_pages(x: Tensor, table: Tensor, page: int) -> Tensor:
    """``[B, S, ...]`` cut into pages ``[pages, page size, ...]``, the last of a row with zeros."""
    rows = x.new_zeros(table.shape[0], table.shape[1] * page, *x.shape[2:])
    rows[:, : x.shape[1]] = x.detach()
    pool = torch.empty_like(rows).view(table.numel(), page, *x.shape[2:])
    pool[table.flatten().long()] = rows.view_as(pool)
    return pool


def _gathered_softmax(
    twin: SoftmaxInputs, pool: SoftmaxInputs, table: Tensor, num_keys: int
) -> Tensor:
    k, v = (gathered_pages(x, table)[:, :num_keys] for x in (pool.k, pool.v))
    return sdpa_of(replace(twin, k=k, v=v))


def _lengths(case: Case) -> Tensor:
    """Key lengths: the whole cache for every row."""
    return torch.full((case.shape["B"],), case.shape["S"], dtype=torch.int32).to(case.device)
