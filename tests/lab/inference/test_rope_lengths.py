"""Rotary frequencies that depend on a text's length: within the first length nothing changes."""

import numpy as np
import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, Phi3Config

from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ItemError
from diffattn.lab.inference.scoring import Continuation, LabelTrie
from diffattn.models.config.settings import steady_positions
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from language_models import plain_logprobs, tiny_llama
from scripted_model import LoggedModel, with_limits

STEADY = 32
PARAMETERS = {
    "longrope": {
        "factor": 4.0, "short_factor": [1.0] * 4, "long_factor": [1.0, 3.0, 5.0, 7.0],
        "original_max_position_embeddings": STEADY,
    },
    "dynamic": {"factor": 4.0},
    "default": {},
}  # fmt: skip


def rope(kind):
    """A new one each time: configurations write into what they are given."""
    return {"rope_type": kind, "rope_theta": 1e4, **PARAMETERS[kind]}


def llama(kind):
    return LlamaConfig(rope_parameters=rope(kind), max_position_embeddings=48)


def gemma(full, sliding):
    of_layers = {"full_attention": rope(full), "sliding_attention": rope(sliding)}
    return Gemma3TextConfig(head_dim=8, max_position_embeddings=64, rope_parameters=of_layers)


def phi():
    return Phi3Config(
        hidden_size=32, num_attention_heads=4, original_max_position_embeddings=16,
        max_position_embeddings=128, rope_parameters=rope("longrope"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (llama("default"), None),
        (llama("dynamic"), ("dynamic", 48)),
        (llama("longrope"), ("longrope", STEADY)),
        (phi(), ("longrope", 16)),
        (gemma("dynamic", "default"), ("dynamic", 64)),
        (gemma("dynamic", "longrope"), ("longrope", STEADY)),
    ],
)
def test_the_length_up_to_which_positions_stay(config, expected):
    assert steady_positions(config) == expected


@pytest.fixture(scope="module")
def readers(tokenizer):
    """A model of ours by long, and a Llama by dynamic frequencies that is read beyond its own."""
    torch.manual_seed(0)
    actual = DiffTransformerConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_heads=2, head_dim=8,
        intermediate_size=32, max_position_embeddings=128, rope_parameters=rope("longrope"),
        initializer_range=0.5,
    )  # fmt: skip
    settings = {"max_position_embeddings": STEADY, "initializer_range": 0.5}
    llama = tiny_llama(tokenizer, rope_parameters=rope("dynamic"), **settings)
    return {
        "longrope": LanguageModel(DiffTransformerForCausalLM(actual).double(), tokenizer),
        "dynamic": LanguageModel(llama.double(), tokenizer, max_length=128),
    }


@pytest.fixture(params=["longrope", "dynamic"])
def reader(request, readers):
    return readers[request.param]


def ids(count, seed=0):
    return np.random.default_rng(seed).integers(5, 250, count)


def test_below_it_chunks_and_batches_change_nothing(reader):
    row = ids(STEADY + 1)  # the last token is predicted and not read
    expected = -plain_logprobs(reader, row.tolist()).numpy()
    chunked = with_limits(reader, chunk_tokens=8)
    for model in (reader, chunked):
        both = model.prefix_losses([row, ids(9, seed=1)], [])
        np.testing.assert_allclose(both[0], expected, rtol=0, atol=1e-12)


def test_beyond_it_every_way_of_reading_refuses_before_it_reads(reader):
    model, long = LoggedModel(reader), ids(STEADY + 1).tolist()
    trie = LabelTrie(model, ["house", "city"], "\nType:")
    ways = {
        "score": lambda: model.score([Continuation(tuple(long), (5,))]),
        "score, in halves": lambda: model.score([Continuation((5,), (*long, 7))]),
        "generate": lambda: model.generate([long[:30]], max_new_tokens=3),
        "complete": lambda: model.complete(["the city " * 20], None, max_new_tokens=1),
        "read_labels": lambda: model.read_labels(trie, [long[:-1]]),
        "read_prompts": lambda: list(model.read_prompts([long[:3], long])),
        "sliding_losses": lambda: model.sliding_losses(
            ids(80), window=STEADY + 4, stride=8, given=[]
        ),
    }
    for name, ask in ways.items():
        with pytest.raises(ItemError, match=f"must fit the {STEADY} tokens up to which the posi"):
            ask()
        assert sum(model.reads) == len(model.passes) == 0, name
    with pytest.raises(ItemError, match=f"got {STEADY + 1}"):
        reader.read(long)
    with pytest.raises(ItemError, match=f"got {STEADY + 2}"):
        reader.forward_rows(reader.read(long[:-1]), [[5], [5, 6]])
