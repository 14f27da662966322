"""Shared prefixes: correct for any sequences, and cheaper wherever they are taken."""

import random

import pytest
import torch

from diffattn.lab.inference.shared_prefixes import _GROUP_COST, share_prefixes
from scripted_model import LoggedModel


@pytest.mark.parametrize("seed", range(20))
def test_groups_partition_the_sequences_and_their_prefix_is_common(seed):
    generator = random.Random(seed)
    roots = [[generator.randrange(3) for _ in range(generator.randint(0, 600))] for _ in range(3)]
    sequences = []
    for _ in range(generator.randint(1, 30)):
        root = generator.choice(roots)
        cut = generator.randint(0, len(root))
        sequences.append(
            [*root[:cut], *(generator.randrange(3) for _ in range(generator.randint(1, 50)))]
        )
    limits = [generator.randint(0, len(x)) for x in sequences]
    groups = share_prefixes(sequences, limits)
    assert sorted(i for _, members in groups for i in members) == list(range(len(sequences)))
    cost = 0
    for length, members in groups:
        first = sequences[members[0]][:length]
        cost += length + bool(length) * _GROUP_COST
        for i in members:
            assert sequences[i][:length] == first
            assert length < len(sequences[i])
            assert length <= limits[i]
            cost += len(sequences[i]) - length
    assert cost <= sum(map(len, sequences))


def test_a_nested_prefix_is_taken_where_it_pays():
    common, longer = [1] * 400, [2] * 400
    sequences = [[*common, i] for i in range(3, 6)] + [[*common, *longer, i] for i in range(3, 9)]
    lengths = sorted(length for length, _ in share_prefixes(sequences))
    assert lengths == [400, 800]
    assert share_prefixes([]) == []


def logits(model, ids, prefix=None):
    cache = prefix.rows(1) if prefix else None
    with torch.no_grad():
        return model.network(torch.tensor([ids]), past_key_values=cache).logits[0, -1]


def hidden_at(text, needle, places):
    return [[*text[:place], *needle, *text[place:]] for place in places]


def test_each_prompt_gets_its_own_prefix(model):
    generator = random.Random(0)
    text = [generator.randrange(1, 300) for _ in range(400)]
    prompts = hidden_at(text, [7] * 5, (0, 100, 200, 300, 400))
    prompts += [text[:200], text[:200], text[:201], [4], [4, 5]]  # equal, longer by one, very short
    seen = []
    for i, prefix in model.read_prompts(prompts):
        seen.append(i)
        assert prefix.length == len(prompts[i]) - 1
        if prefix.length:
            # Hugging Face's norms and rotary tables are float32 also in a float64 model.
            torch.testing.assert_close(
                logits(model, prompts[i][-1:], prefix), logits(model, prompts[i]),
                rtol=0, atol=1e-5,
            )  # fmt: skip
    assert sorted(seen) == list(range(len(prompts)))


def test_common_parts_are_read_once(models):
    model = LoggedModel(models["softmax"])
    generator = random.Random(0)
    text = [generator.randrange(1, 300) for _ in range(800)]
    places = (0, 200, 400, 600, 800)
    prompts = hidden_at(text, [7] * 5, places)
    generator.shuffle(prompts)
    assert len(list(model.read_prompts(prompts))) == 5
    # The text once; after each place what is left of it, five needles; not the last tokens. A
    # needle may begin like the text or another one: that is less than a needle each.
    once = 800 + sum(800 - place for place in places[:-1]) + 25
    assert abs(sum(model.reads) - once) <= 25
