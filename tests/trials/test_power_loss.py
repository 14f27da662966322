"""The power goes at any write of a command: what was not synced is lost, and it continues.

Four kinds of loss, from files whose content never came to names that were never written: see
``disk.LOSSES``.
"""

import random

import pytest

from tally import trial
from trials.disk import LOSSES
from trials.test_kill_points import POINTS, points


def test_a_few_points_of_every_push(recorded):
    known = recorded("pack")
    with trial("power loss at points of a push", minimum=30) as tally:
        for moment in known.moments[::5]:
            for loss, state in moment.lost.items():
                tally.check(f"{loss}, {moment.what}", known.command.continued(state))


@pytest.mark.scheduled
@pytest.mark.parametrize("name", POINTS)
def test_every_point(recorded, name):
    known = recorded(name)
    with trial(f"{name}: power lost at every write", minimum=POINTS[name] * 2) as tally:
        for moment in points(known):
            for loss, state in moment.lost.items():
                tally.check(f"{loss}, {moment.what}", known.command.continued(state))


@pytest.mark.scheduled
@pytest.mark.parametrize(
    ("name", "step"), [("train", 9), ("pack", 2), ("evaluate", 7), ("judge", 5)]
)
def test_lost_again_while_it_continues(recorded, name, step):
    """At one point of the run after a loss, drawn at random; the third run ends."""
    known, rng = recorded(name), random.Random(1)
    whole = [moment for moment in known.moments if moment.lost]
    with trial(f"{name}: power lost twice", minimum=15) as tally:
        for moment in whole[::step]:
            first, second = rng.choice(LOSSES), rng.choice(LOSSES)
            again = [m for m in known.command.recorded(moment.lost[first]).moments if m.lost]
            then = rng.choice(again)
            fault = known.command.continued(then.lost[second])
            tally.check(f"{first}, {moment.what}, then {second}, {then.what}", fault)
