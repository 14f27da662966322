"""The loss of every token of whole windows."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.ops.inputs.packed_rows import window_inputs


@torch.no_grad()
def window_losses(
    model: DiffTransformerForCausalLM, input_ids: Tensor, position_ids: Tensor | None = None
) -> np.ndarray:
    r"""Losses of tokens given all before them in their window: :math:`-\log p(x_t \mid x_{<t})`.

    One forward pass under the autocast in force; softmaxes in float32.

    Args:
        model: A causal language model, on any device; its mode is kept, and so are its chunks.
        input_ids: int64 ``[B, T]``.
        position_ids: int64 ``[B, T]`` that begin again at 0 with each document, to keep documents
            apart. The loss at position 0, of what no token of the document predicts, is not
            meant to be read. Default: a window is one document.

    Returns:
        float64 ``[B, T - 1]`` in nats, of tokens 1 to T - 1.
    """
    was_training = model.training
    try:
        inputs = window_inputs(input_ids, position_ids)
        if model.loss_chunk_tokens is not None:
            inputs["labels"] = inputs["input_ids"]
        inputs = {name: value.to(model.device) for name, value in inputs.items()}
        output = model.eval()(**inputs, use_cache=False)
    finally:
        model.train(was_training)
    if "labels" in inputs:
        return output.token_losses.view_as(input_ids)[:, :-1].cpu().double().numpy()
    logits = output.logits
    # Shifting the ids, padded, spares a copy of the logits without their last position.
    following = F.pad(input_ids.to(logits.device)[:, 1:], (0, 1))
    losses = F.cross_entropy(
        logits.float().flatten(0, 1), following.flatten(), reduction="none"
    ).view_as(input_ids)
    return losses[:, :-1].cpu().double().numpy()
