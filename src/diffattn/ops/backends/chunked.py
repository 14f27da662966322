"""Exact attention by chunks of query rows: the CPU path, for differential and softmax attention.

A chunk holds whole rows of both maps. They are subtracted first, so one product with V serves both,
and the matrix products are those of softmax attention. Only the inputs are saved for the backward
pass, which computes each chunk again. See docs/reference/numerics.md.
"""

from typing import Any

import torch
from torch import Tensor

from diffattn.ops.backends.chunk_layout import Problem, groups, product
from diffattn.ops.inputs.masking import CAUSAL, SCHEMA, AttentionMask
from diffattn.ops.inputs.operators import registered


def diff_attention(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    """:func:`diffattn.diff_attention` by chunks; inputs are valid and not empty.

    Source: arXiv:2410.05258v2, Eq. (1).
    """
    k = k if k.ndim == 5 else k[:, :, :, None]
    return _chunked(q, k, v, lam, scale, *mask.flat())


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    """:func:`diffattn.softmax_attention` by the same chunks, with one map instead of two.

    Source: arXiv:1706.03762, Eq. (1).
    """
    return _chunked(q[:, :, :, None], k[:, :, :, None], v, None, scale, *mask.flat())


def _combine(weights: Tensor, lam: Tensor | float | None, *, out: Tensor) -> Tensor:
    """A1 − λ A2 ``[G, R, keys]``, or A1 itself for one map; λ is not rounded to bfloat16."""
    if lam is None:
        return weights[0]
    if isinstance(lam, float):
        return torch.sub(weights[0], weights[1], alpha=lam, out=out)
    # One dtype for all operands is up to 30 times faster, and two bfloat16 hold 16 bits of λ.
    coarse = lam.to(out.dtype)
    torch.addcmul(weights[0], weights[1], coarse, value=-1, out=out)
    if out.dtype == torch.bfloat16:
        out.addcmul_(weights[1], (lam - coarse).to(out.dtype), value=-1)
    return out


# Registered operators: compilers and exporters see one call with known shapes, not its loops.
# Both schemas hold the fields of Problem and of its mask. λ is not yet expanded to [B, T, H].
_SCHEMA = f"Tensor q, Tensor k, Tensor v, Tensor? lam, float scale, {SCHEMA}"


@registered("diffattn::chunked", device_types="cpu", schema=f"({_SCHEMA}) -> Tensor")
def _chunked(*call: Any) -> Tensor:
    problem = _problem(*call)
    out = problem.q.new_empty(*problem.q.shape[:3], problem.v.shape[-1])
    for group in groups(problem):
        for chunk in group.chunks:
            weights = group.weights(group.rows("queries", problem.q, chunk), chunk)
            signed = _combine(weights, group.lam(chunk), out=weights[0])
            rows = group.memory("out", (*signed.shape[:2], out.shape[-1]))
            product(signed, group.values[:, chunk.keys], 1.0, 0.0, rows)
            group.write_rows(out[:, :, :, None], rows, chunk)
    return out


@registered(
    "diffattn::chunked_backward",
    device_types="cpu",
    schema=f"(Tensor grad_out, {_SCHEMA}, bool needs_lambda) -> (Tensor, Tensor, Tensor, Tensor)",
)
def chunked_backward(grad_out: Tensor, *call: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Gradients, with one dP and one dV for both maps; each chunk's maps are computed again.

    .. math:: dP = dO V^\top,\quad dS_1 = A_1 \circ (dP - D_1),\quad
              dS_2 = -\lambda A_2 \circ (dP - D_2),\quad dV = (A_1 - \lambda A_2)^\top dO

    Source: arXiv:2410.05258v2, Appendix G.

    They have the shapes of their tensors; that of λ is empty without ``needs_lambda``.
    """
    *of_problem, needs_lambda = call
    problem = _problem(*of_problem)
    q, scale = problem.q, problem.scale
    wide = torch.promote_types(q.dtype, torch.float32)  # of sums over chunks
    grad_q, grad_k, grad_v = (torch.empty_like(x) for x in (q, problem.k, problem.v))
    grad_lam = torch.empty(q.shape[:3] if needs_lambda else 0, dtype=wide)
    for group in groups(problem):
        values_t = group.values_t()  # [G, Dv, S]
        # Sums are held for one group at a time, to keep memory flat, and transposed, for speed.
        sum_k = group.memory("sum_k", group.keys_t.shape, wide).zero_()  # [maps * G, D, S]
        sum_v = group.memory("sum_v", values_t.shape, wide).zero_()
        for chunk in group.chunks:
            lam = group.lam(chunk)
            queries = group.rows("queries", q, chunk)  # [maps * G, R, D]
            grad = group.rows("grad", grad_out[:, :, :, None], chunk)  # [G, R, Dv]
            weights = group.weights(queries, chunk)  # [maps, G, R, keys]
            shared = group.memory("shared", weights.shape[1:])  # first A1 − λ A2, then dP
            signed = _combine(weights, lam, out=shared)
            group.add_product(sum_v[..., chunk.keys], grad.mT, signed, 1.0)
            product(grad, values_t[..., chunk.keys], 1.0, 0.0, shared)
            if needs_lambda:
                means = group.row_sums(weights[1], shared)  # D2 = rowsum(A2 dP)
                group.write_rows(grad_lam[..., None, None], means.neg_(), chunk)
            for map_weights in weights:  # dS = A (dP − rowsum(A dP)) in place; −λ follows below
                torch._softmax_backward_data(
                    shared, map_weights, -1, shared.dtype, grad_input=map_weights
                )
            grad_scores = weights.flatten(0, 1)  # [maps * G, R, keys]
            grad_queries = group.memory("grad_queries", queries.shape)
            product(grad_scores, group.keys[:, chunk.keys], scale, 0.0, grad_queries)
            if lam is not None:  # −λ once per query instead of once per score
                queries[group.size :].mul_(-lam)
                grad_queries[group.size :].mul_(-lam)
            group.add_product(sum_k[..., chunk.keys], queries.mT, grad_scores, scale)
            group.write_rows(grad_q, grad_queries, chunk)
        group.write_keys(grad_k, sum_k)
        group.write_keys(grad_v[:, :, :, None], sum_v)
    if needs_lambda:
        lam = call[3]  # before it was expanded
        grad_lam = grad_lam.sum_to_size(lam.shape).to(lam.dtype, copy=True)
    return grad_q, grad_k, grad_v, grad_lam


def _problem(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None, scale: float, *mask: Any
) -> Problem:
    lam = None if lam is None else lam.expand(q.shape[:3])
    return Problem(q=q, k=k, v=v, lam=lam, scale=scale, mask=AttentionMask(*mask))


@chunked_backward.register_fake
def _chunked_backward_shape(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    needs_lambda = rest[-1]
    if lam is not None and needs_lambda:
        grad_lam = lam.new_empty(lam.shape)  # contiguous, as the sum over chunks is
    else:
        grad_lam = q.new_empty(0, dtype=torch.promote_types(q.dtype, torch.float32))
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), grad_lam


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, lam, *options, key_padding_mask, kv_lengths, cu_seqlens = inputs
    ctx.save_for_backward(q, k, v, lam, key_padding_mask, kv_lengths, cu_seqlens)
    ctx.options = options


def _differentiate(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, lam, *masks = ctx.saved_tensors
    needs_lambda = ctx.needs_input_grad[3]
    *grads, grad_lam = chunked_backward(grad_out, q, k, v, lam, *ctx.options, *masks, needs_lambda)
    return (*grads, grad_lam if needs_lambda else None, *[None] * 6)


_chunked.register_fake(lambda q, k, v, *rest: q.new_empty(*q.shape[:3], v.shape[-1]))
_chunked.register_autograd(_differentiate, setup_context=_save)
