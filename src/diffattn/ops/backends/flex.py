"""Differential attention on FlexAttention: all masking options, and masks that the user writes."""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diffattn.errors import BackendError, ShapeError, shown
from diffattn.ops.inputs.masking import CAUSAL, AttentionMask, in_own_dtype, in_range, paired
from diffattn.ops.inputs.operators import TRANSFORMS, registered, transformed
from diffattn.ops.inputs.validation import (
    checked_lambda,
    checked_scale,
    validate_queries_keys,
    validate_values,
)

if TYPE_CHECKING:  # importing FlexAttention loads PyTorch's compiler, which takes a second
    from torch.nn.attention.flex_attention import BlockMask

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

_BLOCK = 128  # FlexAttention's own block size
_MIN_WIDTH = 16  # least width of a matrix product in Triton, used by compiled code on a GPU


# PyTorch 2.13: code generation for CPU fails if queries, keys or tensors read by a mask are views,
# or if anything is fused into FlexAttention's kernel. A registered operator prevents both: its
# output is neither a view nor fused.
@registered("diffattn::realized")
def realized(x: Tensor) -> Tensor:
    """A contiguous copy of ``x``, also in compiled code."""
    return x.clone(memory_format=torch.contiguous_format)


realized.register_fake(lambda x: torch.empty_like(x, memory_format=torch.contiguous_format))
realized.register_autograd(lambda ctx, grad: grad)


def flex_diff_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor | float,
    *,
    mask_mod: MaskMod | None = None,
    block_mask: "BlockMask | None" = None,
    score_mod: ScoreMod | None = None,
    scale: float | None = None,
) -> Tensor:
    r"""Differential attention with any mask and any change of the scores, by FlexAttention.

    .. math:: O = (\mathrm{softmax}(f(s Q_1 K_1^\top)) - \lambda\,
              \mathrm{softmax}(f(s Q_2 K_2^\top))) V

    Both maps share one mask and one f. Under ``torch.compile`` the kernel is fused, else all scores
    of one map are held in memory. On CPU there is no gradient with respect to q, k and v.

    Source: arXiv:2410.05258v2, Eq. (1).

    Args:
        q: As in :func:`diffattn.diff_attention`, likewise k, v, λ and scale; compiled code takes no
            float64.
        mask_mod: ``(batch, head, query, key) -> bool``, True where the query sees the key. All
            four are int32 scalars, ``head`` in [0, H). Every call builds a :class:`BlockMask` of
            all batch rows and heads from it. Default: every query sees every key.
        block_mask: A ready :class:`BlockMask` of T queries and S keys, which can be kept from call
            to call, instead of ``mask_mod``.
        score_mod: f, ``(score, batch, head, query, key) -> score``.

    Returns:
        ``[B, T, H, Dv]``, dtype of ``q``. A query that sees no key gets 0.

    Raises:
        ShapeError: An argument is not of the documented kind, shape, dtype, device or range, or
            both masks are given.
        BackendError: FlexAttention cannot run these inputs here.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    where = "flex_diff_attention"
    validate_queries_keys(where, q, k)
    validate_values(where, q, k, v)
    lam, q = checked_lambda(where, q, lam), paired(q)
    scale = checked_scale(where, scale, q)
    _validate_masks(where, q, k, mask_mod, block_mask)
    if score_mod is not None and not callable(score_mod):
        raise ShapeError(f"{where}: score_mod must be a function, got {shown(score_mod)}.")
    if not (q.numel() and k.numel()):
        return q.new_zeros(*q.shape[:3], v.shape[-1])
    if mask_mod is not None:
        batch, num_queries, num_heads = q.shape[:3]
        sizes = (batch, num_heads, num_queries, k.shape[1])
        block_mask = create_block_mask(mask_mod, *sizes, device=str(q.device))
    with in_own_dtype(q.device):
        return _two_maps(where, q, k, v, lam, scale, block_mask, score_mod)


def forward(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    r"""Differential attention by two calls of FlexAttention, with the mask as a ``BlockMask``.

    Source: arXiv:2410.05258v2, Eq. (1).

    Arguments and result as in :func:`diffattn.ops.backends.reference.forward`.
    """
    block_mask = None
    if (mask.causal and q.shape[1] > 1) or not mask.at_most_causal:
        first, last = mask.key_ranges(q.shape[1], k.shape[1], device=q.device)
        block_mask = range_mask(first, last, k.shape[1], mask.key_padding_mask)
    return _two_maps("diff_attention: backend 'flex'", q, k, v, lam, scale, block_mask, None)


def _two_maps(
    where: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    scale: float,
    block_mask: "BlockMask | None",
    score_mod: ScoreMod | None,
) -> Tensor:
    """Two calls of FlexAttention and their difference."""
    device, compiled = q.device.type, torch.compiler.is_compiling()
    # FlexAttention would refuse these inputs with a less clear error.
    needs_gradient = q.requires_grad or k.requires_grad or v.requires_grad
    if device == "cpu" and needs_gradient and torch.is_grad_enabled():
        raise BackendError(
            f"{where} has no gradient on cpu: FlexAttention's is missing there. Detach q, k and v "
            "or call it under torch.no_grad()."
        )
    narrow = min(q.shape[-1], v.shape[-1])
    if compiled and device != "cpu" and narrow < _MIN_WIDTH:
        raise BackendError(
            f"{where} needs head_dim and Dv of {_MIN_WIDTH} or more in compiled code, got {narrow}."
        )
    if compiled and q.dtype == torch.float64:
        raise BackendError(f"{where} has no float64 in compiled code.")
    if transformed(q, k, v, lam):  # FlexAttention refuses some transforms and ignores others
        raise BackendError(f"{where} must be called outside {TRANSFORMS}.")
    dtype = q.dtype
    if not compiled:  # there FlexAttention keeps scores in the input dtype
        q, k, v = in_range(q), in_range(k), in_range(v)
    if not torch.is_grad_enabled():  # FlexAttention checks ``requires_grad`` alone
        q, k, v = q.detach(), k.detach(), v.detach()
    queries = [q_i.transpose(1, 2) for q_i in q.unbind(3)]  # [B, H, T, D]
    keys = [k_i.transpose(1, 2) for k_i in ((k, k) if k.ndim == 4 else k.unbind(3))]
    values = v.transpose(1, 2)
    if device == "cpu" and compiled:
        queries, keys = [realized(x) for x in queries], [realized(x) for x in keys]
    options: dict[str, Any] = {
        "score_mod": score_mod,
        "block_mask": block_mask,
        "scale": float(scale),  # FlexAttention takes no traced number
        "enable_gqa": bool(q.shape[2] != k.shape[2]),
    }
    out_1 = _attend(queries[0], keys[0], values, **options)
    out_2 = _attend(queries[1], keys[1], values, **options)
    return (out_1 - lam.expand(q.shape[:3])[..., None] * out_2).to(dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Softmax attention of one map, ``[B, T, H, Dv]``."""
    from torch.nn.attention.flex_attention import flex_attention

    if q.device.type != "cpu":
        return flex_attention(q, k, v, **options).transpose(1, 2)
    if torch.compiler.is_compiling():
        return realized(flex_attention(q, k, v, **options)).transpose(1, 2)
    with warnings.catch_warnings():
        # On CPU the unfused call is meant, so hide the advice to compile; on a GPU it is right.
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        return flex_attention(q, k, v, **options).transpose(1, 2)


def _validate_masks(
    where: str, q: Tensor, k: Tensor, mask_mod: MaskMod | None, block_mask: "BlockMask | None"
) -> None:
    """Raise ShapeError unless at most one mask is given and it fits."""
    from torch.nn.attention.flex_attention import BlockMask

    if mask_mod is not None and not callable(mask_mod):
        raise ShapeError(f"{where}: mask_mod must be a function, got {shown(mask_mod)}.")
    if block_mask is None:
        return
    if mask_mod is not None:
        raise ShapeError(f"{where}: needs mask_mod or block_mask, got both.")
    if not isinstance(block_mask, BlockMask):
        raise ShapeError(f"{where}: block_mask must be a BlockMask, got {shown(block_mask)}.")
    batch, num_queries, num_heads = q.shape[:3]
    full_shape = (batch, num_heads, num_queries, k.shape[1])
    got = tuple(block_mask.shape)
    if got[2:] != full_shape[2:] or got[0] not in (1, batch) or got[1] not in (1, num_heads):
        raise ShapeError(
            f"{where}: block_mask must be [B or 1, H or 1, T, S] with [B, H, T, S] = "
            f"{list(full_shape)}, got {list(got)}."
        )


def range_mask(
    first: Tensor, last: Tensor, num_keys: int, key_padding_mask: Tensor | None
) -> "BlockMask":
    """Block mask of ``first <= j < last`` and padding, made without a mask of T × S entries."""
    from torch.nn.attention.flex_attention import BlockMask

    num_queries = first.shape[1]
    some, whole = blocks(first, last, num_keys, key_padding_mask)
    if key_padding_mask is not None:
        first = first.expand(key_padding_mask.shape[0], -1)
        last = last.expand(key_padding_mask.shape[0], -1)
    if first.device.type == "cpu" and torch.compiler.is_compiling():
        first, last = realized(first), realized(last)
    alike = first.shape[0] == 1  # all batch rows share one range per query

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row = torch.zeros_like(b) if alike else b
        seen = (j >= first[row, i]) & (j < last[row, i])
        return seen if key_padding_mask is None else seen & key_padding_mask[b, j]

    return BlockMask.from_kv_blocks(
        *_ordered(some & ~whole),
        *_ordered(whole),
        BLOCK_SIZE=_BLOCK,
        mask_mod=mask_mod,
        seq_lengths=(num_queries, num_keys),
    )


def blocks(
    first: Tensor, last: Tensor, num_keys: int, key_padding_mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Blocks that may hold a visible pair, and blocks in which every pair is visible.

    ``first`` and ``last`` never fall along T, so a block's first and last row bound all its rows.
    """
    num_queries = first.shape[1]
    rows = torch.arange(0, num_queries, _BLOCK, device=first.device)
    columns = torch.arange(0, num_keys, _BLOCK, device=first.device)
    ends = (rows + _BLOCK - 1).clamp(max=num_queries - 1)
    some = (first[:, rows, None] < columns + _BLOCK) & (last[:, ends, None] > columns)
    # A block that reaches over the edge is never whole: last is at most S.
    whole = (first[:, ends, None] <= columns) & (last[:, rows, None] >= columns + _BLOCK)
    whole = whole & (rows[:, None] + _BLOCK <= num_queries)
    if key_padding_mask is not None:
        missing = len(columns) * _BLOCK - num_keys
        real = torch.nn.functional.pad(key_padding_mask, (0, missing)).unflatten(1, (-1, _BLOCK))
        some = some & real.any(-1)[:, None]
        whole = whole & real.all(-1)[:, None]
    return some[:, None], (whole & some)[:, None]  # [B or 1, 1, blocks of T, blocks of S]


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """For each block of queries: the number of its key blocks, and all indices, its own first."""
    indices = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), indices.to(torch.int32).contiguous()
