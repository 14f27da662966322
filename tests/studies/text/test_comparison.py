"""Who is compared, in what order, and how they are matched."""

import json

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.models.accounting import parameter_count
from diffattn.models.attention_types import ATTENTION_TYPES
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.recipes.catalog import recipe
from diffattn.studies.text.comparison import ComparisonConfig
from diffattn.studies.text.reproduce import comparison
from diffattn.studies.workers import worker_count


def parameters_on_meta(config):
    with torch.device("meta"):
        model = DiffTransformerForCausalLM(config)
    return sum(parameter.numel() for parameter in model.parameters())


def test_members_come_seed_by_seed_with_one_name_each():
    members = comparison("laptop", seeds=(3, 1)).members()
    assert [member.config.name for member in members] == [
        f"{name}-seed{seed}" for seed in (3, 1) for name in ATTENTION_TYPES
    ]
    for member in members:
        name, seed = member.config.name.split("-seed")
        assert member.config.model.attention_type == name
        assert (member.config.train.seed, member.config.train.data_seed) == (int(seed), int(seed))


def test_members_differ_in_their_attention_alone():
    members = comparison("laptop", seeds=(0,)).members()
    base = recipe("laptop")
    free = {"attention_type", "num_heads", "num_kv_heads", "intermediate_size", "shared_rank"}
    for member in members:
        assert member.config.train == base.train
        assert member.config.data == base.data
        settings, expected = member.config.model.settings(), base.model.settings()
        assert {key for key in settings if settings[key] != expected[key]} <= free


@pytest.mark.parametrize("match", ["params", "heads", "attention_flops"])
@pytest.mark.parametrize("scale", ["smoke", "laptop", "study"])
def test_stated_differences_are_those_of_the_real_models(scale, match):
    members = comparison(scale, seeds=(0,), match=match).members()
    base = parameters_on_meta(members[0].config.model)
    assert base == parameter_count(recipe(scale).model)
    for member in members:
        model = member.config.model
        difference = parameters_on_meta(model) - base
        assert member.facts["parameter_difference"] == difference
        if match == "params":
            assert abs(difference) <= 3 * model.hidden_size * model.num_hidden_layers
    assert members[0].facts == {"parameter_difference": 0, "flops_difference": 0}


def test_defaults_of_the_scales():
    assert comparison("smoke").seeds == (0,)
    assert comparison("laptop").seeds == comparison("study").seeds == (0, 1, 2)
    assert len(comparison("laptop").members()) == 12
    assert worker_count(None) in (1, 2)


def test_resolved_is_plain_and_changes_with_every_choice():
    variants = [
        comparison("smoke"),
        comparison("smoke", seeds=(1,)),
        comparison("smoke", match="heads"),
        comparison("smoke", settings=["train.num_steps=21"]),
        comparison("laptop"),
    ]
    texts = {json.dumps(config.resolved(), sort_keys=True, allow_nan=False) for config in variants}
    assert len(texts) == len(variants)
    resolved = variants[0].resolved()
    assert json.loads(json.dumps(resolved)) == resolved
    assert resolved["types"] == list(ATTENTION_TYPES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": "smok"}, "Did you mean 'smoke'?"),
        ({"match": "param"}, "Did you mean 'params'?"),
        ({"seeds": ()}, "seeds must be distinct whole numbers, one or more, got []"),
        ({"seeds": (1, 1)}, "seeds must be distinct whole numbers, one or more, got [1, 1]"),
        ({"seeds": ("a",)}, "TrainConfig: seed must be int, got 'a'"),
        ({"seeds": (-1,)}, "TrainConfig: seed must be from 0 to"),
        ({"settings": ["model.num_heads=3"]}, "num_heads of the 'diff' twin must be whole"),
        ({"settings": ["model.attention_type=diff"]}, "base must be a softmax model"),
        ({"settings": ["train.num_step=3"]}, "Did you mean 'train.num_steps'?"),
    ],
    ids=str,
)
def test_impossible_comparisons_are_refused_at_once(options, message):
    with pytest.raises(ConfigError) as error:
        comparison(**{"scale": "smoke"} | options)
    assert message in str(error.value)


def test_a_part_of_the_types_can_be_compared():
    config = ComparisonConfig(
        scale="smoke", base=recipe("smoke"), seeds=(0,), types=("softmax", "diff")
    )
    assert [member.config.name for member in config.members()] == ["softmax-seed0", "diff-seed0"]
    with pytest.raises(ConfigError, match="Did you mean 'diff_v2'"):
        ComparisonConfig(scale="smoke", base=recipe("smoke"), types=("softmax", "diff_v3"))
