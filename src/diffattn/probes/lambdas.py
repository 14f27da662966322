"""λ of every layer of a running model."""

from typing import Any

import torch
from torch import Tensor, nn

from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.ops.inputs.packed_rows import window_inputs
from diffattn.probes.pieces import pieces


@torch.no_grad()
def layer_lambdas(
    model: DiffTransformerForCausalLM,
    input_ids: Tensor,
    position_ids: Tensor | None = None,
    *,
    at_once: int | None = None,
) -> list[float] | None:
    """One λ per layer.

    V1 and Shared DIFF: the layer's λ. V2: its mean over the tokens and heads of ``input_ids``.

    Source: arXiv:2410.05258v2, Eq. (2); DIFF V2 note (January 2026) for V2.

    Args:
        model: A causal language model of ours.
        input_ids: int64 ``[B, T]``, read by V2 only.
        position_ids: int64 ``[B, T]`` that begin again at 0 with each document, to keep documents
            apart. Default: a window is one document.
        at_once: Windows of one forward pass. Default: all.

    Returns:
        One number per layer, or ``None`` where no λ is learned.
    """
    layers: list[Any] = [block.self_attn for block in model.model.layers]
    facts = model.config.attention
    if facts.lambda_vectors:
        return [float(layer.lam()) for layer in layers]
    if not facts.lambda_projection:
        return None
    means: list[float] = []  # of one piece after another

    def read(module: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        means.append(float(layers[0].lambda_of(logits).mean()))

    hooks = [layer.lambda_proj.register_forward_hook(read) for layer in layers]
    found = [0.0] * len(layers)
    was_training = model.training
    try:
        for share, ids, positions in pieces(input_ids, position_ids, at_once):
            inputs = {name: x.to(model.device) for name, x in window_inputs(ids, positions).items()}
            means.clear()
            # Logits of all tokens would be the largest tensor of a whole training run.
            model.eval()(**inputs, use_cache=False, logits_to_keep=1)
            found = [total + share * mean for total, mean in zip(found, means, strict=True)]
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return found
