"""Arguments for a model that reads windows of tokens, with documents kept apart if asked."""

import torch
from torch import Tensor


def window_inputs(input_ids: Tensor, position_ids: Tensor | None = None) -> dict[str, Tensor]:
    """Arguments by which a model reads windows, int64 ``[B, T]``: as a batch, or as one packed row.

    Positions ``[B, T]``, 0 at the first token of a window or document, give a row ``[1, B * T]``
    in which no document attends to another one. ``cu_seq_lens_q``, int32 ``[num_docs + 1]``, has
    the borders. Without positions a window is one document.
    """
    if position_ids is None:
        return {"input_ids": input_ids}
    positions = position_ids.reshape(1, -1)
    starts = (positions[0] == 0).nonzero().flatten()
    borders = torch.cat([starts, starts.new_tensor([positions.shape[1]])]).to(torch.int32)
    row = {"input_ids": input_ids.reshape(1, -1), "position_ids": positions}
    return row | {"cu_seq_lens_q": borders}
