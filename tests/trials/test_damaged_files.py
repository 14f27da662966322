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


INTERRUPTED = {
    "train": {"checkpoints/checkpoint-4/manifest.json"},
    "evaluate": {"softmax/hallucination/result.json", "diff/key_values/items.jsonl"},
}
"""Commands, and files that were all there when they were interrupted."""
OUTPUTS = {
    "train": ("",),
    "evaluate": ("",),
    "judge": tuple(
        f"{kind}/hallucination.judged-judge/{name}"
        for kind in ("diff", "softmax")
        for name in ("run.json", "requests.jsonl", "items.jsonl", "result.json")
    ),
    "report": ("r",),
}
"""Commands, and what of a folder they write whole: replies stand as they came."""
UNTOLD = ["costs.json missing", "data.json missing"]
"""Of a finished part, and what older records lack."""


@pytest.mark.scheduled
@pytest.mark.parametrize("name", INTERRUPTED)
def test_what_an_interrupted_command_left(recorded, name):
    known = recorded(name)
    states = (m.killed for m in known.moments if m.killed.keys() >= INTERRUPTED[name])
    with trial(f"damages of an interrupted {name}", minimum=60) as tally:
        without = UNTOLD if name == "evaluate" else ()
        try_all(known.command, next(states), tally, without=without)


@pytest.mark.scheduled
@pytest.mark.parametrize("name", OUTPUTS)
def test_what_a_finished_command_left(recorded, name):
    """Of an evaluation also what a judge and a report read of it."""
    command = recorded(name).command
    command.start()
    assert command.run() is None
    without = UNTOLD if name != "train" else ["costs.json missing", "launches.jsonl missing"]
    with trial(f"damages of a finished folder, then {name}", minimum=60) as tally:
        state = commands.held(command.out)
        try_all(command, state, tally, outputs=OUTPUTS[name], without=without)
