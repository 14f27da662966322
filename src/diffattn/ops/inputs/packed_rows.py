"""Arguments for a model that reads windows of tokens, with documents kept apart if asked."""

import torch
from torch import Tensor


def window_inputs(input_ids: Tensor, position_ids: Tensor | None = None) -> dict[str, Tensor]:
    """Arguments by which a model reads windows: as a batch, or as one packed row.

    In the packed row the windows follow one another, and no document attends to another one.

    Args:
        input_ids: int64 ``[B, T]``.
        position_ids: int64 ``[B, T]``, 0 at the first token of each window and document, to keep
            documents apart. Default: a window is one document.

    Returns:
        ``input_ids`` ``[B, T]``; with positions ``[1, B * T]``, ``position_ids`` likewise, and
        ``cu_seq_lens_q``, int32 ``[num_docs + 1]``.
    """
    if position_ids is None:
        return {"input_ids": input_ids}
    positions = position_ids.reshape(1, -1)
    starts = (positions[0] == 0).nonzero().flatten()
    borders = torch.cat([starts, starts.new_tensor([positions.shape[1]])]).to(torch.int32)
    row = {"input_ids": input_ids.reshape(1, -1), "position_ids": positions}
    return row | {"cu_seq_lens_q": borders}
