"""Windows whose documents do not see each other, as one packed row."""

import torch
from torch import Tensor


def packed_row(position_ids: Tensor) -> dict[str, Tensor]:
    """What tells a model of ours to keep the documents of several windows apart.

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
