"""Convert a Shared DIFF model to the V1 model that computes the same function."""

from copy import deepcopy

import torch

from diffattn.errors import ConfigError
from diffattn.layers.shared_diff_attention import SharedDiffAttention
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


@torch.no_grad()
def fold_shared(model: DiffTransformerForCausalLM) -> DiffTransformerForCausalLM:
    """The V1 model with projections ``W + U Zᵀ``: more weights, fewer products per token.

    It has the device, dtype and generation settings of ``model``, and shares no memory with it.

    Source: arXiv:2501.17900 (projections); arXiv:2410.05258v2 (V1).
    """
    if model.config.attention_type != "shared_diff":
        raise ConfigError(
            f"fold_shared: model must be of Shared DIFF, got {model.config.attention_type!r}."
        )
    settings = model.config.settings() | {"attention_type": "diff", "shared_rank": None}
    config = DiffTransformerConfig(**settings)
    config._attn_implementation = model.config._attn_implementation
    state = {name: value for name, value in model.state_dict().items() if ".self_attn." not in name}
    for index, block in enumerate(model.model.layers):
        layer = block.self_attn
        assert isinstance(layer, SharedDiffAttention)
        of_layer = layer.fold().state_dict()
        state |= {f"model.layers.{index}.self_attn.{name}": of_layer[name] for name in of_layer}
    folded = DiffTransformerForCausalLM(config).to(model.device, model.dtype)
    folded.load_state_dict(state)
    folded.generation_config = deepcopy(model.generation_config)
    folded.loss_chunk_tokens = model.loss_chunk_tokens
    return folded.train(model.training)
