"""Bound how far rounding moves a result: all tolerances follow, see docs/reference/numerics.md."""

from typing import Any

import torch
from torch import Tensor

from diffattn.lab.testing.inputs import DiffAttentionInputs
from diffattn.lab.testing.row_blocks import BLOCK_SCORES, row_blocks
from diffattn.ops.backends import reference
from diffattn.ops.inputs.masking import AttentionMask, repeat_heads


def rounding_steps(inputs: DiffAttentionInputs) -> tuple[float, float]:
    r"""How far float arithmetic may move the output of ``diff_attention``: steps and magnitude.

    .. math:: n = 4 (D + 2) L + 2 S + 8,\quad M = (1 + \max|\lambda|) \max|V|

    Two evaluations in one dtype, in any order of summation, differ by at most n eps M (eps is
    twice the unit roundoff) if no intermediate result is kept in less precision. A logit of D
    products, at most L in absolute value, is off by (D + 1) L roundings; a weight compares it
    with the row's largest (twice that, and 2 L for the difference) and is normalised (that again,
    and S + 3 for the sum); the product with V and the subtraction add S + 5.

    Args:
        inputs: Arguments of the call.

    Returns:
        n and M.
    """
    q, k, v, lam = (x.detach().double().abs() for x in inputs.tensors().values())
    head_dim, num_keys = q.shape[-1], k.shape[1]
    scale = abs(inputs.options.get("scale", head_dim**-0.5))
    largest_logit = max(1.0, float(scale * head_dim * q.max() * k.max()))
    magnitude = float((1 + lam.max()) * v.max())
    return 4 * (head_dim + 2) * largest_logit + 2 * num_keys + 8, magnitude


@torch.no_grad()
def rounding_errors(
    inputs: DiffAttentionInputs, weights: Tensor, *, scores: int = BLOCK_SCORES
) -> dict[str, Tensor]:
    r"""How far rounding in the dtype of ``inputs`` moves the output and the gradients.

    Derived from the exact values alone, in float64: the same on every machine. A sum of n products
    moves by the roundings of its terms, of itself and of its partial sums, which are kept in
    float32 or finer (r is their eps over that of the dtype). The signs of roundings are taken as
    independent, so that they add as squares; e_x is what x itself is off by:

    .. math::

        E^2(x \cdot y) = \epsilon^2 (1 + n r^2) (\textstyle\sum (x_j y_j)^2 + (x \cdot y)^2)
        + \sum (e_{x,j} y_j)^2

    This goes from the logits on through the softmax, the output and the closed form of the
    gradients. A weight is rounded, moves with its row's log-sum, which kernels keep in float32,
    and by as much as a softmax can whose logits are off by E: no first order there, because in
    bfloat16 a logit of 1e4 is known to 40 only. Numbers below the smallest normal one, 6e-5 in
    float16, are rounded as that is, dS with any of its factors λ and s in it, as kernels keep it.

    Args:
        inputs: Arguments of the call.
        weights: ``[B, T, H, Dv]``, gradient of the output.
        scores: Of both maps of all heads, held at once; see :func:`row_blocks`.

    Returns:
        E, float64, in the shapes of ``output`` and ``gradient of q``, ``k``, ``v``, ``lam``.
    """
    eps, tiny = torch.finfo(inputs.q.dtype).eps, torch.finfo(inputs.q.dtype).smallest_normal
    fine = min(1.0, torch.finfo(torch.float32).eps / eps)  # r
    exact = inputs.map_tensors(Tensor.double)
    options = dict(inputs.options)
    scale = options.pop("scale", exact.q.shape[-1] ** -0.5)
    mask = AttentionMask(**options)
    all_q, k, v, all_lam = exact.tensors().values()
    num_heads = all_q.shape[2]
    groups = (k.shape[2], num_heads // k.shape[2])
    keys = k if k.ndim == 5 else k[:, :, :, None]
    keys = repeat_heads(keys, num_heads).permute(0, 2, 3, 1, 4)  # [B, H, 2 or 1, S, D]
    values = repeat_heads(v, num_heads).transpose(1, 2)[:, :, None]  # [B, H, 1, S, Dv]

    def summed(x: Tensor, y: Tensor) -> Tensor:
        """E² of x @ y for exact x and y."""
        return (1 + fine**2 * x.shape[-1]) * (x.square() @ y.square() + (x @ y).square())

    per_row: dict[str, list[Tensor]] = {name: [] for name in ("output", "q", "mean", "mean_off")}
    for_keys, for_values = _SumOverRows(), _SumOverRows()
    # From here on every error is in units of eps.
    for rows in row_blocks(inputs, scores):
        map_1, map_2, _ = reference.maps(all_q, k, all_lam, scale=scale, mask=mask, rows=rows)
        maps = torch.stack([map_1, map_2], dim=2)  # [B, H, 2, R, S]
        q = scale * all_q[:, rows].permute(0, 2, 3, 1, 4)  # [B, H, 2, R, D]
        lam = all_lam.expand(all_q.shape[:3])[:, rows]
        factor = -lam.transpose(1, 2)[:, :, None, :, None]
        factor = torch.cat([torch.ones_like(factor), factor], dim=2)  # 1 and −λ: [B, H, 2, R, 1]
        given = weights[:, rows].double().transpose(1, 2)[:, :, None]  # [B, H, 1, R, Dv]
        # A weight that is 0 in float64 belongs to a logit 700 below its row's largest: further
        # than any moves here.
        logits = (q @ keys.mT).masked_fill(maps == 0, -torch.inf)
        log_sum = logits.logsumexp(-1, keepdim=True)
        log_sum = log_sum.masked_fill(log_sum == -torch.inf, 0.0)
        moved = _softmax_moves(logits, eps * summed(q, keys.mT).sqrt()) / eps
        row_moves = (1 + (fine * log_sum).square()).sqrt()  # [B, H, 2, R, 1]
        rounded = row_moves * maps.clamp(min=tiny)
        output = factor.square() * (summed(rounded, values) + moved.square() @ values.square())

        per_key, per_key_off = given @ values.mT, summed(given, values.mT)  # dP: [B, H, 1, R, S]
        mean = (maps * per_key).sum(-1, keepdim=True)  # D = rowsum(A dP) = rowsum(dO O)
        centred = per_key - mean
        mean_off = ((moved * centred).square() + maps.square() * per_key_off).sum(-1, keepdim=True)
        by_channel = row_moves * given * (maps @ values)
        mean_off = mean_off + by_channel.square().sum(-1, keepdim=True) + mean.square()
        per_logit = maps * centred  # dS: [B, H, 2, R, S]
        per_logit_off = (
            (rounded * centred).square()
            + (moved * (centred.abs() + eps * mean_off.sqrt())).square()
            + maps.square() * (per_key_off + mean_off)
        )
        grad_q = summed(per_logit, keys) + per_logit_off @ keys.square()
        grad_q = grad_q + mean_off * (maps @ keys).square()  # D moves the whole row
        # dS may be kept with λ and s in it, which then make it small but not what underflows of it.
        below = (tiny * max(1.0, abs(scale)) * factor.abs().clamp(min=1)).square() * (maps > 0)
        grad_q = (scale * factor).square() * grad_q + below @ keys.square()
        for_keys.add(factor * per_logit, factor.square() * per_logit_off, q)
        for_keys.off = for_keys.off + below.mT @ all_q[:, rows].permute(0, 2, 3, 1, 4).square()
        for_values.add(factor * rounded, (factor * moved).square(), given)
        per_row["output"].append(output.sum(2).transpose(1, 2))
        per_row["q"].append(grad_q.permute(0, 3, 1, 2, 4))  # of [B, H, 2, R, D]
        per_row["mean"].append(mean[:, :, 1, :, 0].transpose(1, 2))  # [B, R, H]
        per_row["mean_off"].append(mean_off[:, :, 1, :, 0].transpose(1, 2))
    whole = {name: torch.cat(parts, dim=1) for name, parts in per_row.items()}
    grad_k = for_keys.square(fine, groups, (2,) if k.ndim == 5 else (2, 3))
    grad_v = for_values.square(fine, groups, (2, 3))
    lam_shape = all_lam.shape
    total = whole["mean"].sum_to_size(lam_shape)
    num_rows = whole["mean"].numel() / max(1, all_lam.numel())
    grad_lam = whole["mean_off"].sum_to_size(lam_shape) + fine**2 * num_rows * (
        whole["mean"].square().sum_to_size(lam_shape) + total.square()
    )
    squares = {
        "output": whole["output"],
        "gradient of q": whole["q"],
        "gradient of k": grad_k.transpose(1, -2) if k.ndim == 4 else grad_k.permute(0, 3, 1, 2, 4),
        "gradient of v": grad_v.transpose(1, 2),
        "gradient of lam": grad_lam,
    }
    return {name: eps * (x + tiny**2).sqrt() for name, x in squares.items()}


class _SumOverRows:
    """E² of xᵀ @ y, whose rows come block by block."""

    def __init__(self) -> None:
        self.squares: Tensor | float = 0.0
        self.product: Any = 0.0
        self.off: Tensor | float = 0.0
        self.num_rows = 0

    def add(self, x: Tensor, x_off: Tensor, y: Tensor) -> None:
        """Rows ``[..., R, S]`` of x, their E², and rows ``[..., R, C]`` of y."""
        self.squares = self.squares + x.mT.square() @ y.square()
        self.product = self.product + x.mT @ y
        self.off = self.off + x_off.mT @ y.square()
        self.num_rows += x.shape[-2]

    def square(self, fine: float, groups: tuple[int, int], axes: tuple[int, ...]) -> Tensor:
        """Added over the query heads of a key/value head and over ``axes``: ``[B, Hkv, ...]``."""
        partial = (1 + fine**2 * self.num_rows) * (self.squares + self.product.square())
        value = self.product.unflatten(1, groups).sum(axes)
        square: Tensor = (partial + self.off).unflatten(1, groups).sum(axes) + value.square()
        return square


def _softmax_moves(logits: Tensor, off: Tensor) -> Tensor:
    """How far each weight can go if every logit may be off by up to ``off``: its extremes."""
    high, low = logits + off, logits - off

    def others(x: Tensor) -> Tensor:
        """Logarithm of the sum over all keys but this one."""
        whole = x.logsumexp(-1, keepdim=True)
        return whole + torch.log1p(-(x - whole).exp().clamp(max=1))

    weights = logits.softmax(-1)
    most, least = torch.sigmoid(high - others(low)), torch.sigmoid(low - others(high))
    moves = torch.maximum(most - weights, weights - least)
    return moves.masked_fill(logits == -torch.inf, 0.0)  # also the rows that see no key
