"""A small random model of every attention type."""

import pytest
import torch

from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.config.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


@pytest.fixture
def make_model():
    """Weights large enough that no map is uniform."""

    def make(attention_type):
        base = DiffTransformerConfig(
            attention_type="softmax",
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=3,
            num_heads=4,
            num_kv_heads=2,
            head_dim=8,
            initializer_range=0.3,
        )
        torch.manual_seed(1)
        return DiffTransformerForCausalLM(base.twin(attention_type).config)

    return make


@pytest.fixture(params=ATTENTION_TYPES)
def attention_type(request):
    return request.param


@pytest.fixture
def input_ids():
    return torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(2))
