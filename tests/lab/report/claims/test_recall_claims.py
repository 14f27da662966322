"""The claim about recall: the recorded median, and its reservations."""

import pytest

from diffattn.lab.report.claims.from_studies import recall_steps
from diffattn.lab.report.claims.records import ClaimRecords

LEAD = {"variant": "diff", "baseline": "softmax", "values": [-150] * 9 + [200], "level": 0.95}
LEAD |= {"mean": -137.5, "low": -150, "high": -100}
CONTROL = {"variant": "diff_uniform", "baseline": "diff", "low": -25}


def measured(*rows, why=""):
    task = {"differences": list(rows), "uninformative": why}
    records = ClaimRecords(studies={"recall": {"tasks": {"noisy_recall": task}}})
    return recall_steps(records, "noisy_recall", "diff")


def test_the_difference_of_the_record_is_the_effect():
    steps = measured(LEAD, CONTROL | {"low": 25})
    assert (steps.effect, steps.low, steps.high, steps.n) == (-137.5, -150, -100, 10)
    assert steps.uninformative == ""
    assert measured(CONTROL) is None
    assert recall_steps(ClaimRecords(), "noisy_recall", "diff") is None


@pytest.mark.parametrize(
    ("change", "low", "why", "reservation"),
    [
        ({}, -25, "", "not shown to do better than controls: DIFF V1, uniform second map"),
        ({}, None, "", "not shown to do better than controls: DIFF V1, uniform second map"),
        ({}, -25, "It leaks.", "It leaks."),
        ({"mean": 1000}, -25, "", ""),  # a control excuses no model that trails
    ],
)
def test_reservations(change, low, why, reservation):
    steps = measured(LEAD | change, CONTROL | {"low": low}, why=why)
    assert steps.uninformative == reservation
