"""Killed at any of its writes, or without power there, a command continues when called again.

The end is that of an undisturbed run, to the byte apart from times, and nothing is left over. Of a
loss of power there are four kinds, see ``disk.Moment``.
"""

import multiprocessing
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from tally import trial
from trials import commands
from trials.commands import Command, call
from trials.disk import Recorder
from trials.tracing import recording

POINTS = {"train": 81, "pack": 25, "evaluate": 94, "judge": 40, "reproduce": 40, "report": 5}
"""Commands, and the points each must have at least."""
TWICE = [("train", 9), ("pack", 2), ("evaluate", 7), ("judge", 5)]
"""Commands stopped a second time, each at one in so many points."""


def points(recorded):
    """All moments; of a study's data and runs, which are those of ``train``, a few."""
    for number, moment in enumerate(recorded.moments):
        is_shared = re.search(r" (data|runs)/", moment.what) is not None
        is_sampled = number % 30 == 0 or moment.what.endswith("/checkpoints")
        if recorded.command.name != "reproduce" or not is_shared or is_sampled:
            yield moment


STOPS = {
    "killed": lambda moment: {"killed": moment.killed},
    "power lost": lambda moment: moment.lost,
}
"""Kinds of stop, and the states that each may leave, by kind of loss."""
PUSHED = [("pack", 5), ("train", 250)]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(
    ("name", "step"),
    [*PUSHED, *(pytest.param(name, 1, marks=pytest.mark.scheduled) for name in POINTS)],
)
def test_a_command_stopped_at_any_write_continues(recorded, name, step, stop):
    known, minimum = recorded(name), POINTS[name] // step
    with trial(f"{name}: {stop} at one write in {step}", minimum=minimum) as tally:
        for moment in list(points(known))[::step]:
            for loss, state in STOPS[stop](moment).items():
                tally.check(f"{loss}, {moment.what}", known.command.continued(state))


@pytest.mark.scheduled
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(("name", "step"), TWICE)
def test_stopped_again_while_it_continues(recorded, name, step, stop):
    """At one point of the second run, drawn at random; the third one ends."""
    known, left, rng = recorded(name), STOPS[stop], random.Random([*STOPS].index(stop))
    whole = [moment for moment in known.moments if left(moment)]
    with trial(f"{name}: {stop} twice", minimum=15) as tally:
        for moment in whole[::step]:
            kinds = [*left(moment)]
            first, second = (rng.choice(kinds) if len(kinds) > 1 else kinds[0] for _ in range(2))
            again = [m for m in known.command.recorded(left(moment)[first]).moments if left(m)]
            then = rng.choice(again)
            fault = known.command.continued(left(then)[second])
            tally.check(f"{first}, {moment.what}, then {second}, {then.what}", fault)


def die_at(out, arguments, number):
    """A child: run a command and be killed before one of its events."""

    def die(now, what):
        if now == number:
            os.kill(os.getpid(), signal.SIGKILL)

    recorder = Recorder(Path(out), die, snapshots=False)
    with commands.small_batches(), recording(recorder):
        call(arguments)


@pytest.mark.scheduled
@pytest.mark.parametrize("name", ["train", "evaluate", "pack"])
def test_what_is_held_at_a_point_is_what_a_kill_leaves(recorded, warm, name):
    """The points above are looked at from within the process; here it really dies."""
    known = recorded(name)
    command = known.command
    held_at = {m.what: m.killed for m in known.moments if m.lost}
    with trial(f"{name} with a signal at a write", minimum=5) as tally:
        for number in range(0, len(known.events), len(known.events) // 5):
            command.start()
            child = warm.Process(target=die_at, args=(command.out, command.arguments, number))
            child.start()
            child.join(120)
            assert child.exitcode == -signal.SIGKILL
            names = {commands.nameless(path) for path in command.results()}
            what = f"before {known.events[number]}"
            fault = None
            # Of equal names the last moment is kept: compare those that are unique.
            if [f"before {event}" for event in known.events].count(what) == 1:
                expected = {commands.nameless(path) for path in held_at[what]}
                fault = None if names == expected else f"{sorted(names ^ expected)} differ"
            tally.check(what, fault or command.run() or command.difference())


def lifetime(warm, command, seconds=None):
    """Seconds that a process of the command lives, which is killed after so many."""
    child, began = warm.Process(target=call, args=(command.arguments,)), time.monotonic()
    child.start()
    child.join(seconds)
    child.kill()
    child.join()
    return time.monotonic() - began


@pytest.mark.scheduled
@pytest.mark.parametrize(("name", "count"), [("train", 40), ("pack", 25)])
def test_killed_at_any_time(recorded, warm, name, count):
    """Not at a write but whenever the signal comes."""
    command, rng = recorded(name).command, random.Random(0)
    for _ in range(2):  # the first one loads what the others find loaded
        command.start()
        whole = lifetime(warm, command)
    with trial(f"{name} killed at random times", minimum=count) as tally:
        for _ in range(count):
            command.start()
            seconds = rng.uniform(0, whole)
            lifetime(warm, command, seconds)
            tally.check(f"after {seconds:.3f} s", command.run() or command.difference())


def rows_of(log):
    return log.read_bytes().count(b"\n") if log.exists() else 0


@pytest.mark.parametrize("kills", [pytest.param(20, marks=pytest.mark.scheduled), 2])
def test_one_training_is_killed_again_and_again(tmp_path, kills):
    """Its log has the loss of every step, which is that of the windows it read."""
    forks = multiprocessing.get_context("fork")  # of this process, as it has loaded everything
    out, rng = tmp_path / "train", random.Random(0)
    changes = commands.settings(commands.corpus(tmp_path / "text"), 20 + 10 * kills)
    arguments = ["train", "smoke", "--attention", "diff", "--out", out, *changes]
    command = Command("train", arguments, out)
    assert command.run() is None
    command.expected = command.results()
    command.start()
    with trial(f"one training killed {kills} times", minimum=kills + 1) as tally:
        for number in range(kills):
            child = forks.Process(target=call, args=(arguments,))
            rows = rows_of(out / "metrics.jsonl") + rng.randint(3, 12)
            child.start()
            while child.is_alive() and rows_of(out / "metrics.jsonl") < rows:
                time.sleep(1e-3)
            child.kill()
            child.join()
            ended = child.exitcode != -signal.SIGKILL
            tally.check(f"kill {number}", "it had ended before" if ended else None)
        tally.check("at the end", command.run() or command.difference())
