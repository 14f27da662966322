"""Windows that are read some at a time, so that reading needs no more memory than training."""

from collections.abc import Iterator

from torch import Tensor


def pieces(
    input_ids: Tensor, position_ids: Tensor | None, at_once: int | None
) -> Iterator[tuple[float, Tensor, Tensor | None]]:
    """Neighbouring windows, and which share of all they are.

    Args:
        input_ids: int64 ``[B, T]``.
        position_ids: int64 ``[B, T]`` or ``None``.
        at_once: Windows of a piece; the last may have fewer. Default: all.

    Yields:
        Share of the windows, in (0, 1], ``input_ids`` and ``position_ids`` of a piece.
    """
    size = at_once or len(input_ids)
    for start in range(0, len(input_ids), size):
        ids = input_ids[start : start + size]
        positions = None if position_ids is None else position_ids[start : start + size]
        yield len(ids) / len(input_ids), ids, positions
