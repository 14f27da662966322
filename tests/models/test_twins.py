"""Matched models: what is equal, what is left over, and what cannot be matched."""

from itertools import permutations

import pytest

from diffattn.errors import ConfigError
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.twins import MATCHES, flops_per_token

PAIRS = list(permutations(ATTENTION_TYPES, 2))
WHOLE_HEADS = [pair for pair in PAIRS if "grouped_diff" not in pair]
"""Pairs whose work in attention whole heads can make equal."""


def attention_flops(config):
    """The part of the FLOPs that grows with the number of keys."""
    return flops_per_token(config, 201) - flops_per_token(config, 1)


@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("layers", [1, 3])
def test_v1_and_softmax_differ_by_six_head_dims_per_layer(make_config, num_kv_heads, layers):
    """λ's four vectors of D and the head norm's 2D; everything else has the same size."""
    original = make_config("diff", num_kv_heads=num_kv_heads, num_hidden_layers=layers)
    for match in ("params", "heads", "attention_flops"):
        result = original.twin("softmax", match=match)
        assert result.parameter_difference == -6 * original.head_dim * layers
        assert result.flops_difference == 0
        assert result.config.num_heads == 2 * original.num_heads
        assert result.config.num_kv_heads == 2 * num_kv_heads
        assert result.config.head_dim == original.head_dim
        assert result.config.intermediate_size == original.intermediate_size
        assert result.config.twin("diff", match=match).config.settings() == original.settings()


@pytest.mark.sampled(one_of=3)
@pytest.mark.parametrize(
    ("kind", "other", "match"),
    [(*pair, match) for match in MATCHES
     for pair in (WHOLE_HEADS if match == "attention_flops" else PAIRS)],
)  # fmt: skip
def test_residuals_are_those_of_built_models(make_config, built_parameters, kind, other, match):
    original = make_config(kind)
    result = original.twin(other, match=match)
    assert result.config.attention_type == other
    built = built_parameters(result.config) - built_parameters(original)
    assert result.parameter_difference == built
    flops = flops_per_token(result.config, training=True) - flops_per_token(original, training=True)
    assert result.flops_difference == flops
    if match == "attention_flops":
        assert attention_flops(result.config) == attention_flops(original)


@pytest.mark.sampled(one_of=2)
@pytest.mark.parametrize("hidden_size", [24, 512])
@pytest.mark.parametrize(("kind", "other"), PAIRS)
def test_params_leaves_less_than_half_a_step_of_the_ffn(make_config, kind, other, hidden_size):
    original = make_config(kind, hidden_size=hidden_size, intermediate_size=1024)
    result = original.twin(other, match="params")
    step = 8 if hidden_size >= 512 else 1  # channels
    if {kind, other} <= {"softmax", "diff"}:
        assert abs(result.parameter_difference) == 6 * original.head_dim * 2
    else:
        assert result.config.intermediate_size % step == 0
        assert abs(result.parameter_difference) <= step * 3 * hidden_size * 2 / 2


def test_grouped_heads_have_the_key_value_heads_of_their_groups(make_config):
    """As many key/value heads as heads become one per group, and stay when the type changes."""
    softmax = make_config("softmax", num_heads=16, num_kv_heads=16)
    grouped = softmax.twin("grouped_diff", "heads").config
    assert (grouped.num_heads, grouped.group_ratio, grouped.num_kv_heads) == (8, 4, 2)
    three = softmax.twin("grouped_diff", group_ratio=2).config
    assert (three.group_ratio, three.num_kv_heads) == (2, 4)
    back = grouped.twin("diff", "heads").config
    assert (back.num_heads, back.group_ratio, back.num_kv_heads) == (8, None, 2)
    assert back.settings().keys() == make_config("diff").settings().keys()
    for config, other in ((softmax, "grouped_diff"), (grouped, "softmax")):
        with pytest.raises(ConfigError, match="needs heads that do not share maps"):
            config.twin(other, "attention_flops")


def test_settings_of_a_type_are_not_copied_to_its_twin(make_config):
    diff = make_config("diff", lambda_init=[0.1, 0.2], head_norm=False, head_norm_eps=1e-3)
    assert diff.twin("shared_diff").config.lambda_init == [0.1, 0.2]
    softmax = diff.twin("softmax").config
    assert softmax.lambda_init is None
    assert softmax.head_norm is None
    assert softmax.head_norm_eps == 1e-3
    assert make_config("diff_v2", lambda_bias=True).twin("softmax").config.lambda_bias is False
    assert make_config("shared_diff").twin("diff").config.shared_rank is None


def test_changes_are_applied_and_counted(make_config, built_parameters):
    original = make_config("diff")
    result = original.twin("shared_diff", shared_rank=3, intermediate_size=50)
    assert (result.config.shared_rank, result.config.intermediate_size) == (3, 50)
    built = built_parameters(result.config) - built_parameters(original)
    assert result.parameter_difference == built
    same = original.twin("diff", head_norm=False)
    assert same.config.settings() == original.settings() | {"head_norm": False}
    assert same.parameter_difference == -2 * 2 * original.head_dim


def test_a_twin_shares_no_state_with_its_original(make_config):
    original = make_config("diff", lambda_init=[0.1, 0.2])
    twin = original.twin("shared_diff").config
    twin.rope_parameters["rope_theta"] = 1.0
    twin.lambda_init[0] = 9.0
    assert original.rope_parameters["rope_theta"] == 10_000.0
    assert original.lambda_init == [0.1, 0.2]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "name"), [(3, 3, "num_heads"), (6, 3, "num_kv_heads")]
)
@pytest.mark.parametrize("kind", ["softmax", "diff_v2"])
def test_odd_heads_cannot_be_halved(make_config, kind, heads, kv_heads, name):
    config = make_config(kind, num_heads=heads, num_kv_heads=kv_heads)
    with pytest.raises(ConfigError, match=f"twin: {name} of the 'diff' twin must be whole, got 3"):
        config.twin("diff")


@pytest.mark.parametrize(
    ("arguments", "changes", "hint"),
    [
        (("softmax", "param"), {}, "'params'"),
        (("shared_diff",), {"shared_ranks": 4}, "'shared_rank'"),
    ],
)
def test_unknown_names_get_a_hint(make_config, arguments, changes, hint):
    with pytest.raises(ConfigError, match=f"Did you mean {hint}\\?"):
        make_config("diff").twin(*arguments, **changes)
