"""Facts of a model tell apart whatever would answer otherwise, and nothing else."""

import copy
import json

import accelerate
import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from diffattn.errors import ConfigError
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


def ours(**settings):
    torch.manual_seed(0)
    return DiffTransformerForCausalLM(
        DiffTransformerConfig(
            vocab_size=320, hidden_size=16, num_hidden_layers=2, num_heads=2, head_dim=8,
            intermediate_size=16, max_position_embeddings=64, **settings,
        )
    )  # fmt: skip


def llama(**settings):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64, **settings,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def changed(before, after):
    return {key for key in before | after if before.get(key) != after.get(key)}


ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 6e5}}


@pytest.mark.parametrize("settings", [ROPE, {"lambda_init": 0.1}], ids=str)
def test_a_setting_that_no_weight_shows(tokenizer, settings):
    before = LanguageModel(ours(), tokenizer).facts()
    assert changed(before, LanguageModel(ours(**settings), tokenizer).facts()) == {"config"}


@pytest.mark.parametrize("make", [ours, llama])
def test_a_model_has_the_same_facts_wherever_it_lies(tokenizer, tmp_path, make):
    network = make()
    before = LanguageModel(network, tokenizer).facts()
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    after = LanguageModel.load(str(tmp_path), device="cpu", dtype="float32").facts()
    assert changed(before, after) <= {"path", "label"}
    wide = LanguageModel.load(str(tmp_path), device="cpu", dtype="bfloat16").facts()
    assert changed(after, wide) == {"dtype", "weights"}


def test_a_tokenizer_of_the_same_entries(tokenizer):
    network = llama()
    before = LanguageModel(network, tokenizer)
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    definition["model"]["merges"] = definition["model"]["merges"][:3]
    other = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(definition)),
        bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token,
    )  # fmt: skip
    after = LanguageModel(network, other)
    assert before.encode("the city") != after.encode("the city")
    assert changed(before.facts(), after.facts()) == {"tokenizer_hash"}
    before.encode("text", special=True)
    before.tokenizer(["a", "the city"], padding=True)
    assert before.facts() == LanguageModel(network, tokenizer).facts()


def test_a_tokenizer_without_a_backend_has_no_hash(tokenizer):
    class Slow:
        bos_token_id, eos_token_id = 0, 0

        def get_vocab(self):
            return {"a": 0}

    assert LanguageModel(llama(), Slow()).facts()["tokenizer_hash"] is None


def test_a_chat_template_and_tokens_that_end_what_is_written(tokenizer):
    network, other = llama(), copy.deepcopy(tokenizer)
    network.generation_config.eos_token_id = [2, 9]
    other.chat_template = "{{ messages[0]['content'] }}!"
    before = LanguageModel(llama(), tokenizer).facts()
    after = LanguageModel(network, other).facts()
    assert changed(before, after) == {"chat_template", "end_tokens"}
    assert before["chat_template"] is None
    assert (before["end_tokens"], after["end_tokens"]) == ([0, 2], [0, 2, 9])


def test_weights_that_are_kept_elsewhere_are_the_same(tokenizer, tmp_path):
    """One layer on the disk and one in memory; of a block that fetches for all that it holds."""
    whole = LanguageModel(llama(tie_word_embeddings=True), tokenizer).facts()
    places = {
        "model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk",
        "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu",
    }  # fmt: skip
    for more in ({}, {"preload_module_classes": ["LlamaMLP"]}):
        network = accelerate.dispatch_model(
            llama(tie_word_embeddings=True), places, main_device="cpu", offload_dir=tmp_path, **more
        )
        assert any(x.is_meta for x in network.parameters())
        assert LanguageModel(network, tokenizer).facts() == whole


def test_a_shape_without_weights_has_no_facts(tokenizer):
    with torch.device("meta"):
        network = llama()
    with pytest.raises(ConfigError, match=r"must hold weights, got a shape alone"):
        LanguageModel(network, tokenizer).facts()
