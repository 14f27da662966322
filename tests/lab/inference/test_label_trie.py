"""Labels in one pass equal one row per label, and constrained greedy decoding."""

import random

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ItemError
from diffattn.lab.inference.scoring import LabelTrie
from language_models import plain_logprobs
from scripted_model import alone

NESTED = ["gas", "gas type", "a", "an", "question", "question answer", "the", "the city key"]
SETS = {"nested": NESTED, "numbers": [str(i) for i in range(0, 130, 17)]}


def tokens(model, count, seed):
    generator = random.Random(seed)
    return [generator.randrange(1, len(model.tokenizer)) for _ in range(count)]


def questions(model, trie):
    """Of unequal length; two begin alike and two are equal."""
    results = [tokens(model, n, seed) for seed, n in enumerate((1, 9, 4))]
    results += [[*results[1][:6], 7], list(results[2])]
    return [[*entry, *model.encode("\nType:")] for entry in results]


@pytest.mark.parametrize("labels", SETS)
@pytest.mark.parametrize("length", [0, 50])
def test_one_pass_equals_one_row_per_label(model, labels, length):
    """float64: sums of a few hundred terms of size 1, a few thousand times its epsilon."""
    trie = LabelTrie(model, SETS[labels], "\nType:")
    asked = questions(model, trie)
    prefix = model.read(tokens(model, length, 99)) if length else None
    results = model.read_labels(trie, asked, before=prefix)
    by_rows = alone(model).read_labels(trie, asked, before=prefix)
    for entry, wanted in zip(results, by_rows, strict=True):
        assert entry.greedy == wanted.greedy
        assert entry.likeliest == wanted.likeliest
        assert entry.logprobs == pytest.approx(wanted.logprobs, rel=0, abs=1e-12)


@pytest.mark.parametrize("labels", SETS)
def test_greedy_is_decoding_within_the_labels(model, labels):
    """Token by token the likeliest of those that some label goes on with."""
    trie = LabelTrie(model, SETS[labels], "\nType:")
    for entry in questions(model, trie)[:3]:
        written = ()
        while written not in trie.paths:
            with torch.no_grad():
                logits = model.network(torch.tensor([[*entry, *written]])).logits[0, -1]
            size = len(written)
            below = sorted({path[size] for path in trie.paths if path[:size] == written})
            written = (*written, max(below, key=logits.__getitem__))
        (reading,) = model.read_labels(trie, [entry])
        assert trie.paths[reading.greedy] == written


def test_log_probabilities_are_those_of_a_plain_pass(models):
    model = models["diff_v2"]
    trie = LabelTrie(model, NESTED, "\nType:")
    prompt = [*tokens(model, 60, 1), *model.encode("\nType:")]
    (results,) = model.read_labels(trie, [prompt])
    for label, path, logprob in zip(NESTED, trie.paths, results.logprobs, strict=True):
        assert model.decode(path) == f" {label}\n"  # the space belongs to the label
        expected = plain_logprobs(model, [*prompt, *path])[-len(path) :].sum()
        assert logprob == pytest.approx(float(expected), rel=0, abs=1e-12)


def test_labels_that_a_tokenizer_cannot_tell_apart():
    class Deaf(LanguageModel):
        def __init__(self):
            """Without a network."""

        def encode(self, text):
            return list(text.replace("\n", "").replace("é", "e").encode())

    for first, second in (("gas", "gas type"), ("gas type", "gas"), ("café", "cafe")):
        with pytest.raises(ConfigError, match=f"'{first}' and '{second}'"):
            LabelTrie(Deaf(), [first, second], "Type:")


def test_what_does_not_fit(models):
    model = models["diff"]
    trie = LabelTrie(model, NESTED, "\nType:")
    for prompt, message in (([], "a token or more"), ([1] * 1024, "fit the model's 1024 tokens")):
        with pytest.raises(ItemError, match=message):
            model.read_labels(trie, [prompt])


@pytest.mark.parametrize("labels", [["a", " "], ["a", "b\nc"]], ids=["empty", "two lines"])
def test_a_label_is_one_line(models, labels):
    with pytest.raises(ConfigError, match="must be one line of text"):
        LabelTrie(models["diff"], labels, "\nType:")
