"""Small random models of every attention type, and of other families."""

import pytest
import torch
import transformers

from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

SIZES = {"vocab_size": 50, "hidden_size": 32, "initializer_range": 0.3}
LLAMA_SIZES = SIZES | {
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
GPT_SIZES = SIZES | {"n_layer": 3, "n_head": 4}
OTHER_FAMILIES = {
    "llama": ("LlamaForCausalLM", LLAMA_SIZES),
    "diffllama": ("DiffLlamaForCausalLM", LLAMA_SIZES),
    "gpt2": ("GPT2LMHeadModel", GPT_SIZES),
    "mistral": ("MistralForCausalLM", LLAMA_SIZES),
    "gemma2": ("Gemma2ForCausalLM", LLAMA_SIZES | {"head_dim": 8}),
    "bloom": ("BloomForCausalLM", GPT_SIZES),
}


@pytest.fixture(scope="session")
def make_model():
    """``make_model(kind, **changes)``: with weights so large that no map is uniform."""

    def make(kind, **changes):
        torch.manual_seed(1)
        if kind in OTHER_FAMILIES:
            name, sizes = OTHER_FAMILIES[kind]
            model_class = getattr(transformers, name)
            return move_lambda(model_class(model_class.config_class(**sizes | changes)))
        heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
        base = DiffTransformerConfig(
            attention_type="softmax", **SIZES | {"num_hidden_layers": 3} | heads | changes
        )
        return DiffTransformerForCausalLM(base.twin(kind).config)

    return make


def move_lambda(model):
    """Draw λ of DiffLlama clearly off its start."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lambda_" in name:
                parameter.normal_(0.2, 0.3)
    return model


@pytest.fixture(params=ATTENTION_TYPES)
def attention_type(request):
    return request.param


@pytest.fixture(params=[*ATTENTION_TYPES, "llama", "diffllama"])
def network(request, make_model):
    """In float64 and evaluation mode."""
    return make_model(request.param).eval().double()


@pytest.fixture
def input_ids():
    return torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(2))
