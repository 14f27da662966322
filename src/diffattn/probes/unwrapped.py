"""The model inside the wrappers of adapters and compilers."""

from typing import Any

from diffattn.errors import ConfigError
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


def unwrapped(network: Any) -> Any:
    """The model inside a wrapper of ``torch.compile`` or PEFT.

    Its class decides how attention is read. A wrapper has the model's attributes but not its
    class, so a wrapped DiffTransformer would be read as a softmax model. Adapters within the
    layers, such as LoRA, stay there. Virtual tokens, which the inner model lacks, are refused.
    """
    while (is_compiled := hasattr(network, "_orig_mod")) or hasattr(network, "get_base_model"):
        adapter = getattr(network, "active_peft_config", None)
        if getattr(adapter, "is_prompt_learning", False):
            raise ConfigError(
                "maps: an adapter must act within the layers, got tokens before every text "
                f"({type(adapter).__name__})."
            )
        network = network._orig_mod if is_compiled else network.get_base_model()
    is_expected = isinstance(network, DiffTransformerForCausalLM)
    if network.config.model_type == DiffTransformerConfig.model_type and not is_expected:
        raise ConfigError(
            f"maps: a model of type {network.config.model_type!r} must be a "
            f"DiffTransformerForCausalLM, got {type(network).__name__}."
        )
    return network
