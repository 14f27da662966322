"""Root mean squares of the residual stream and of each block's additions to it."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.probes.passes import evaluating, root_mean_square, run_windows


@torch.no_grad()
def residual_writes(model: DiffTransformerForCausalLM, input_ids: Tensor) -> list[dict[str, float]]:
    r"""Root mean squares over tokens and channels, one row per layer.

    At the start of training attention is nearly uniform and adds about the same vector to every
    token. If this vector is larger than the stream, it hides which token was read.

    Returns per layer ``stream``, the input of the block; ``attention``, the attention output;
    ``between``, the sum of both; and ``feed_forward``, the output of the FFN.
    """
    rows: list[dict[str, float]] = []

    def read(
        name: str, of_input: bool, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> None:
        if name == "stream":
            rows.append({})
        rows[-1][name] = root_mean_square(inputs[0] if of_input else output)

    # The inputs of the two norms are the stream before attention and before the FFN.
    blocks: list[Any] = list(model.model.layers)
    hooks = [
        module.register_forward_hook(partial(read, name, of_input))
        for block in blocks
        for name, module, of_input in (
            ("stream", block.input_layernorm, True),
            ("attention", block.self_attn, False),
            ("between", block.post_attention_layernorm, True),
            ("feed_forward", block.mlp, False),
        )
    ]
    with evaluating(model, *hooks):
        run_windows(model, input_ids)
    return rows
