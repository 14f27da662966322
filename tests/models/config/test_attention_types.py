"""One row per attention type, and what is derived from it."""

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.models.config.attention_types import ATTENTION, ATTENTION_TYPES
from diffattn.models.config.settings import ModelSettings
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.decoder_block import build_attention

WIDTHS = {"hidden_size": 24, "num_heads": 4, "num_kv_heads": 2, "head_dim": 6}


@pytest.fixture(params=ATTENTION_TYPES)
def row(request):
    return ATTENTION[request.param]


def test_the_row_describes_the_layer(row):
    """Maps, widths and λ as the layer's own tensors show them."""
    config = DiffTransformerConfig(attention_type=row.name, **WIDTHS)
    layer = build_attention(config, 0)
    assert type(layer) is row.layer_class()
    assert type(layer).__name__ == row.layer[1]
    calls = {}

    def attend(q, k, v, lam=None):
        calls.update(q=q, k=k, v=v, lam=lam)
        return torch.zeros(1, 3, 4, v.shape[-1])

    rotation = torch.ones(1, 3, 6), torch.zeros(1, 3, 6)
    layer(torch.randn(1, 3, 24), rotation, attend=attend)
    maps = {name: x.shape[3] if x.ndim == 5 else 1 for name, x in calls.items() if name in "qk"}
    shared = config.group_ratio or 1  # added maps of a group
    assert maps == {"q": row.query_maps + shared - 1, "k": row.key_maps}
    assert calls["v"].shape == (1, 3, 2, row.value_width * 6)
    assert (calls["lam"] is None) == (row.op == "softmax_attention")
    names = dict(layer.named_parameters())
    assert ("lambda_bias.lambda_q1" in names) == row.lambda_vectors
    assert any("lambda" in name and "proj" in name for name in names) == row.lambda_projection
    assert ("q_up" in names) == row.low_rank_maps
    assert ("head_norm.weight" in names) == row.head_norm


def test_settings_are_the_configuration_without_hugging_face(row):
    """The same fields, defaults and refusals; Hugging Face fills in the rotary parameters."""
    settings = ModelSettings(attention_type=row.name, hidden_size=64, num_heads=4)
    config = DiffTransformerConfig(attention_type=row.name, hidden_size=64, num_heads=4)
    rope = {"rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"}}
    assert config.settings() == settings.settings() | rope
    assert list(config.settings()) == list(settings.settings())
    with pytest.raises(ConfigError, match=r"^ModelSettings: num_kv_heads must divide"):
        ModelSettings(attention_type=row.name, num_heads=4, num_kv_heads=3)
