"""Facts of a model tell apart whatever would answer otherwise, and nothing else."""

import copy
import json

import accelerate
import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from diffattn.errors import ConfigError
from diffattn.lab.inference.language_model import LanguageModel
from language_models import save, tiny_llama


def changed(before, after):
    return {key for key in before | after if before.get(key) != after.get(key)}


@pytest.mark.parametrize(
    ("name", "value"),
    [("rope_parameters", {"rope_type": "default", "rope_theta": 6e5}), ("lambda_init", 0.1)],
)
def test_a_setting_that_no_weight_shows(build, name, value):
    model = build("diff")
    before = model.facts()
    setattr(model.network.config, name, value)
    assert changed(before, model.facts()) == {"config"}


@pytest.mark.parametrize("kind", ["diff", "llama"])
def test_a_model_has_the_same_facts_wherever_it_lies(build, tmp_path, kind):
    model = build(kind)
    folder = save(model, tmp_path)
    after = LanguageModel.load(folder, device="cpu", dtype="float32").facts()
    assert changed(model.facts(), after) <= {"path", "label"}
    wide = LanguageModel.load(folder, device="cpu", dtype="bfloat16").facts()
    assert changed(after, wide) == {"dtype", "weights"}


def test_a_tokenizer_of_the_same_entries(tokenizer):
    network = tiny_llama(tokenizer)
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

    assert LanguageModel(tiny_llama(tokenizer), Slow()).facts()["tokenizer_hash"] is None


def test_a_chat_template_and_tokens_that_end_what_is_written(tokenizer):
    network, other = tiny_llama(tokenizer), copy.deepcopy(tokenizer)
    network.generation_config.eos_token_id = [2, 9]
    other.chat_template = "{{ messages[0]['content'] }}!"
    before = LanguageModel(tiny_llama(tokenizer), tokenizer).facts()
    after = LanguageModel(network, other).facts()
    assert changed(before, after) == {"chat_template", "end_tokens"}
    assert before["chat_template"] is None
    assert (before["end_tokens"], after["end_tokens"]) == ([0, 2], [0, 2, 9])


def test_weights_that_are_kept_elsewhere_are_the_same(tokenizer, tmp_path):
    """One layer on the disk and one in memory; of a block that fetches for all that it holds."""
    whole = LanguageModel(tiny_llama(tokenizer, tie_word_embeddings=True), tokenizer).facts()
    places = {
        "model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk",
        "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu",
    }  # fmt: skip
    options = {"main_device": "cpu", "offload_dir": tmp_path}
    for more in ({}, {"preload_module_classes": ["LlamaMLP"]}):
        network = tiny_llama(tokenizer, tie_word_embeddings=True)
        network = accelerate.dispatch_model(network, places, **options, **more)
        assert any(x.is_meta for x in network.parameters())
        assert LanguageModel(network, tokenizer).facts() == whole


def test_a_shape_without_weights_has_no_facts(tokenizer):
    with torch.device("meta"):
        network = tiny_llama(tokenizer)
    with pytest.raises(ConfigError, match=r"must hold weights, got a shape alone"):
        LanguageModel(network, tokenizer).facts()
