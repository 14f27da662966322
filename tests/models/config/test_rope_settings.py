"""Rotary parameters: what transformers takes is taken, what it only logs is refused."""

import pytest

from diffattn.errors import ConfigError
from diffattn.models.config.settings import check_rope_parameters
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

RIGHT = [
    {"rope_type": "default", "rope_theta": 500.0},
    {"type": "linear", "rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2, "rope_theta": 10_000},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32, "truncate": False},
    {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2] * 4, "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 16},
]  # fmt: skip


@pytest.mark.parametrize("rope", RIGHT, ids=lambda rope: rope["rope_type"])
def test_every_type_builds_and_runs(rope):
    sizes = {"vocab_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_heads": 1}
    config = DiffTransformerConfig(head_dim=8, rope_parameters=rope, **sizes)
    model = DiffTransformerForCausalLM(config)
    assert model.generate(max_new_tokens=2, do_sample=False, bos_token_id=1).shape[1] > 1


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ([], "rope_parameters must be a JSON object, got []"),
        ({"rope_type": "nope"}, "rope_parameters: rope_type must be in {default, linear, "),
        ({"rope_type": "yarn"}, "'yarn' must have factor, got ['rope_type']"),
        ({"rope_theta": 0}, "rope_theta must be a number from 1 to 1e+12, got 0"),
        ({"rope_tehta": 5.0}, "Did you mean 'rope_theta'?"),
        ({"rope_theta": float("nan")}, "rope_theta must be a number"),
        ({"rope_type": "linear", "factor": -1}, "factor must be a number from 1"),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": 1}, "truncate must be true or false"),
        ({"rope_type": "longrope", "short_factor": [1], "long_factor": [1]}, "a list of 4"),
        ({**RIGHT[-1], "original_max_position_embeddings": 1.5}, "must be a whole number from 1"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be a number from 1 to 1"),
    ],
    ids=str,
)
def test_impossible_parameters_are_refused(rope, message):
    with pytest.raises(ConfigError) as caught:
        check_rope_parameters("here", rope, head_dim=8)
    assert message in str(caught.value)
