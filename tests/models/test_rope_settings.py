"""Every kind of rotary scaling is taken, gives finite angles, and refuses what cannot be."""

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig

KINDS = {
    "default": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 4},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 32, "truncate": False},
    "longrope": {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_finite_logits(make_config, build, kind):
    rope = {"rope_type": kind, "rope_theta": 500.0, **KINDS[kind]}
    model = build(make_config("diff", rope_parameters=rope))
    ids = torch.arange(60)[None] % 61
    with torch.no_grad():
        assert model(ids, position_ids=torch.arange(60)[None] + 100).logits.isfinite().all()


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "yarm"}, "rope_parameters.rope_type must be in .* Did you mean 'yarn'"),
        ({"rope_type": "linear"}, "rope_parameters of 'linear' must hold factor"),
        ({"rope_theta": float("nan")}, "rope_parameters.rope_theta must be a number from 1 to"),
        ({"rope_theta": True}, "rope_parameters.rope_theta must be a number"),
        ({"thetta": 1.0}, "a name in rope_parameters of 'default' must be in"),
        ({"partial_rotary_factor": 0.5}, "rope_parameters.partial_rotary_factor must be 1, got"),
        ({"rope_type": "linear", "factor": 0.5}, "rope_parameters.factor must be a number from 1"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0]},
         "rope_parameters.long_factor must list 4 numbers, head_dim / 2, got 1"),
        ({"rope_type": "yarn", "factor": 2.0, "beta_fast": 1.0, "beta_slow": 2.0},
         "rope_parameters.beta_slow must be below beta_fast = 1.0, got 2.0"),
        ({"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}, "of 'yarn' must be above 1"),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": "no"}, "truncate must be true or false"),
        ({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
         "low_freq_factor must be below high_freq_factor = 4.0"),
        ({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 0}, "must be a whole number from 2 to"),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(make_config, rope, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make_config("diff", rope_parameters=rope)
    assert "\n" not in str(caught.value)


def test_a_short_head_has_no_dynamic_scaling():
    rope = {"rope_type": "dynamic", "factor": 2.0}
    with pytest.raises(ConfigError, match="must have a head_dim of 4 or more, got 2"):
        DiffTransformerConfig(head_dim=2, num_heads=4, hidden_size=16, rope_parameters=rope)
