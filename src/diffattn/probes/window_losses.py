"""The loss of every token of text windows."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.ops.inputs.packed_rows import window_inputs
from diffattn.probes.passes import evaluating


@torch.no_grad()
def window_losses(
    model: DiffTransformerForCausalLM, input_ids: Tensor, position_ids: Tensor | None = None
) -> np.ndarray:
    r"""Losses ``[B, T - 1]`` of tokens given their window: :math:`-\log p(x_t \mid x_{<t})`.

    They are float64, in nats, for tokens 1 to T - 1, from one forward pass under the present
    autocast; softmaxes are float32. ``position_ids`` begin again at 0 with each document, to keep
    documents apart. The loss of a document's first token, at position 0, has no meaning.
    """
    inputs = window_inputs(input_ids, position_ids)
    if model.loss_chunk_tokens is not None:
        inputs["labels"] = inputs["input_ids"]
    inputs = {name: value.to(model.device) for name, value in inputs.items()}
    with evaluating(model):
        output = model(**inputs, use_cache=False, skip_logits=True)
    losses = output.token_losses
    if losses is None:
        # Shift and pad the ids: cutting off the logits' last position would copy the logits.
        following = F.pad(input_ids.to(model.device)[:, 1:], (0, 1)).flatten()
        losses = F.cross_entropy(output.logits.float().flatten(0, 1), following, reduction="none")
    return losses.view_as(input_ids)[:, :-1].cpu().double().numpy()
