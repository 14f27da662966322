"""Models whose layers have several attention types: their layers, counts, twins and refusals."""

import pytest
import torch
from transformers import AutoConfig

from diffattn.errors import ConfigError
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.config.settings import ModelSettings
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.models.twins import flops_per_token, parameter_count
from diffattn.probes.activations import layer_lambdas
from model_folders import edit_config

MIXES = [
    "softmax,diff,softmax",
    "diff_v2,softmax,gated_element",
    "shared_diff,diff_v2,grouped_diff",
]


@pytest.fixture(params=MIXES)
def config(request, make_config):
    return make_config(request.param, num_hidden_layers=3)


def test_a_layer_computes_what_it_does_in_a_model_of_its_type(config, build, ids):
    """In float64: logits and the gradient of every weight, bit for bit."""
    model = build(config).double()
    other = build(config).double()
    for layer_idx in range(3):
        alone = DiffTransformerForCausalLM(config.of_layer(layer_idx)).double()
        block = alone.model.layers[layer_idx]
        block.load_state_dict(model.model.layers[layer_idx].state_dict())
        other.model.layers[layer_idx] = block
    results = []
    for network in (model, other):
        network(ids, labels=ids).loss.backward()
        gradients = [x.grad for x in network.parameters()]
        results.append([network(ids).logits.detach(), *gradients])
    for value, expected in zip(*results, strict=True):
        assert torch.equal(value, expected)


def test_counts_are_those_of_the_layers(config, built_parameters):
    assert parameter_count(config) == built_parameters(config)
    for count in (parameter_count, flops_per_token):
        layers = [count(config.of_layer(layer_idx)) for layer_idx in range(3)]
        assert 3 * count(config) == sum(layers)


@pytest.mark.parametrize("kind", [name for name in ATTENTION_TYPES if name != "grouped_diff"])
def test_a_twin_and_back(config, kind, built_parameters):
    result = config.twin(kind, "heads")
    difference = built_parameters(result.config) - built_parameters(config)
    assert result.parameter_difference == difference
    again = result.config.twin(config.attention_type.split(","), "heads").config
    assert parameter_count(again) == parameter_count(config)
    matched = config.twin(kind)
    channel = 3 * 3 * config.hidden_size
    assert abs(matched.parameter_difference) <= channel / 2


def test_a_twin_of_equal_attention_needs_equal_layers(make_config):
    with pytest.raises(ConfigError, match="of equal FLOPs, got softmax, dif"):
        make_config("softmax").twin("softmax,diff", "attention_flops")


def test_one_name_for_all_layers_is_that_name(make_config):
    listed = make_config(["diff", "diff"])
    assert listed.settings() == make_config("diff").settings()
    assert ModelSettings(attention_type=["softmax"] * 12).attention_type == "softmax"


def test_a_folder_keeps_the_types(config, build, ids, tmp_path):
    model = build(config)
    model.save_pretrained(tmp_path)
    loaded = DiffTransformerForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.attention_type == config.attention_type
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    edit_config(tmp_path, attention_type=["softmax", "diff"])
    with pytest.raises(ConfigError, match="must name one type, or one for each of 3 layers, got 2"):
        AutoConfig.from_pretrained(tmp_path)


def test_old_names_are_read(tmp_path, make_config):
    make_config("gated_head").save_pretrained(tmp_path)
    edit_config(tmp_path, attention_type="diff_v2_gate")
    assert AutoConfig.from_pretrained(tmp_path).attention_type == "gated_head"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["diff"] * 11 + ["dif"], "got 'dif'. Did you mean 'diff'"),
        (["diff"] * 11 + [None], "attention_type must be in .*, got "),
        ("diff," * 11, "attention_type must be in .*, got ''"),
    ],
)
def test_bad_types_are_refused_in_one_line(given, message):
    with pytest.raises(ConfigError, match=message) as caught:
        DiffTransformerConfig(attention_type=given)
    assert "\n" not in str(caught.value)


def test_lambda_of_layers_without_one_is_zero(make_config, build, ids):
    lambdas = layer_lambdas(build(make_config("softmax,diff_v2")), ids)
    assert lambdas[0] == 0
    assert 0 < lambdas[1] < 1
    v1 = build(make_config("diff,gated_head"))
    first, second = layer_lambdas(v1, ids)
    assert first == v1.model.layers[0].self_attn.lam().item()
    assert 0 < second < 1


def test_vllm_needs_as_many_heads_in_all_layers(make_config, build, ids):
    model = build(make_config("softmax,diff"))
    kernel = model.model.layers[0].kernel
    with pytest.raises(ConfigError, match="all layers as many heads for vLLM, got 'softmax,diff'"):
        kernel("vllm", None, None, None, None)
