"""Ids, positions and prompts that cannot be: one line of ours, from model and reader."""

import itertools
import re
from functools import partial

import numpy as np
import pytest
import torch

from diffattn.errors import DiffAttnError
from diffattn.lab.inference.scoring import Continuation, LabelTrie
from diffattn.models.config.attention_types import ATTENTION_TYPES
from tally import sample, trial

VOCAB = 320
MAX_LENGTH = 64
BATCH, LENGTH = 2, 5
IMPLEMENTATIONS = ("diffattn", "eager", "sdpa")
FEW = [pytest.param(False, marks=pytest.mark.scheduled), True]


def ids(*shape):
    return torch.ones(*shape, dtype=torch.long)


def with_value(value):
    rows = ids(BATCH, LENGTH)
    rows[-1, -2] = value
    return rows


def positions(*shape, last=None, dtype=torch.long):
    made = torch.arange(shape[-1]).expand(*shape).clone().to(dtype)
    if last is not None:
        made.view(-1)[-1] = last
    return made


ROWS, EMBEDS = ids(BATCH, LENGTH), torch.zeros(BATCH, LENGTH, 32)
BAD_IDS = (-1, VOCAB, 2**62)
IN_RANGE, INTEGERS = "must be from 0 to 319, got ", r"must be an integer tensor \[B, T\], got "
PLACES = r"must be an integer tensor \[2 or 1, 5\], got "
FORWARD = [
    *(("input_ids", with_value(value), f"{IN_RANGE}{value}") for value in BAD_IDS),
    ("input_ids", ROWS.float(), rf"{INTEGERS}\[2, 5\] of float32"),
    ("input_ids", ROWS.bool(), rf"{INTEGERS}\[2, 5\] of bool"),
    ("input_ids", ids(LENGTH), rf"{INTEGERS}\[5\] of int64"),
    ("input_ids", ids(BATCH, LENGTH, 1), INTEGERS),
    ("input_ids", None, "or inputs_embeds must be given, got neither"),
    ("inputs_embeds", EMBEDS, "must be given, got both"),
    *(("labels", with_value(value), f"{IN_RANGE}{value}") for value in (-1, -99, VOCAB, 2**62)),
    ("labels", ROWS.float(), INTEGERS),
    ("labels", ids(LENGTH), INTEGERS),
    ("position_ids", positions(1, LENGTH, last=-5), "must be 0 or more, got -5"),
    ("position_ids", positions(BATCH, LENGTH, last=-1), "must be 0 or more, got -1"),
    *(
        ("position_ids", positions(*shape), rf"{PLACES}.* of int64")
        for shape in ((LENGTH,), (1, 1, LENGTH), (1, LENGTH + 1), (1, LENGTH - 1), (3, LENGTH))
    ),
    ("position_ids", positions(1, LENGTH, dtype=torch.float32), f"{PLACES}.* of float32"),
    ("position_ids", positions(1, LENGTH, dtype=torch.bool), f"{PLACES}.* of bool"),
    ("logits_to_keep", -1, "must be"),
]
"""Arguments of a forward pass that must be refused, and the message after the name."""
EMBEDDED = [
    ({"input_ids": None, "inputs_embeds": torch.zeros(BATCH, LENGTH, 31)}, r"\[B, T, 32\]"),
    ({"input_ids": None, "inputs_embeds": torch.zeros(LENGTH, 32)}, r"\[B, T, 32\], got \[5, 32\]"),
]
ALLOWED = [
    {},
    {"input_ids": with_value(VOCAB - 1)},
    {"labels": with_value(-100)},
    {"labels": ROWS * -100},
    {"position_ids": positions(BATCH, LENGTH)},
    {"position_ids": positions(1, LENGTH) + 10 * MAX_LENGTH},  # beyond the context
    {"input_ids": None, "inputs_embeds": EMBEDS},
]


def fault(call, message=""):
    """What is wrong with how a call ends that must be refused, or, for ``None``, must not be."""
    try:
        result = call()
    except DiffAttnError as error:
        if message is None:
            return f"refused: {error}"
        sound = re.search(message, str(error)) and "\n" not in str(error) and len(str(error)) <= 500
        return None if sound else f"said: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None if message is None else f"accepted: {str(result)[:100]}"


@pytest.mark.parametrize("few", FEW)
def test_forward(build, few):
    cases = [({name: value}, f"{name} {words}") for name, value, words in FORWARD]
    cases += [*EMBEDDED, *((arguments, None) for arguments in ALLOWED)]
    empty = {"input_ids": ids(1, 0)}, None  # transformers' own attention may not take it
    with trial(
        f"impossible inputs of a forward pass{sample(few)}", minimum=20 if few else 350
    ) as tally:
        for kind, implementation in itertools.product(ATTENTION_TYPES, IMPLEMENTATIONS):
            if few and (kind, implementation) != ("diff", "diffattn"):
                continue
            network = build(kind, max_length=MAX_LENGTH).network
            network.set_attn_implementation(implementation)
            for arguments, message in [*cases, *([empty] * (implementation == "diffattn"))]:
                call = partial(network, **{"input_ids": ROWS} | arguments)
                with torch.no_grad():
                    wrong = fault(call, message)
                tally.check(f"{kind}, {implementation}: {arguments}, {message}", wrong)


def reader_cases(model):
    """``(name, call)`` on a model's reader; all must be refused."""
    sound, long = (5, 6, 7), (5,) * (MAX_LENGTH + 2)
    windows = partial(model.sliding_losses, window=8, given=[])

    def score(*pairs):
        return model.score([Continuation(*pair) for pair in pairs])

    for bad in BAD_IDS:
        wrong = (5, bad, 7)
        calls = {
            "score: context": partial(score, (wrong, sound)),
            "score: target": partial(score, (sound, wrong)),
            "score: last of several": partial(score, (sound, sound), (sound, (5, 6, bad))),
            "generate: one of several": partial(model.generate, [sound, wrong], max_new_tokens=2),
            "read": partial(model.read, wrong),
            "read prompts": lambda w=wrong: list(model.read_prompts([w, sound])),
            "losses": partial(model.prefix_losses, [np.array(wrong)], [5]),
            "sliding losses": partial(windows, np.array(wrong * 9), stride=4),
        }
        yield from ((f"{name}, {bad}", call) for name, call in calls.items())
    trie = LabelTrie(model, ["the", "city"], "is:")
    for prompt in ((), long, (5, -1), (5, VOCAB)):
        yield f"labels: {prompt[:3]}", partial(model.read_labels, trie, [prompt])
    for prompt in ((), long):
        length, two = len(prompt), [sound, prompt]
        yield f"generate: {length} of two", partial(model.generate, two, max_new_tokens=1)
        yield f"score: {length} tokens", partial(score, (prompt, sound))
        yield f"score: target of {length}", partial(score, (sound, prompt))
    yield "read prompts: none", lambda: list(model.read_prompts([(), sound]))
    for tokens in (0, -1, MAX_LENGTH, 10**18):
        yield f"generate: {tokens} new", partial(model.generate, [sound], max_new_tokens=tokens)
    yield "complete: long", partial(model.complete, ["the city " * 100], None, max_new_tokens=2)
    for stride in (0, -1, 9):
        yield f"stride {stride}", partial(windows, np.array([5] * 30), stride=stride)


@pytest.mark.parametrize("few", FEW)
def test_reader(build, few):
    kinds = ("diff",) if few else (*ATTENTION_TYPES, "llama", "diffllama")
    with trial(f"impossible inputs of a reader{sample(few)}", minimum=40 if few else 350) as tally:
        for kind in kinds:
            model = build(kind, max_length=MAX_LENGTH)
            for name, call in reader_cases(model):
                tally.check(f"{kind}: {name}", fault(call))
