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

from diffattn.lab.benchmark.checking import check_diff, check_softmax
from diffattn.lab.benchmark.config import Case
from diffattn.lab.benchmark.contender_names import DENSE, DIFF, PAGED_SOFTMAX, SDPA, TC, T
from diffattn.lab.benchmark.contenders import (
    Contender,
    Gradients,
    SoftmaxInputs,
    cached,
    facts_of,
    interpreted,
    op_case,
    sdpa_of,
)
from diffattn.lab.benchmark.flops import diff_flops, softmax_flops
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
    paged = backends.table("paged_decode")
    (kernel,) = (backend for backend in paged if backend.name == "triton")
    found = [_gathered_softmax(case, inputs, in_pages, table)]
    found.append(_paged_softmax(case, inputs, in_pages, table, kernel))
    found += [_paged(case, inputs, in_pages, table, backend) for backend in paged]
    by_name = {backend.name: backend for backend in backends.table("diff_attention")}
    dense = replace(inputs, k=cached(inputs.k), v=cached(inputs.v))
    for name, backend in DENSE.items():
        run = partial(diff_attention, *dense.tensors().values(), backend=backend)
        found.append(_diff(case, name, by_name[backend], run, dense, (dense.k, dense.v)))
    return [c for c in found if c.role == T or not only or c.name in only]


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
    case: Case, inputs: DiffAttentionInputs, in_pages: DiffAttentionInputs, table: Tensor
) -> Contender:
    twin, pool = SoftmaxInputs.of(inputs), SoftmaxInputs.of(in_pages)
    num_keys = case.shape["S"]

    def run() -> Tensor:
        k, v = (gathered_pages(x, table)[:, :num_keys] for x in (pool.k, pool.v))
        return sdpa_of(replace(twin, k=k, v=v))

    return _softmax(case, SDPA, T, "sdpa (gathered pages)", SDPA, run, twin)


def _paged_softmax(
    case: Case, inputs: DiffAttentionInputs, in_pages: DiffAttentionInputs, table: Tensor,
    backend: backends.Backend,
) -> Contender:  # fmt: skip
    twin, pool = SoftmaxInputs.of(inputs), SoftmaxInputs.of(in_pages)
    q, k, v = (x.detach() for x in (twin.q, pool.k, pool.v))
    run = partial(
        decode_op.paged_softmax, q, k, v, table, scale=q.shape[-1] ** -0.5,
        mask=AttentionMask(kv_lengths=_lengths(case)),
    )  # fmt: skip
    refusal = backend.refuses(facts_of(case, twin.q, pool.k, pool.v)) or interpreted(case, backend)
    return _softmax(case, PAGED_SOFTMAX, TC, backend.name, backend.name, run, twin, refusal)


def _softmax(
    case: Case, name: str, role: str, backend: str, technique: str, run: Any, twin: SoftmaxInputs,
    refusal: str | None = None,
) -> Contender:  # fmt: skip
    leaves = twin.leaves()
    return Contender(
        name=name, role=role, backend=backend, technique=technique, forward=run,
        backward=Gradients(leaves), check=partial(check_softmax, run, leaves), refusal=refusal,
        flops=softmax_flops(
            facts_of(case, *leaves), batch=case.shape["B"], num_heads=twin.q.shape[2],
            mode=case.mode,
        ),
    )  # fmt: skip


def _lengths(case: Case) -> Tensor:
    """Of every row the whole cache."""
    return torch.full((case.shape["B"],), case.shape["S"], dtype=torch.int32).to(case.device)


def _paged(
    case: Case, inputs: DiffAttentionInputs, in_pages: DiffAttentionInputs, table: Tensor,
    backend: backends.Backend,
) -> Contender:  # fmt: skip
    run = partial(
        paged_decode, *in_pages.tensors().values(), block_table=table, kv_lengths=_lengths(case),
        backend=backend.name,
    )  # fmt: skip
    return _diff(case, backend.name, backend, run, inputs, (in_pages.k, in_pages.v))


def _diff(
    case: Case, name: str, backend: backends.Backend, run: Any, inputs: DiffAttentionInputs,
    cache: tuple[Tensor, Tensor],
) -> Contender:  # fmt: skip
    refusal = backend.refuses(facts_of(case, inputs.q, *cache)) or interpreted(case, backend)
    return Contender(
        name=name, role=DIFF, backend=backend.name, technique=name, forward=run,
        backward=Gradients(tuple(inputs.tensors().values())), refusal=refusal,
        check=partial(check_diff, run, inputs),
        flops=diff_flops(
            facts_of(case, inputs.q, inputs.k, inputs.v), backend.name, batch=case.shape["B"],
            num_heads=case.shape["H"], mode=case.mode,
        ),
    )  # fmt: skip
