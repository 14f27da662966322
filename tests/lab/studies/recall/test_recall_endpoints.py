"""Differences in steps, the tests of types, and when a task says nothing."""

import pytest

from diffattn.lab.catalog.models import RECALL_CONTROLS
from diffattn.lab.stats.paired import holm
from diffattn.lab.stats.survival import log_rank
from diffattn.lab.studies.recall.summary import explain_uninformative, find_leak, step_differences

STEPS = 1000
NOT_LEAKING = {"limit": 0.1, "highest": 0.07, "leaks": False}
EARLY, LATE, LATEST = ([*range(start, start + 80, 10)] for start in (100, 500, 800))
NEVER = [None] * 8


def task_of(types, controls=None):
    """A task of made-up steps, as far as it is read here."""
    entry = {"num_steps": STEPS}
    for key, models in (("types", types), ("controls", controls or {})):
        entry[key] = {
            name: {"solved_steps": steps, "solved": len(steps) - steps.count(None)}
            for name, steps in models.items()
        }
    return entry


def differences_of(types, controls=None):
    rows = step_differences({"task": task_of(types, controls)})["task"]
    return {(row["variant"], row["baseline"]): row for row in rows}


def test_types_are_tested_and_controls_are_estimates():
    """Against the Transformer, and controls against V1; models without attention in neither."""
    controls = dict.fromkeys(RECALL_CONTROLS, LATEST) | {"none": NEVER[:3], "none_ffn": NEVER[:3]}
    rows = differences_of({"softmax": LATE, "diff": EARLY, "diff_v2": LATE}, controls)
    attending = [name for name in RECALL_CONTROLS if not name.startswith("none")]
    against = [(name, "softmax") for name in ("diff", "diff_v2", *attending)]
    assert list(rows) == [*against, *((name, "diff") for name in attending)]
    tested = {pair: row for pair, row in rows.items() if "p" in row}
    assert list(tested) == against[:2]
    lead = rows["diff", "softmax"]
    assert lead["values"] == [-400] * 8
    assert (lead["mean"], lead["low"], lead["high"], lead["level"]) == (-400, -400, -400, 0.95)
    assert lead["p"] == log_rank(EARLY, LATE, STEPS)
    assert lead["p_holm"] == 2 * lead["p"] < 0.001
    assert rows["diff_v2", "softmax"]["p_holm"] == 1
    assert rows["diff_uniform", "diff"]["mean"] == 700


def test_the_tests_of_all_tasks_are_one_family():
    slower = [*range(120, 200, 10)]
    tasks = {
        "a": task_of({"softmax": slower, "diff": EARLY, "diff_v2": LATE}),
        "b": task_of({"softmax": EARLY, "diff": slower}, {"softmax_half": LATE}),
    }
    rows = [row for entries in step_differences(tasks).values() for row in entries if "p" in row]
    assert [row["p_holm"] for row in rows] == holm([row["p"] for row in rows])
    assert len(rows) == 3


def test_a_run_that_never_learned_comes_after_every_other():
    """By all steps; one of twelve turns neither the median nor the test, as it would a mean."""
    soon = [175, 200, 225, 225, 225, 250, 200, 225, 275, 225, 250, None]
    late = [325, 350, 350, 375, 400, 325, 350, 350, 375, 400, 350, 325]
    row = differences_of({"softmax": late, "diff": soon})["diff", "softmax"]
    assert row["values"][-1] == STEPS
    assert (row["mean"], row["low"], row["high"]) == (-137.5, -150, -100)
    assert row["p_holm"] < 0.01
    few = differences_of({"softmax": [900, None, None], "diff": [400, 500, None]})
    row = few["diff", "softmax"]
    assert (row["values"], row["mean"]) == ([-500, -1000, 0], -500)
    assert (row["low"], row["high"]) == (None, None)  # three seeds give no interval


@pytest.mark.parametrize(
    ("steps", "leak", "why"),
    [
        (EARLY, NOT_LEAKING, ""),
        (
            EARLY,
            {"limit": 0.1, "highest": 0.4, "leaks": True},
            "answers 0.400 of the queries, more than the 0.100",
        ),
        (NEVER, NOT_LEAKING, "no run of any type was solved"),
    ],
)
def test_uninformative(steps, leak, why):
    reason = explain_uninformative(task_of({"softmax": NEVER, "diff": steps})["types"], leak)
    assert why in reason
    assert bool(why) == bool(reason)


def test_a_model_without_attention_must_stay_at_a_guess_of_any_value():
    """Not at one of the context's values: it cannot know them."""
    ceilings = {"values": 1 / 16, "pairs": 1 / 4}
    at_guess = {"none": {"test_accuracy": [0.07]}, "none_ffn": {"test_accuracy": [0.1]}}
    leak = find_leak(at_guess, ceilings, 512)
    assert leak == {"limit": pytest.approx(0.10529, abs=1e-5), "highest": 0.1, "leaks": False}
    assert find_leak({"none": {"test_accuracy": [0.25]}}, ceilings, 512)["leaks"] is True
