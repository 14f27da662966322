"""Prompts read as a tree: every prefix is the right one, and common parts are read once."""

import random

import pytest
import torch

from scripted_model import LoggedModel


def logits(model, ids, prefix=None):
    cache = prefix.rows(1) if prefix else None
    with torch.no_grad():
        return model.network(torch.tensor([ids]), past_key_values=cache).logits[0, -1]


def hidden_at(text, needle, places):
    return [[*text[:place], *needle, *text[place:]] for place in places]


def test_each_prompt_gets_its_own_prefix(model):
    generator = random.Random(0)
    text = [generator.randrange(1, 300) for _ in range(600)]
    prompts = hidden_at(text, [7] * 5, (0, 150, 300, 450, 600))
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


@pytest.mark.parametrize("seed", range(3))
def test_common_parts_are_read_once(models, seed):
    model = LoggedModel(models["softmax"])
    generator = random.Random(seed)
    text = [generator.randrange(1, 300) for _ in range(800)]
    places = (0, 200, 400, 600, 800)
    prompts = hidden_at(text, [7] * 5, places)
    generator.shuffle(prompts)
    assert len(list(model.read_prompts(prompts))) == 5
    # The text once; after each place what is left of it, five needles; not the last tokens. A
    # needle may begin like the text or another one: that is less than a needle each.
    once = 800 + sum(800 - place for place in places[:-1]) + 25
    assert abs(sum(model.reads) - once) <= 25


def test_no_prompts(models):
    assert list(models["diff"].read_prompts([])) == []
