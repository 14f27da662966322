"""How far rounding moves a result: what every tolerance is made of, see docs/numerics.md."""

import torch
from torch import Tensor

from diffattn.ops.diff_attention import reference
from diffattn.ops.masking import repeat_heads
from diffattn.testing.inputs import DiffAttentionInputs


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
def rounding_errors(inputs: DiffAttentionInputs, weights: Tensor) -> dict[str, Tensor]:
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
    float16, are rounded as that is.

    Args:
        inputs: Arguments of the call.
        weights: ``[B, T, H, Dv]``, gradient of the output.

    Returns:
        E, float64, in the shapes of ``output`` and ``gradient of q``, ``k``, ``v``, ``lam``.
    """
    eps, tiny = torch.finfo(inputs.q.dtype).eps, torch.finfo(inputs.q.dtype).smallest_normal
    fine = min(1.0, torch.finfo(torch.float32).eps / eps)  # r
    exact = inputs.map_tensors(Tensor.double)
    options = dict(inputs.options)
    scale = options.pop("scale", exact.q.shape[-1] ** -0.5)
    q, k, v, lam = exact.tensors().values()
    map_1, map_2, _ = reference.maps(q, k, lam, scale=scale, **options)
    maps = torch.stack([map_1, map_2], dim=2)  # [B, H, 2, T, S]
    num_heads = q.shape[2]
    groups = (k.shape[2], num_heads // k.shape[2])
    factor = -lam.expand(q.shape[:3]).transpose(1, 2)[:, :, None, :, None]
    factor = torch.cat([torch.ones_like(factor), factor], dim=2)  # 1 and −λ: [B, H, 2, T, 1]
    q = scale * q.permute(0, 2, 3, 1, 4)  # [B, H, 2, T, D]
    keys = k if k.ndim == 5 else k[:, :, :, None]
    keys = repeat_heads(keys, num_heads).permute(0, 2, 3, 1, 4)  # [B, H, 2 or 1, S, D]
    values = repeat_heads(v, num_heads).transpose(1, 2)[:, :, None]  # [B, H, 1, S, Dv]
    weights = weights.double().transpose(1, 2)[:, :, None]  # [B, H, 1, T, Dv]

    def summed(x: Tensor, y: Tensor) -> Tensor:
        """E² of x @ y for exact x and y."""
        return (1 + fine**2 * x.shape[-1]) * (x.square() @ y.square() + (x @ y).square())

    # From here on every error is in units of eps. A weight that is 0 in float64 belongs to a logit
    # 700 below its row's largest: further than any moves here.
    logits = (q @ keys.mT).masked_fill(maps == 0, -torch.inf)
    log_sum = logits.logsumexp(-1, keepdim=True)
    log_sum = log_sum.masked_fill(log_sum == -torch.inf, 0.0)
    moved = _softmax_moves(logits, eps * summed(q, keys.mT).sqrt()) / eps
    row_moves = (1 + (fine * log_sum).square()).sqrt()  # [B, H, 2, T, 1]
    rounded = row_moves * maps.clamp(min=tiny)
    output = factor.square() * (summed(rounded, values) + moved.square() @ values.square())

    per_key, per_key_off = weights @ values.mT, summed(weights, values.mT)  # dP: [B, H, 1, T, S]
    mean = (maps * per_key).sum(-1, keepdim=True)  # D = rowsum(A dP) = rowsum(dO O)
    centred = per_key - mean
    mean_off = ((moved * centred).square() + maps.square() * per_key_off).sum(-1, keepdim=True)
    by_channel = row_moves * weights * (maps @ values)
    mean_off = mean_off + by_channel.square().sum(-1, keepdim=True) + mean.square()
    per_logit = maps * centred  # dS: [B, H, 2, T, S]
    per_logit_off = (
        (rounded * centred).square()
        + tiny**2
        + (moved * (centred.abs() + eps * mean_off.sqrt())).square()
        + maps.square() * (per_key_off + mean_off)
    )
    grad_q = summed(per_logit, keys) + per_logit_off @ keys.square()
    grad_q = grad_q + mean_off * (maps @ keys).square()  # D moves the whole row
    grad_q = (scale * factor).square() * grad_q  # [B, H, 2, T, D]

    def joined(x: Tensor, x_off: Tensor, y: Tensor, axes: tuple[int, ...]) -> Tensor:
        """E² of xᵀ @ y, added over the query heads of a key/value head and over ``axes``."""
        square = summed(x.mT, y) + x_off.mT @ y.square()
        value = (x.mT @ y).unflatten(1, groups).sum(axes)
        return square.unflatten(1, groups).sum(axes) + value.square()

    grad_k = joined(
        factor * per_logit, factor.square() * per_logit_off, q, (2,) if k.ndim == 5 else (2, 3)
    )  # [B, Hkv, 2 or none, S, D]
    grad_v = joined(factor * rounded, (factor * moved).square(), weights, (2, 3))
    row_off, row_mean = (x[:, :, 1, :, 0].transpose(1, 2) for x in (mean_off, mean))  # [B, T, H]
    total = row_mean.sum_to_size(lam.shape)
    num_rows = row_mean.numel() / max(1, lam.numel())
    grad_lam = row_off.sum_to_size(lam.shape) + fine**2 * num_rows * (
        row_mean.square().sum_to_size(lam.shape) + total.square()
    )
    squares = {
        "output": output.sum(2).transpose(1, 2),
        "gradient of q": grad_q.permute(0, 3, 1, 2, 4),
        "gradient of k": grad_k.transpose(1, -2) if k.ndim == 4 else grad_k.permute(0, 3, 1, 2, 4),
        "gradient of v": grad_v.transpose(1, 2),
        "gradient of lam": grad_lam,
    }
    return {name: eps * (x + tiny**2).sqrt() for name, x in squares.items()}


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
