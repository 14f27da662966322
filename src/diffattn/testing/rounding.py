"""What one rounding can move: the sizes behind every tolerance, see docs/numerics.md."""

import torch
from torch import Tensor

from diffattn.ops.diff_attention import reference
from diffattn.ops.masking import AttentionMask, repeat_heads
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
def term_magnitudes(inputs: DiffAttentionInputs, weights: Tensor) -> dict[str, Tensor]:
    r"""Sizes of what a backend may round on the way to the output and the gradients, in float64.

    .. math:: |A_1 V| + |\lambda A_2 V|,\quad A_i = e^{l_i - c_i}

    O1 and λ O2 may be large where their difference is not, and one rounding of each moves the
    output by eps times their size. The same holds for the terms of a gradient: those of either
    map, of every head that shares a key, and the two of ``dS = A (dP - rowsum(A dP))``, which are
    sums over the channels of V themselves. Weights
    are rounded, and a kernel that keeps c, the logarithm of a row's sum, rounds it in float32,
    which moves the whole row by that times \|c\|. Roundings of different rows are independent:
    they add as squares.

    Args:
        inputs: Arguments of the call.
        weights: ``[B, T, H, Dv]``, gradient of the output.

    Returns:
        Float64, in units of the eps of ``inputs.q``, in the shapes of ``output`` and
        ``gradient of q``, ``k``, ``v``, ``lam``.
    """
    exact = inputs.map_tensors(Tensor.double)
    options = dict(inputs.options)
    scale = options.pop("scale", exact.q.shape[-1] ** -0.5)
    q, k, v, lam = exact.tensors().values()
    map_1, map_2, _ = reference.maps(q, k, lam, scale=scale, mask=AttentionMask(**options))
    maps = torch.stack([map_1, map_2], dim=2)  # [B, H, 2, T, S]
    num_heads, num_kv_heads = q.shape[2], k.shape[2]
    factor = lam.abs().expand(q.shape[:3]).transpose(1, 2)[:, :, None, :, None]
    factor = torch.cat([torch.ones_like(factor), factor], dim=2)  # 1 and |λ|: [B, H, 2, T, 1]
    q = scale * q.permute(0, 2, 3, 1, 4)  # [B, H, 2, T, D]
    keys = k if k.ndim == 5 else k[:, :, :, None]
    keys = repeat_heads(keys, num_heads).permute(0, 2, 3, 1, 4)  # [B, H, 2 or 1, S, D]
    values = repeat_heads(v, num_heads).transpose(1, 2)[:, :, None]  # [B, H, 1, S, Dv]
    weights = weights.double().transpose(1, 2)[:, :, None]  # [B, H, 1, T, Dv]

    logits = q @ keys.transpose(-1, -2)
    if not maps.shape[-1]:  # no keys, nothing to round
        like = [
            inputs.v.new_zeros((*inputs.q.shape[:3], inputs.v.shape[-1])),
            *exact.tensors().values(),
        ]
        names = ["output", *(f"gradient of {name}" for name in exact.tensors())]
        return {
            name: torch.zeros_like(x, dtype=torch.float64)
            for name, x in zip(names, like, strict=True)
        }
    largest, where = maps.max(-1, keepdim=True)
    row_log = (logits.gather(-1, where) - largest.log()).masked_fill(largest == 0, 0.0)  # c
    float32_steps = torch.finfo(torch.float32).eps / torch.finfo(inputs.q.dtype).eps
    moves = 1 + float32_steps * row_log.abs()  # of a weight and its row: [B, H, 2, T, 1]
    outputs = maps @ values  # O1 and O2: [B, H, 2, T, Dv]
    per_key = weights @ values.transpose(-1, -2)  # dP: [B, H, 1, T, S]
    mean = (maps * per_key).sum(-1, keepdim=True)  # [B, H, 2, T, 1]
    per_logit = moves * maps * (per_key - mean)
    # dP and D are sums of Dv products, which may cancel; the products round all the same.
    inner = _add_as_squares(weights, values.mT)  # [B, H, 1, T, S]
    inner = maps * (inner + (weights * outputs).square().sum(-1, keepdim=True).sqrt())

    grad_q = (
        abs(scale)
        * factor
        * (
            ((maps * per_key) @ keys).abs()
            + (mean * (maps @ keys)).abs()
            + (per_logit @ keys).abs()
            + _add_as_squares(inner, keys)
        )
    )  # [B, H, 2, T, D]
    grad_k = (
        ((factor * maps * per_key).mT @ q).abs()
        + ((factor * maps * mean).mT @ q).abs()
        + _add_as_squares((factor * per_logit).mT, q)
        + _add_as_squares((factor * inner).mT, q)
    )  # [B, H, 2, S, D]
    grad_k = grad_k.unflatten(1, (num_kv_heads, -1)).sum(2).permute(0, 3, 1, 2, 4)
    grad_v = ((factor * maps).mT @ weights).abs()
    grad_v = grad_v + _add_as_squares((factor * moves * maps).mT, weights)  # [B, H, 2, S, Dv]
    grad_v = grad_v.sum(2).unflatten(1, (num_kv_heads, -1)).sum(2).transpose(1, 2)
    grad_lam = (weights[:, :, 0] * moves[:, :, 1] * outputs[:, :, 1]).square().sum(-1)  # [B, H, T]
    return {
        "output": (factor * moves * outputs.abs()).sum(2).transpose(1, 2),
        "gradient of q": grad_q.permute(0, 3, 1, 2, 4),
        "gradient of k": grad_k if k.ndim == 5 else grad_k.sum(3),
        "gradient of v": grad_v,
        "gradient of lam": grad_lam.transpose(1, 2).sum_to_size(lam.shape).sqrt(),
    }


def _add_as_squares(x: Tensor, y: Tensor) -> Tensor:
    """A matrix product whose terms have independent signs."""
    return (x.square() @ y.square()).sqrt()
