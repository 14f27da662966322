"""Ids, positions and prompts that cannot be: one line of ours, from model and reader."""

import itertools

import numpy as np
import pytest
import torch

from diffattn.errors import DiffAttnError
from diffattn.lab.inference.label_trie import LabelTrie
from diffattn.lab.inference.scoring import Continuation
from diffattn.models.config.attention_types import ATTENTION_TYPES
from tally import sample, trial

VOCAB = 320
MAX_LENGTH = 64
BATCH, LENGTH = 2, 5
IMPLEMENTATIONS = ("diffattn", "eager", "sdpa")


def ids(*shape, **dtype):
    return torch.ones(*shape, **dtype or {"dtype": torch.long})


def with_value(value):
    rows = ids(BATCH, LENGTH)
    rows[-1, -2] = value
    return rows


def positions(*, value=None, shape=(1, LENGTH), dtype=torch.long):
    made = torch.arange(shape[-1]).expand(*shape).clone().to(dtype)
    if value is not None:
        made.view(-1)[-1] = value
    return made


GOOD = {"input_ids": ids(BATCH, LENGTH)}
BAD_IDS = (-1, -100, VOCAB, VOCAB + 1, 10**9, 2**62, -(2**62))
FORWARD = {
    **{f"id {value}": {"input_ids": with_value(value)} for value in BAD_IDS},
    "ids in float": {"input_ids": ids(BATCH, LENGTH).float()},
    "ids as bool": {"input_ids": ids(BATCH, LENGTH).bool()},
    "ids of one dimension": {"input_ids": ids(LENGTH)},
    "ids of three": {"input_ids": ids(BATCH, LENGTH, 1)},
    "nothing": {"input_ids": None},
    "both": {"inputs_embeds": torch.zeros(BATCH, LENGTH, 32)},
    "narrow embeddings": {"input_ids": None, "inputs_embeds": torch.zeros(BATCH, LENGTH, 31)},
    "flat embeddings": {"input_ids": None, "inputs_embeds": torch.zeros(LENGTH, 32)},
    **{
        f"position {value}": {"position_ids": positions(value=value)}
        for value in (-1, -5, -(2**40))
    },
    "positions in a row of two": {"position_ids": positions(value=-1, shape=(BATCH, LENGTH))},
    "positions of one dimension": {"position_ids": positions(shape=(LENGTH,))},
    "positions of three": {"position_ids": positions(shape=(1, 1, LENGTH))},
    "too many positions": {"position_ids": positions(shape=(1, LENGTH + 1))},
    "too few positions": {"position_ids": positions(shape=(1, LENGTH - 1))},
    "one position": {"position_ids": positions(shape=(1, 1))},
    "positions of three rows": {"position_ids": positions(shape=(3, LENGTH))},
    "positions in float": {"position_ids": positions(dtype=torch.float32)},
    "positions as bool": {"position_ids": positions(dtype=torch.bool)},
    **{
        f"label {value}": {"labels": with_value(value)}
        for value in (-1, -99, -101, VOCAB, 10**9, 2**62)
    },
    "labels in float": {"labels": ids(BATCH, LENGTH).float()},
    "labels of one dimension": {"labels": ids(LENGTH)},
    "logits to keep": {"logits_to_keep": -1},
}
"""Arguments of a forward pass that must be refused."""
ALLOWED = {
    "the default": {},
    "the last id": {"input_ids": with_value(VOCAB - 1)},
    "int32": {"input_ids": ids(BATCH, LENGTH).int()},
    "ignored labels": {"labels": with_value(-100)},
    "all labels ignored": {"labels": ids(BATCH, LENGTH) * -100},
    "positions of every row": {"position_ids": positions(shape=(BATCH, LENGTH))},
    "position beyond the context": {"position_ids": positions() + 10 * MAX_LENGTH},
    "embeddings": {"input_ids": None, "inputs_embeds": torch.zeros(BATCH, LENGTH, 32)},
}


def fault(call, *, must_fail=True):
    """What is wrong with how a call ends, or ``None``."""
    try:
        result = call()
    except DiffAttnError as error:
        if not must_fail:
            return f"refused: {error}"
        return f"not one line: {error}" if "\n" in str(error) or len(str(error)) > 500 else None
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return f"accepted: {str(result)[:100]}" if must_fail else None


@pytest.mark.parametrize("few", [pytest.param(False, marks=pytest.mark.scheduled), True])
def test_forward(build, few):
    with trial(
        f"impossible inputs of a forward pass{sample(few)}", minimum=20 if few else 350
    ) as tally:
        for kind, implementation in itertools.product(ATTENTION_TYPES, IMPLEMENTATIONS):
            if few and (kind, implementation) != ("diff", "diffattn"):
                continue
            network = build(kind, max_length=MAX_LENGTH).network
            network.set_attn_implementation(implementation)
            for name, arguments in (FORWARD | ALLOWED).items():
                with torch.no_grad():
                    wrong = fault(
                        lambda a=arguments, n=network: n(**GOOD | a).logits,
                        must_fail=name not in ALLOWED,
                    )
                tally.check(f"{kind}, {implementation}: {name}", wrong)


def reader_cases(model):
    """``(name, call)`` on a model's reader; all must be refused."""
    sound, long = (5, 6, 7), tuple([5] * (MAX_LENGTH + 2))
    for bad in BAD_IDS:
        wrong = (5, bad, 7)
        yield f"score: context with {bad}", lambda w=wrong: model.score([Continuation(w, sound)])
        yield f"score: target with {bad}", lambda w=wrong: model.score([Continuation(sound, w)])
        yield (
            f"score: last of several is {bad}",
            lambda w=(5, 6, bad): model.score([Continuation(sound, x) for x in (sound, w)]),
        )
        yield (
            f"generate: one of several with {bad}",
            lambda w=wrong: model.generate([sound, w], max_new_tokens=2),
        )
        yield f"read: {bad}", lambda w=wrong: model.read(w)
        yield f"read prompts: {bad}", lambda w=wrong: list(model.read_prompts([w, sound]))
        yield f"losses: {bad}", lambda w=wrong: model.prefix_losses([np.array(w)], [5])
        yield (
            f"sliding losses: {bad}",
            lambda w=wrong: model.sliding_losses(np.array(w * 9), window=8, stride=4, given=[]),
        )
    trie = LabelTrie(model, ["the", "city"], "is:")
    for prompt in ((), long, (5, -1), (5, VOCAB)):
        yield f"labels: {prompt[:3]}", lambda p=prompt: model.read_labels(trie, [p])
    for prompt in ((), long):
        yield (
            f"generate: {len(prompt)} tokens of two",
            lambda p=prompt: model.generate([sound, p], max_new_tokens=1),
        )
        yield f"score: {len(prompt)} tokens", lambda p=prompt: model.score([Continuation(p, sound)])
        yield (
            f"score: target of {len(prompt)}",
            lambda p=prompt: model.score([Continuation(sound, p)]),
        )
    yield "read prompts: none", lambda: list(model.read_prompts([(), sound]))
    for tokens in (0, -1, MAX_LENGTH, 10**18):
        yield f"generate: {tokens} new", lambda n=tokens: model.generate([sound], max_new_tokens=n)
    yield "complete: long", lambda: model.complete(["the city " * 100], None, max_new_tokens=2)
    for stride in (0, -1, 9):
        yield (
            f"stride {stride}",
            lambda s=stride: model.sliding_losses(np.array([5] * 30), window=8, stride=s, given=[]),
        )


@pytest.mark.parametrize("few", [pytest.param(False, marks=pytest.mark.scheduled), True])
def test_reader(build, few):
    kinds = ("diff",) if few else (*ATTENTION_TYPES, "llama", "diffllama")
    with trial(f"impossible inputs of a reader{sample(few)}", minimum=60 if few else 400) as tally:
        for kind in kinds:
            model = build(kind, max_length=MAX_LENGTH)
            for name, call in reader_cases(model):
                tally.check(f"{kind}: {name}", fault(call))
