"""Reduced sizes that fit the models of a run, and reading beyond what a model is made for."""

import json

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from diffattn.lab.evaluation.catalog import PROTOCOLS
from diffattn.lab.evaluation.quick import QUICK_REACH, shortest_context
from diffattn.lab.evaluation.registry import parts, protocol_class
from diffattn.lab.inference.language_model import LanguageModel


def write(folder, **config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_the_shortest_context_counts(tmp_path):
    models = [
        write(tmp_path / "a", max_position_embeddings=512),
        write(tmp_path / "b", max_position_embeddings=128),
        write(tmp_path / "c", vocab_size=3),
        str(tmp_path / "missing"),
        "owner/name",
    ]
    assert shortest_context(models) == 128
    assert shortest_context(models[2:]) is None
    (tmp_path / "a" / "config.json").write_text("{")
    assert shortest_context(models[:1]) is None


@pytest.mark.parametrize("longest", [32, 128, 256, None])
def test_sizes_that_can_keep_to_a_context_do(longest):
    limit = longest or 10**9
    made = {part.variant: part.protocol for part in parts(["all"], quick=True, longest=longest)}
    assert set(made) == set(PROTOCOLS)
    assert made["nll_by_position"].length <= limit
    assert made["ar_hits"].length <= limit
    assert made["block_perplexity"].block <= limit
    assert made["word_perplexity"].window <= limit
    assert max(made["sliding_perplexity"].windows) <= limit
    if longest is None:
        for name, protocol in made.items():
            quick = protocol_class(name).quick
            assert {key: getattr(protocol, key) for key in quick} == dict(quick)


def test_settings_come_before_reduced_sizes():
    (part,) = parts(["word_perplexity"], ["word_perplexity.window=99"], quick=True, longest=64)
    assert (part.protocol.window, part.protocol.stride) == (99, 32)


def test_a_model_reads_beyond_what_it_is_made_for(build):
    model = build("diff", max_length=64)
    other = model.reaching(QUICK_REACH)
    assert (other.max_length, other.made_for) == (QUICK_REACH, 64)
    assert other.facts()["made_for"] == 64
    assert (model.max_length, model.made_for) == (64, None)
    assert "made_for" not in model.facts()
    assert other.read(list(range(5, 205))).length == 200
    assert other.reaching(128).max_length == QUICK_REACH  # never less


def test_a_table_of_positions_ends(tokenizer):
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2)
    torch.manual_seed(0)
    model = LanguageModel(GPT2LMHeadModel(config), tokenizer)
    assert model.reaching(QUICK_REACH).max_length == 64
