"""The block is Eq. (4) and (5) of the DIFF Transformer paper."""

import pytest
import torch

from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.config.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.decoder_block import DiffTransformerBlock


@pytest.mark.parametrize("attention_type", ATTENTION_TYPES)
def test_pre_norm_residuals(attention_type):
    config = DiffTransformerConfig(
        attention_type=attention_type,
        hidden_size=32,
        num_heads=2,
        head_dim=8,
        num_hidden_layers=1,
        attn_implementation="diffattn",
    )
    torch.manual_seed(0)
    block = DiffTransformerBlock(config, 0).double()
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    y = block.self_attn(block.input_layernorm(x)) + x
    expected = block.mlp(block.post_attention_layernorm(y)) + y
    actual = block(x)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
