"""Windows whose documents do not see each other, as one packed row."""

import torch
from torch import Tensor


def window_inputs(input_ids: Tensor, position_ids: Tensor | None = None) -> dict[str, Tensor]:
    """Arguments by which a model reads windows: side by side, or as one packed row.

    Args:
        input_ids: int64 ``[B, T]``.
        position_ids: int64 ``[B, T]`` that begin again at 0 with each document, to keep documents
            apart. Default: a window is one document.

    Returns:
        ``input_ids`` ``[B, T]``; with positions ``[1, B * T]``, and what :func:`packed_row` gives.
    """
    if position_ids is None:
        return {"input_ids": input_ids}
    return {"input_ids": input_ids.reshape(1, -1), **packed_row(position_ids)}


def packed_row(position_ids: Tensor) -> dict[str, Tensor]:
    """Arguments by which a model keeps the documents of several windows apart.

    Every window, and every document in it, begins where its positions begin at 0. Operators of
    packed rows take one row, so the windows follow one another in it: with ``input_ids`` of
    ``[1, B * T]``.

    Args:
        position_ids: int64 ``[B, T]``, 0 at the first token of each window and document.

    Returns:
        ``position_ids`` ``[1, B * T]``, and ``cu_seq_lens_q``, int32 ``[num_docs + 1]``.
    """
    positions = position_ids.reshape(1, -1)
    starts = (positions[0] == 0).nonzero().flatten()
    end = starts.new_tensor([positions.shape[1]])
    return {"position_ids": positions, "cu_seq_lens_q": torch.cat([starts, end]).to(torch.int32)}
