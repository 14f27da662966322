"""What vLLM's Transformers backend asks of a model, without vLLM; test_vllm.py is the real one.

It reads the sources of all modules for the one that calls the attention interface, allocates a
cache by the configuration's head counts, and hands back rows of flat heads.
"""

import inspect
import sys
import types
from importlib.metadata import entry_points

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from diffattn.errors import ConfigError
from diffattn.models.attention.kernels import KernelCall, heads_in_vllm
from diffattn.models.config.attention_types import AttentionType
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.serving import vllm_plugin

ENGINE = "vllm"


@pytest.fixture
def model(attention_type, make_config, build):
    return build(make_config(attention_type, num_hidden_layers=3))


class Engine:
    """Keeps keys and values by layer, as wide as the plugin says; one row of tokens."""

    def __init__(self, config):
        self.heads, *self.shape = heads_in_vllm(config)
        self.kept = [[] for _ in range(config.num_hidden_layers)]
        self.calls = []

    def __call__(self, module, query, key, value, attention_mask, scaling, **kwargs):
        self.calls.append(module.layer_idx)
        tokens = query.shape[-2]
        assert query.shape == (1, self.heads, tokens, self.shape[1])
        flat = [x.transpose(1, 2).reshape(tokens, -1).view(-1, *self.shape) for x in (key, value)]
        self.kept[module.layer_idx].append(flat)
        k, v = (torch.cat(x) for x in zip(*self.kept[module.layer_idx], strict=True))
        k, v = (x.repeat_interleave(self.heads // self.shape[0], 1) for x in (k, v))
        scores = torch.einsum("thd,shd->hts", query[0].transpose(0, 1), k) * scaling
        ahead = torch.ones(tokens, len(k), dtype=torch.bool).triu(len(k) - tokens + 1)
        maps = scores.masked_fill(ahead, -torch.inf).softmax(-1)
        return torch.einsum("hts,shd->thd", maps, v).reshape(tokens, -1), None


def test_an_engine_with_its_cache_gives_the_same_logits(model, monkeypatch):
    ids = torch.randint(50, (1, 12))
    with torch.no_grad():
        expected = model(ids).logits
        engine = Engine(model.config)
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, ENGINE, engine)
        model.set_attn_implementation(ENGINE)
        parts = []
        for start, end in ((0, 7), (7, 8), (8, 12)):
            positions = torch.arange(start, end)[None]
            parts.append(model(ids[:, start:end], position_ids=positions, use_cache=False).logits)
    assert engine.calls == [0, 1, 2] * 3  # one call per layer and pass
    assert engine.shape == list(model.config.cached_kv_shape)  # K1, K2 and V once
    actual = torch.cat(parts, 1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * expected.abs().max())


def test_a_cache_with_heads_of_another_width_is_refused(model, monkeypatch):
    config = model.config
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, ENGINE, Engine(config))
    model.set_attn_implementation(ENGINE)
    width = 3 * config.head_dim
    model.model.layers[0].kernel.attn = types.SimpleNamespace(head_size=width)
    with pytest.raises(ConfigError, match="Leave the plugin 'diffattn' switched on"):
        model(torch.randint(50, (1, 12)), use_cache=False)


def test_each_layer_has_one_module_with_the_call_in_its_source(model):
    """vLLM looks for both lines by their syntax, and for the scale among the arguments."""
    callers = []
    for module in model.modules():
        source = inspect.getsource(type(module).forward)
        if "= ALL_ATTENTION_FUNCTIONS.get_interface(" in source:
            assert source.count(" = attention(") == 1
            assert "scaling=self.scaling" in source
            assert module.config is model.config
            callers.append(module)
    assert [type(module) for module in callers] == [KernelCall] * 3
    assert [module.layer_idx for module in callers] == [0, 1, 2]


def test_the_plugin_registers_every_architecture(monkeypatch, model):
    known = {}
    vllm = types.ModuleType("vllm")
    vllm.ModelRegistry = types.SimpleNamespace(register_model=known.__setitem__)
    sizes = types.ModuleType("vllm.transformers_utils.model_arch_config_convertor")
    sizes.ModelArchConfigConvertorBase = types.SimpleNamespace
    sizes.MODEL_ARCH_CONFIG_CONVERTORS = {}
    utils = types.ModuleType("vllm.transformers_utils")
    utils.model_arch_config_convertor = sizes
    for module in (vllm, utils, sizes):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    (plugin,) = entry_points(group="vllm.general_plugins", name="diffattn")
    assert plugin.load() is vllm_plugin.register
    vllm_plugin.register()
    backend = "vllm.model_executor.models.transformers"
    assert known == {
        "DiffTransformerForCausalLM": f"{backend}:TransformersForCausalLM",
        "DiffTransformerForSequenceClassification": (
            f"{backend}:TransformersForSequenceClassification"
        ),
    }
    convertor = sizes.MODEL_ARCH_CONFIG_CONVERTORS[model.config.model_type](
        hf_text_config=model.config
    )
    assert heads_in_vllm(model.config) == (
        convertor.get_total_num_attention_heads(),
        convertor.get_total_num_kv_heads(),
        convertor.get_head_size(),
    )


def test_facts_can_be_sent_to_another_process_with_their_class():
    """vLLM sends a folder's code by value, and an instance of it may arrive before its methods:
    a class with slots sets its state by one of them."""
    assert "__setstate__" not in vars(AttentionType)


def test_a_configuration_can_be_sent_by_value(make_config):
    """What vLLM does with a folder's code: every global that its methods read goes along."""
    cloudpickle = pytest.importorskip("cloudpickle", reason="sends code by value, as vLLM does")
    config = make_config("diff")
    module = sys.modules[DiffTransformerConfig.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        sent = cloudpickle.dumps(config)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert b"is_there" in sent  # a variable of a method: with the code, not by its name
