"""Branches after one prefix: every token as if its branch alone stood there."""

import pytest
import torch
from transformers import FalconConfig, FalconForCausalLM

from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.scoring import Continuation, LabelTrie
from diffattn.lab.inference.shared_prefixes import TokenTree, can_branch, forward_tree
from language_models import plain_logprobs
from scripted_model import alone


def test_every_branch_equals_a_plain_pass(model):
    branches = [[5, 6, 7, 8], [5, 6, 9], [11], [5, 6]]
    implementation = model.network.config._attn_implementation
    for before in ([3, 4, 3, 2, 9], []):
        prefix = model.read(before)
        keys = [layer.keys for layer in prefix.cache.layers]
        tree = TokenTree()
        places = [tree.add(branch) for branch in branches]
        assert len(tree.tokens) == 6  # what begins alike is held once
        for branch, own in zip(branches, places, strict=True):
            results = forward_tree(model, prefix, tree, own)
            with torch.no_grad():
                plain = model.network(torch.tensor([before + branch])).logits[0, len(before) :]
            torch.testing.assert_close(results, plain, rtol=0, atol=1e-12)
        assert all(a is b.keys for a, b in zip(keys, prefix.cache.layers, strict=True))
        assert model.network.config._attn_implementation == implementation


def test_alibi_does_not_branch(tokenizer):
    """Its positions are read off a mask per row, which a tree has none of."""
    torch.manual_seed(0)
    config = FalconConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        alibi=True, new_decoder_architecture=False, initializer_range=0.5,
    )  # fmt: skip
    model = LanguageModel(FalconForCausalLM(config), tokenizer)
    assert not can_branch(model, model.read([1, 2]))
    context = tuple(range(1, 201))
    asked = [Continuation(context, (3, 4)), Continuation(context, (5, 6))]
    for results, by_itself in zip(model.score(asked), alone(model).score(asked), strict=True):
        assert results.logprob == pytest.approx(by_itself.logprob, abs=1e-3)


def test_models_that_do_not_branch_run_one_row_per_label(models, build_windowed):
    model = build_windowed(8)
    for entry, expected in ((model, False), (models["llama"], True)):
        assert can_branch(entry, entry.read([1, 2])) is expected
    trie = LabelTrie(model, ["house", "house key", "city"], "\nType:")
    before, question = list(range(5, 25)), [30, 31, *model.encode("\nType:")]
    (results,) = model.read_labels(trie, [question], before=model.read(before))
    for path, logprob in zip(trie.paths, results.logprobs, strict=True):
        expected = plain_logprobs(model, [*before, *question, *path])[-len(path) :].sum()
        assert logprob == pytest.approx(float(expected), rel=0, abs=1e-12)
