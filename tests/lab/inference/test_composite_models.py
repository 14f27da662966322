"""A model whose text part is one of several: its sizes stand in a part of the configuration."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3Config

from diffattn.lab.analysis.session import _Collector
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ItemError
from diffattn.lab.inference.scoring import Continuation, LabelTrie
from diffattn.probes.layer_reader import read_layers, require_readable
from diffattn.probes.quantized_logits import require_quantizable
from language_models import plain_logprobs
from scripted_model import alone, with_limits


@pytest.fixture(scope="module")
def model(tokenizer):
    """Gemma 3 with a part that sees, of as many layers as the part that reads."""
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 16, "max_position_embeddings": 64, "layer_types": ["full_attention"] * 2,
        "sliding_window": 4096, "initializer_range": 0.3,
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    config = Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=5,
        boi_token_index=6, eoi_token_index=7,
    )  # fmt: skip
    torch.manual_seed(0)
    return LanguageModel(AutoModelForCausalLM.from_config(config).double(), tokenizer)


def test_its_length_is_that_of_its_text_part(model):
    assert model.max_length == 64
    with pytest.raises(ItemError, match="must fit the model's 64 tokens, got 65"):
        model.score([Continuation(tuple(range(20, 80)), (20,) * 6)])


def test_scores_equal_a_plain_pass(model):
    row = np.arange(20, 50)
    expected = -plain_logprobs(model, row.tolist()).numpy()
    for entry in (model, with_limits(model, chunk_tokens=8)):
        (results,) = entry.prefix_losses([row], [])
        # Its norms and softmaxes work in float32.
        np.testing.assert_allclose(results, expected, rtol=0, atol=1e-4)
    slid = model.sliding_losses(row, window=30, stride=10, given=[])
    np.testing.assert_allclose(slid, expected, rtol=0, atol=1e-4)
    trie = LabelTrie(model, ["house", "city"], "\nType:")
    question = [*row[:5].tolist(), *model.encode("\nType:")]
    (results,) = model.read_labels(trie, [question])
    (rows,) = alone(model).read_labels(trie, [question])
    assert results.logprobs == pytest.approx(rows.logprobs, abs=1e-4)


def test_its_layers_are_read_and_its_logits_quantized(model):
    require_quantizable(model.network)
    require_readable(model.network, 12)
    collected = _Collector(model)
    collected.add(0, range(20, 32))
    assert len(collected.result()["attention"]) == 2
    hidden = {}
    read_layers(model.network, torch.arange(20, 32)[None], lambda *given: None, hidden.__setitem__)
    assert {layer: tuple(x.shape) for layer, x in hidden.items()} == {0: (12, 32), 1: (12, 32)}
