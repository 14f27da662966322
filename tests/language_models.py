"""Tiny language models of every kind, with a tokenizer trained on generated text."""

import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models
from transformers import (
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

from diffattn.lab.data.corpora import Document
from diffattn.lab.data.tokenizer import train_tokenizer
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.ops.inputs.formulas import diff_lambda
from diffattn.probes.attention_rows import attention_implementation

KINDS = (*ATTENTION_TYPES, "llama", "diffllama")
_WORDS = [
    "the", "city", "number", "is", "special", "magic", "for", "what", "a", "question", "answer",
    "of", "in", "and", "to", "value", "key", "was", "document", "people", "house", "river", "old",
    "morning", "new", "long", "letter", "word", "ship", "road", "king", "garden", "window",
]  # fmt: skip
MAX_LENGTH = 1024


def prose(num_sentences, seed=0):
    generator = random.Random(seed)
    sentences = []
    for _ in range(num_sentences):
        words = generator.choices(_WORDS, k=generator.randint(4, 12))
        sentences.append(" ".join(words).capitalize() + ".")
    return " ".join(sentences)


@pytest.fixture(scope="session")
def text():
    return prose(400)


@pytest.fixture(scope="session")
def tokenizer(text):
    digits = " ".join(str(i) for i in range(200))
    return train_tokenizer([Document(name="text", text=f"{text}\n{digits}")], vocab_size=320)


@pytest.fixture(scope="session")
def build(tokenizer):
    """``build("diff", max_length=..., seed=...)``: a :class:`LanguageModel`."""

    def make(kind="diff", *, max_length=MAX_LENGTH, seed=0, add_bos=None, dtype=torch.float32):
        torch.manual_seed(seed)
        network = _network(kind, _sizes(tokenizer, max_length))
        _draw_weights(network)
        network.to(dtype)
        return LanguageModel(network, tokenizer, label=kind, add_bos=add_bos)

    return make


@pytest.fixture(scope="session")
def build_windowed(tokenizer):
    """``build_windowed(8)``: a model whose layers see that many tokens."""

    def make(window):
        torch.manual_seed(0)
        sizes = _sizes(tokenizer, MAX_LENGTH) | _HEADS
        config = MistralConfig(**sizes, sliding_window=window, attn_implementation="sdpa")
        network = MistralForCausalLM(config).double()
        _draw_weights(network)
        return LanguageModel(network, tokenizer, label="mistral")

    return make


@pytest.fixture(scope="session")
def models(build):
    """One model per kind, float64: what differs is the algorithm, not the rounding."""
    return {kind: build(kind, dtype=torch.float64) for kind in KINDS}


_OFTEN = ("diff", "diff_v2", "llama")
"""Kinds of which every test of a model is run in every push; the others are run as scheduled."""


@pytest.fixture(
    params=[
        kind if kind in _OFTEN else pytest.param(kind, marks=pytest.mark.scheduled)
        for kind in KINDS
    ]
)
def model(request, models):
    """Every kind: our four attention types, and Hugging Face's Llama and DiffLlama."""
    return models[request.param]


def byte_pairs(text, *, superwords=False, digits=False, special=(), vocab_size=420):
    """A tokenizer of bytes with ``<s>`` and ``</s>``; ``superwords`` reach over spaces, and by
    ``digits`` no token holds a digit and anything else."""
    parts = Tokenizer(tokenizer_models.BPE())
    parts.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not superwords)
    if digits:
        alone = pre_tokenizers.Digits(individual_digits=True)
        parts.pre_tokenizer = pre_tokenizers.Sequence([alone, parts.pre_tokenizer])
    parts.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<s>", "</s>", *special], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), max_token_length=30,
    )  # fmt: skip
    parts.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=parts, bos_token="<s>", eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


def of_tokenizer(tokenizer, *, max_length=MAX_LENGTH):
    """A model of V2 with the vocabulary of any tokenizer."""
    torch.manual_seed(0)
    return LanguageModel(_network("diff_v2", _sizes(tokenizer, max_length)), tokenizer)


@torch.no_grad()
def plain_logprobs(model, ids):
    """Log-probabilities of all tokens but the first, by one plain pass over them."""
    row = torch.tensor([ids])
    logits = model.network(row[:, :-1], use_cache=False).logits[0]
    return logits.log_softmax(-1).gather(-1, row[0, 1:, None])[:, 0]


@torch.no_grad()
def whole_maps(model, ids):
    """A1 and A1 − λA2 of every layer, ``[H, T, T]``, from one plain pass over whole tokens."""
    network, kind = model.network, model.network.config.model_type
    given = torch.tensor([ids])
    if kind == "diff_transformer":
        out = network(given, output_attentions=True, output_attention_maps=True)
        return [
            (maps[0, :, 0], signed[0])
            for maps, signed in zip(out.attention_maps, out.attentions, strict=True)
        ]
    with attention_implementation(network, "eager"):
        weights = [layer[0] for layer in network(given, output_attentions=True).attentions]
    if kind == "llama":
        return [(w, w) for w in weights]
    results = []
    for layer, w in zip(network.model.layers, weights, strict=True):
        x = layer.self_attn
        lam = diff_lambda(x.lambda_q1, x.lambda_k1, x.lambda_q2, x.lambda_k2, x.lambda_init)
        half = len(w) // 2
        results.append((w[:half], w[:half] - lam * w[half:]))
    return results


def tiny_llama(tokenizer, **settings):
    """An untrained Llama for the entries of a tokenizer."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 64}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes | settings))


def save(model, folder):
    """Write a model and its tokenizer; the folder's name, as it is given to commands."""
    model.network.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return str(folder)


def write_after(model, prompt, ids):
    """Make the network of a model write ``ids`` after a prompt of so many tokens."""
    forward = model.network.forward

    def scripted(*args, past_key_values=None, **options):
        out = forward(*args, past_key_values=past_key_values, **options)
        first = out.past_key_values.get_seq_length() - out.logits.shape[1] - prompt + 1
        for place in range(out.logits.shape[1]):
            if 0 <= first + place < len(ids):
                out.logits[:, place] = -50.0
                out.logits[:, place, ids[first + place]] = 50.0
        return out

    model.network.forward = scripted


@torch.no_grad()
def _draw_weights(network):
    for name, parameter in network.named_parameters():
        if parameter.ndim == 2:  # logits of a few units: answers that differ
            parameter.normal_(0.0, 1.4 * parameter.shape[-1] ** -0.5)
        elif ".lambda_" in name:
            parameter.normal_(0.0, 0.3)


_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def _sizes(tokenizer, max_length):
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 48}
    return sizes | {"num_hidden_layers": 2, "max_position_embeddings": max_length}


def _network(kind, sizes):
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes, **_HEADS))
    if kind == "diffllama":
        return DiffLlamaForCausalLM(DiffLlamaConfig(**sizes, **_HEADS))
    config = DiffTransformerConfig(
        attention_type=kind, num_heads=4, num_kv_heads=2, head_dim=8, **sizes
    )
    return DiffTransformerForCausalLM(config)
