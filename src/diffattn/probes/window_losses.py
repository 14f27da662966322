"""The loss of every token of whole windows."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


@torch.no_grad()
def window_losses(model: DiffTransformerForCausalLM, input_ids: Tensor) -> np.ndarray:
    r"""Losses of tokens given all before them in their window: :math:`-\log p(x_t \mid x_{<t})`.

    One forward pass under the autocast in force; softmaxes in float32.

    Args:
        model: A causal language model, on any device; its mode is kept, and so are its chunks.
        input_ids: int64 ``[B, T]``.

    Returns:
        float64 ``[B, T - 1]`` in nats, of tokens 1 to T - 1.
    """
    was_training = model.training
    ids = input_ids.to(model.device)
    labels = None if model.loss_chunk_tokens is None else ids
    try:
        output = model.eval()(input_ids=ids, labels=labels, use_cache=False)
    finally:
        model.train(was_training)
    if labels is not None:
        return output.token_losses[:, :-1].cpu().double().numpy()
    logits = output.logits
    # Shifting the ids, padded, spares a copy of the logits without their last position.
    following = F.pad(input_ids.to(logits.device)[:, 1:], (0, 1))
    losses = F.cross_entropy(
        logits.float().flatten(0, 1), following.flatten(), reduction="none"
    ).view_as(input_ids)
    return losses[:, :-1].cpu().double().numpy()
