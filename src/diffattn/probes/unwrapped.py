"""The model inside the wrappers of adapters and compilers."""

from typing import Any

from diffattn.errors import ConfigError
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


def unwrapped(network: Any) -> Any:
    """The model inside a wrapper of ``torch.compile`` or PEFT.

    Its class decides how attention is read. A wrapper has the model's attributes but not its
    class, so a wrapped DiffTransformer would be read as a softmax model. Adapters within the
    layers, such as LoRA, stay there.

    Args:
        network: A causal language model, by itself, in a ``PeftModel`` or compiled.

    Raises:
        ConfigError: An adapter adds virtual tokens (prompt learning), which the inner model does
            not have; or the configuration is one of ours and the class is not.
    """
    while True:
        inner = getattr(network, "_orig_mod", None)  # of torch.compile
        if inner is None and hasattr(type(network), "get_base_model"):  # of peft
            adapter = getattr(network, "active_peft_config", None)
            if getattr(adapter, "is_prompt_learning", False):
                raise ConfigError(
                    "maps: an adapter must act within the layers, got tokens before every text "
                    f"({type(adapter).__name__})."
                )
            inner = network.get_base_model()
        if inner is None:
            break
        network = inner
    is_expected = isinstance(network, DiffTransformerForCausalLM)
    if network.config.model_type == DiffTransformerConfig.model_type and not is_expected:
        raise ConfigError(
            f"maps: a model of type {network.config.model_type!r} must be a "
            f"DiffTransformerForCausalLM, got {type(network).__name__}."
        )
    return network
