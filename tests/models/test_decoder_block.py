"""The block is Eq. (4) and (5) of the DIFF Transformer paper."""

import torch

from diffattn.models.decoder_block import DiffTransformerBlock


def test_pre_norm_residuals(attention_type, make_config):
    config = make_config(attention_type, attn_implementation="diffattn")
    block = DiffTransformerBlock(config, 0).double()
    x = torch.randn(2, 5, config.hidden_size, dtype=torch.float64)
    y = block.self_attn(block.input_layernorm(x)) + x
    expected = block.mlp(block.post_attention_layernorm(y)) + y
    assert torch.equal(block(x), expected)
