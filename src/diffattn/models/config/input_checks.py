"""Checks of a model's inputs: always of shapes, of values only in eager code on a CPU."""

from typing import Any

import torch
from torch import Tensor

from diffattn.errors import ShapeError
from diffattn.models.chunked_loss import IGNORED


def checked_ids(name: str, ids: Tensor | None, *, below: int, ignored: bool = False) -> Any:
    """Token ids ``[B, T]`` as int64, which every function of torch accepts; ``None`` stays.

    They must lie in [0, ``below``). With ``ignored`` they may also be
    :data:`~diffattn.models.chunked_loss.IGNORED`.
    """
    if ids is None:
        return None
    if ids.ndim != 2 or not _is_integer(ids):
        _refuse(name, "an integer tensor [B, T]", ids)
    ids = ids.long()
    _check_range(name, ids, below, IGNORED if ignored else None)
    return ids


def checked_labels(
    labels: Tensor, others: dict[str, Any], *, below: int
) -> tuple[Tensor, dict[str, Any]]:
    """Labels as int64, and the other arguments of the loss with ``shift_labels`` as int64."""
    shifted = checked_ids("shift_labels", others.get("shift_labels"), below=below, ignored=True)
    labels = checked_ids("labels", labels, below=below, ignored=True)
    return labels, others | {"shift_labels": shifted}


def check_embeds(embeds: Tensor, hidden_size: int) -> None:
    """Refuse embeddings that are not ``[B, T, hidden_size]``."""
    if embeds.ndim != 3 or embeds.shape[2] != hidden_size:
        _refuse("inputs_embeds", f"[B, T, {hidden_size}]", embeds)


def checked_positions(positions: Tensor | None, batch: int, num_tokens: int) -> Tensor | None:
    """Positions ``[batch or 1, num_tokens]`` as int64; on the CPU negative ones are refused."""
    if positions is None:
        return None
    fits = positions.ndim == 2 and positions.shape[1] == num_tokens
    if not fits or positions.shape[0] not in (1, batch) or not _is_integer(positions):
        _refuse("position_ids", f"an integer tensor [{batch} or 1, {num_tokens}]", positions)
    positions = positions.long()
    _check_range("position_ids", positions, None)
    return positions


def _is_integer(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _check_range(name: str, x: Tensor, below: int | None, besides: int | None = None) -> None:
    """Check the values where reading them waits for no device and breaks no compiled graph."""
    if type(x) is not Tensor or x.device.type != "cpu":  # fake tensors have no values
        return
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return
    try:
        values = x if besides is None else x[x != besides]
        least, most = (int(y) for y in values.aminmax()) if values.numel() else (0, 0)
    except RuntimeError:  # under vmap, where an ordinary-looking tensor has no values
        return
    if least < 0 or (below is not None and most >= below):
        span = "0 or more" if below is None else f"from 0 to {below - 1}"
        got = least if least < 0 else most
        raise ShapeError(f"DiffTransformer: {name} must be {span}, got {got}.")


def _refuse(name: str, must: str, x: Tensor) -> None:
    got = f"{list(x.shape)} of {str(x.dtype).removeprefix('torch.')}"
    raise ShapeError(f"DiffTransformer: {name} must be {must}, got {got}.")
