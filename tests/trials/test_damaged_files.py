"""A damaged file is named, or changes nothing: it is never taken for what was written."""

import random

import pytest

from tally import trial
from trials import commands
from trials.disk import damages, restore


def damaged(state, rng):
    """Every damage of every file of a folder: its name, the file, and the folder with it."""
    for path, content in sorted(state.items()):
        # Neither a folder nor empty, nor a model's card, which is written to be changed.
        if content and not path.endswith("README.md"):
            yield f"{path} missing", path, {k: x for k, x in state.items() if k != path}
            for what, left in damages(content, rng):
                yield f"{path} {what}", path, state | {path: left}


def try_all(command, state, tally, *, outputs=("",), without=()):
    """Call a command on a folder with each damage: it ends as ever, or names the file.

    Files that are not of its ``outputs`` (by their first folder) may stay as they are: a command
    that does not read them cannot know. Those in ``without`` are not tried.
    """
    for what, path, folder in damaged(state, random.Random(0)):
        if what.endswith(tuple(without)):
            continue
        restore(folder, command.out)
        fault = command.run()
        if fault is None:
            besides = () if path.startswith(tuple(outputs)) else (path,)
            fault = command.difference(besides)
            if fault is not None and _is_named(command.out, path, fault):
                fault = None
        elif fault.startswith("exit 1") and all(name in fault for name in path.split("/")):
            fault = None
        tally.check(what, fault)


def _is_named(out, path, fault):
    """Whether the output that differs says what is missing, in its own words."""
    text = (out / fault.split(": ", 1)[1]).read_text(encoding="utf-8")
    label, _, rest = path.partition("/")
    variant = rest.partition("/")[0]
    sentences = (
        f"{path} is missing",
        f"{label} has no result of {variant}.",
        f"left out: {out / path}: ",
        f"{label} is left out of {variant}: {out / path}: ",
        f" was not compared: {out / path}:",  # the pair is named by its other model
    )
    return any(sentence in text for sentence in sentences)


def interrupted(recorded, *present):
    """What an undisturbed run held when these files were there for the first time."""
    states = (m.killed for m in recorded.moments if m.killed.keys() >= set(present))
    return next(states)


@pytest.mark.scheduled
def test_an_interrupted_training(recorded):
    known = recorded("train")
    state = interrupted(known, "checkpoints/checkpoint-4/manifest.json")
    with trial("damages of an interrupted training", minimum=150) as tally:
        try_all(known.command, state, tally)


@pytest.mark.scheduled
def test_a_finished_training(recorded):
    known = recorded("train")
    known.command.start()
    assert known.command.run() is None
    with trial("damages of a finished training", minimum=90) as tally:
        try_all(
            known.command, commands.held(known.command.out), tally,
            without=["costs.json missing", "launches.jsonl missing"],
        )  # fmt: skip


UNTOLD = ["costs.json missing", "data.json missing"]
"""Of a finished part, and what older records lack."""


@pytest.mark.scheduled
def test_an_interrupted_evaluation(recorded):
    known = recorded("evaluate")
    state = interrupted(known, "softmax/hallucination/result.json", "diff/key_values/items.jsonl")
    with trial("damages of an interrupted evaluation", minimum=60) as tally:
        try_all(known.command, state, tally, without=UNTOLD)


OUTPUTS = {
    "evaluate": ("",),
    "judge": tuple(
        f"{kind}/hallucination.judged-judge/{name}"
        for kind in ("diff", "softmax")
        for name in ("run.json", "requests.jsonl", "items.jsonl", "result.json")
    ),
    "report": ("r",),
}
"""Commands, and what of an evaluation folder they write whole: replies stand as they came."""


@pytest.mark.scheduled
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_finished_evaluation(recorded, name):
    command = recorded(name).command
    command.start()
    assert command.run() is None
    with trial(f"damages of a finished evaluation, then {name}", minimum=60) as tally:
        state = commands.held(command.out)
        try_all(command, state, tally, outputs=OUTPUTS[name], without=UNTOLD)
