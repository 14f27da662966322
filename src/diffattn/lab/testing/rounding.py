"""Sizes of rounding errors, from which all tolerances follow; see docs/reference/numerics.md."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from diffattn.lab.testing.inputs import DiffAttentionInputs
from diffattn.ops.backends import reference
from diffattn.ops.inputs.masking import AttentionMask, repeat_heads

BLOCK_SCORES = 2**24
"""Most scores of one block. They take 128 MiB in float64; a comparison holds about 20 copies."""


def row_blocks(
    inputs: DiffAttentionInputs, rows: Tensor | None = None, scores: int = BLOCK_SCORES
) -> Iterator[Tensor]:
    """Indices of query rows in blocks of one row or more, int64 ``[R]``.

    ``scores`` is the largest number of entries of a block: both maps, all heads, the whole batch.
    """
    batch, num_queries, num_heads = inputs.q.shape[:3]
    per_row = 2 * batch * num_heads * inputs.k.shape[1]
    rows = torch.arange(num_queries, device=inputs.q.device) if rows is None else rows
    yield from rows.split(max(1, scores // max(1, per_row)))


@torch.no_grad()
def rounding_errors(
    inputs: DiffAttentionInputs,
    grad_output: Tensor,
    *,
    rows: Tensor | None = None,
    scores: int = BLOCK_SCORES,
) -> dict[str, Tensor]:
    r"""Estimate E, how far rounding in the dtype of ``inputs`` moves the output and the gradients.

    E depends on the exact float64 values alone, so it is the same on every machine. The signs of
    roundings are taken as independent, so errors add as squares. A sum of n products is moved by
    the roundings of its terms, of its partial sums and of the result. Partial sums are kept in
    float32 or finer; r is their eps over the eps of the dtype. e_x is the error of x itself:

    .. math::
        E^2(x \cdot y) = \epsilon^2 (1 + n r^2) (\textstyle\sum (x_j y_j)^2 + (x \cdot y)^2)
        + \sum (e_{x,j} y_j)^2

    This rule is applied to the logits, the softmax, the output and the closed form of the
    gradients; docs/reference/numerics.md lists the steps. Errors of logits can be large: in
    bfloat16 a logit of 1e4 is off by up to 40. So the softmax is evaluated at both extremes.

    ``grad_output`` is the gradient of the output, 0 outside ``rows``, int64 ``[R]``, default all.
    Returns E, float64: of ``output`` and ``gradient of q``, ``k``, ``v``, ``lam``, as in ``rows``.
    """
    call = _Call(inputs)
    keys, values = call.keys, call.values
    per_row: dict[str, list[Tensor]] = {x: [] for x in ("output", "q", "mean", "mean_e2")}
    for_keys, for_values = _SumOverRows(), _SumOverRows()
    for some in row_blocks(inputs, rows, scores):
        block = _Block(call, some, grad_output)
        factor, moved, rounded = block.factor, block.moved, block.rounded
        output = call.summed(rounded, values) + moved.square() @ values.square()
        per_logit, per_logit_e2, mean, mean_e2 = _logit_gradients(call, block)
        grad_q = call.summed(per_logit, keys) + per_logit_e2 @ keys.square()
        grad_q = grad_q + mean_e2 * (block.maps @ keys).square()  # D moves the whole row
        # A kernel may store dS times λ and s. They shrink dS, but not the part that underflows.
        least = call.tiny * max(1.0, abs(call.scale)) * factor.abs().clamp(min=1)
        below = least.square() * (block.maps > 0)
        grad_q = (call.scale * factor).square() * grad_q + below @ keys.square()
        for_keys.add(factor * per_logit, factor.square() * per_logit_e2, block.q)
        unscaled = call.q[:, some].permute(0, 2, 3, 1, 4)
        for_keys.e2 = for_keys.e2 + below.mT @ unscaled.square()
        for_values.add(factor * rounded, (factor * moved).square(), block.given)
        per_row["output"].append((factor.square() * output).sum(2).transpose(1, 2))
        per_row["q"].append(grad_q.permute(0, 3, 1, 2, 4))
        per_row["mean"].append(mean[:, :, 1, :, 0].transpose(1, 2))  # [B, R, H]
        per_row["mean_e2"].append(mean_e2[:, :, 1, :, 0].transpose(1, 2))
    whole = {name: torch.cat(parts, dim=1) for name, parts in per_row.items()}
    has_own = call.k.ndim == 5
    lam = at_rows("gradient of lam", call.lam, rows)
    grad_k = for_keys.error_square(call.fine, call.groups, (2,) if has_own else (2, 3))
    squares = {
        "output": whole["output"],
        "gradient of q": whole["q"],
        "gradient of k": grad_k.permute(0, 3, 1, 2, 4) if has_own else grad_k.transpose(1, -2),
        "gradient of v": for_values.error_square(call.fine, call.groups, (2, 3)).transpose(1, 2),
        "gradient of lam": _lambda_square(whole["mean"], whole["mean_e2"], lam, call.fine),
    }
    return {name: call.eps * (x + call.tiny**2).sqrt() for name, x in squares.items()}


class _Call:
    """The exact tensors of one call, and eps of its dtype, the unit of errors. ``fine`` is r."""

    def __init__(self, inputs: DiffAttentionInputs) -> None:
        info = torch.finfo(inputs.q.dtype)
        self.eps, self.tiny = info.eps, info.smallest_normal
        self.fine = min(1.0, torch.finfo(torch.float32).eps / info.eps)  # r
        self.exact, options = inputs.map_tensors(Tensor.double), dict(inputs.options)
        self.q, self.k, v, self.lam = self.exact.tensors().values()
        self.scale = options.pop("scale", self.q.shape[-1] ** -0.5)
        self.mask = AttentionMask(**options)
        num_heads = self.q.shape[2]
        self.groups = (self.k.shape[2], num_heads // self.k.shape[2])
        keys = self.k if self.k.ndim == 5 else self.k[:, :, :, None]
        self.keys = repeat_heads(keys, num_heads).permute(0, 2, 3, 1, 4)  # [B, H, 2 or 1, S, D]
        self.values = repeat_heads(v, num_heads).transpose(1, 2)[:, :, None]  # [B, H, 1, S, Dv]

    def summed(self, x: Tensor, y: Tensor) -> Tensor:
        """E² of x @ y, without the errors that x and y bring along."""
        return (1 + self.fine**2 * x.shape[-1]) * (x.square() @ y.square() + (x @ y).square())


class _Block:
    """R query rows: their maps ``[B, H, 2, R, S]``, and how far rounding moves them."""

    def __init__(self, call: _Call, rows: Tensor, grad_output: Tensor) -> None:
        map_1, map_2, _ = reference.maps(
            call.q, call.k, call.lam, scale=call.scale, mask=call.mask, rows=rows
        )
        self.maps = torch.stack([map_1, map_2], dim=2)
        self.q = call.scale * call.q[:, rows].permute(0, 2, 3, 1, 4)  # times s: [B, H, 2, R, D]
        lam = call.lam.expand(call.q.shape[:3])[:, rows].transpose(1, 2)[:, :, None, :, None]
        self.factor = torch.cat([torch.ones_like(lam), -lam], dim=2)  # [B, H, 2, R, 1]
        # Gradient of the output: [B, H, 1, R, Dv]
        self.given = grad_output[:, rows].double().transpose(1, 2)[:, :, None]
        # A weight that is 0 in float64 counts as masked: its logit is 700 or more below the largest
        # of its row. Rounding moves logits less (in bfloat16, logits up to 1e5).
        logits = (self.q @ call.keys.mT).masked_fill(self.maps == 0, -torch.inf)
        log_sum = logits.logsumexp(-1, keepdim=True)
        log_sum = log_sum.masked_fill(log_sum == -torch.inf, 0.0)
        error = call.eps * call.summed(self.q, call.keys.mT).sqrt()
        self.moved = _softmax_moves(logits, error) / call.eps  # E of a weight by its logits
        # Relative error of a row: one rounding, and r times its log-sum, [B, H, 2, R, 1].
        self.row_moves = (1 + (call.fine * log_sum).square()).sqrt()
        self.rounded = self.row_moves * self.maps.clamp(min=call.tiny)


def _logit_gradients(call: _Call, block: _Block) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dS without the factor −λ ``[B, H, 2, R, S]``, its E²; D ``[B, H, 2, R, 1]``, its E²."""
    maps, moved, given, values = block.maps, block.moved, block.given, call.values
    per_key, per_key_e2 = given @ values.mT, call.summed(given, values.mT)  # dP: [B, H, 1, R, S]
    mean = (maps * per_key).sum(-1, keepdim=True)  # D = rowsum(A dP) = rowsum(dO O)
    centred = per_key - mean
    mean_e2 = ((moved * centred).square() + maps.square() * per_key_e2).sum(-1, keepdim=True)
    by_channel = block.row_moves * given * (maps @ values)
    mean_e2 = mean_e2 + by_channel.square().sum(-1, keepdim=True) + mean.square()
    e2 = (
        (block.rounded * centred).square()
        + (moved * (centred.abs() + call.eps * mean_e2.sqrt())).square()
        + maps.square() * (per_key_e2 + mean_e2)
    )
    return maps * centred, e2, mean, mean_e2


def at_rows(name: str, x: Tensor, rows: Tensor | None) -> Tensor:
    """A result of ``output_and_gradients`` at ``rows``; gradients of k, v, a shared λ: whole."""
    if rows is None or name in ("gradient of k", "gradient of v"):
        return x
    if name != "gradient of lam":
        return x[:, rows]
    return x[..., rows, :] if x.ndim > 1 and x.shape[-2] > 1 else x


def _lambda_square(mean: Tensor, mean_e2: Tensor, lam: Tensor, fine: float) -> Tensor:
    """E² of dλ in the shape of λ, from D of the second map and its E², ``[B, R, H]`` each."""
    total = mean.sum_to_size(lam.shape)
    num_rows = mean.numel() / max(1, lam.numel())
    return mean_e2.sum_to_size(lam.shape) + fine**2 * num_rows * (
        mean.square().sum_to_size(lam.shape) + total.square()
    )


class _SumOverRows:
    """E² of xᵀ @ y, whose rows come block by block."""

    def __init__(self) -> None:
        self.squares: Tensor | float = 0.0
        self.product: Any = 0.0
        self.e2: Tensor | float = 0.0
        self.num_rows = 0

    def add(self, x: Tensor, x_e2: Tensor, y: Tensor) -> None:
        """Add rows ``[..., R, S]`` of x, their E², rows ``[..., R, C]`` of y."""
        self.squares = self.squares + x.mT.square() @ y.square()
        self.product = self.product + x.mT @ y
        self.e2 = self.e2 + x_e2.mT @ y.square()
        self.num_rows += x.shape[-2]

    def error_square(self, fine: float, groups: tuple[int, int], axes: tuple[int, ...]) -> Tensor:
        """E² ``[B, Hkv, ...]``: summed over the query heads of a key/value head and ``axes``."""
        partial = (1 + fine**2 * self.num_rows) * (self.squares + self.product.square())
        value = self.product.unflatten(1, groups).sum(axes)
        square: Tensor = (partial + self.e2).unflatten(1, groups).sum(axes) + value.square()
        return square


def _softmax_moves(logits: Tensor, error: Tensor) -> Tensor:
    """Largest change of each softmax weight if every logit is off by up to ``error``."""
    high, low = logits + error, logits - error

    def others(x: Tensor) -> Tensor:
        """Logarithm of the sum of exp(x) over all keys but this one."""
        whole = x.logsumexp(-1, keepdim=True)
        return whole + torch.log1p(-(x - whole).exp().clamp(max=1))

    weights = logits.softmax(-1)
    most, least = torch.sigmoid(high - others(low)), torch.sigmoid(low - others(high))
    moves = torch.maximum(most - weights, weights - least)
    return moves.masked_fill(logits == -torch.inf, 0.0)  # also the rows that see no key
