"""Claims measured by the studies of recall, scaling, stability and gradient flow."""

from functools import partial

import pytest

from diffattn.lab.report.claims.from_studies import (
    STUDY_MEASURES,
    gradient_factor,
    recall_steps,
    scaling_ratio,
    stability_difference,
)
from diffattn.lab.report.claims.records import ClaimRecords

NOT_BETTER = "not shown to do better than controls: "
LEAD = {"variant": "diff", "baseline": "softmax", "values": [-150] * 9 + [200], "level": 0.95}
LEAD |= {"mean": -137.5, "low": -150, "high": -100}
CONTROL = {"variant": "diff_uniform", "baseline": "diff", "low": -25}


def measured_steps(*rows, why=""):
    task = {"differences": list(rows), "uninformative": why}
    records = ClaimRecords(studies={"recall": {"tasks": {"noisy_recall": task}}})
    return recall_steps(records, "noisy_recall", "diff")


def test_the_difference_of_the_record_of_recall_is_the_effect():
    steps = measured_steps(LEAD, CONTROL | {"low": 25})
    assert (steps.effect, steps.low, steps.high, steps.n) == (-137.5, -150, -100, 10)
    assert steps.uninformative == ""
    assert measured_steps(CONTROL) is None
    assert recall_steps(ClaimRecords(), "noisy_recall", "diff") is None


@pytest.mark.parametrize(
    ("change", "low", "why", "reservation"),
    [
        ({}, -25, "", f"{NOT_BETTER}DIFF V1, uniform second map"),
        ({}, None, "", f"{NOT_BETTER}DIFF V1, uniform second map"),
        ({}, -25, "It leaks.", "It leaks."),
        ({"mean": 1000}, -25, "", ""),  # a control excuses no model that trails
    ],
)
def test_reservations_about_recall(change, low, why, reservation):
    steps = measured_steps(LEAD | change, CONTROL | {"low": low}, why=why)
    assert steps.uninformative == reservation


def scaling(ratio=0.8, against=0.9, *, informative=True, seeds=5, refused=None):
    """Shares of DIFF V1 at the middle of three points, with ends a tenth below and above."""

    def row(baseline, share, refused=None):
        low, high = (None, None) if share is None else (share / 1.1, share * 1.1)
        ends = {"ratio": share, "low": low, "high": high, "level": 0.95}
        return {"type": "diff", "baseline": baseline, "point": 1, "refused": refused} | ends

    rows = [row("softmax", ratio, refused), row("softmax", 0.1) | {"point": 0}]
    names = ["softmax", "diff"]
    if against is not None:
        rows.append(row("softmax_minus_mean", against))
        names.append("softmax_minus_mean")
    points = [{"loss": {"values": [3.0] * seeds}}] * 3
    of = {"read_at": 1, "types": {name: {"points": points} for name in names}}
    message = {"informative": informative, "sentence": "Made up."}
    axes = {axis: of | {"equivalents": rows} for axis in ("parameters", "tokens")}
    study = {"axes": axes, "verdict": {"axes": dict.fromkeys(axes, message)}}
    return ClaimRecords(studies={"scaling": study})


def test_parameters_and_tokens_at_equal_loss():
    results = scaling_ratio(scaling(), "parameters", "diff")
    assert (results.effect, results.n, results.unit) == (0.8, 3, "sizes of 5 seeds")
    assert (results.low, results.high) == pytest.approx((0.8 / 1.1, 0.8 * 1.1))
    assert scaling_ratio(scaling(seeds=2), "tokens", "diff").unit == "budgets of 2 seeds"
    assert scaling_ratio(scaling(), "tokens", "shared_diff") is None


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (scaling(), ""),
        (scaling(informative=False), "Made up."),
        (scaling(against=None), "the record holds no control"),
        (scaling(1.25, against=None), ""),  # nothing is saved
        (scaling(against=0.95), f"{NOT_BETTER}Softmax − 0.7 mean value"),
        (scaling(None, refused="diff has no fit"), "diff has no fit"),
    ],
)
def test_reservations_about_fits(record, why):
    assert scaling_ratio(record, "parameters", "diff").uninformative == why


def test_stability_over_the_rates_at_which_both_attend():
    entry = {"type": "diff_v2", "baseline": "diff", "metric": "loss_spike_share"}
    ends = {"mean": -0.375, "low": -1.0, "high": 0.25}
    over = entry | {"learning_rate": None, "values": [-0.25, -0.5]} | ends
    alone = entry | {"learning_rate": 0.002, "values": [1.0, 1.0]}
    records = ClaimRecords(studies={"stability": {"types": {}, "differences": [alone, over]}})
    spikes = partial(stability_difference, records, "loss_spike_share", "diff_v2", "diff")
    for rates, why, note in (
        ([0.002], "the lowest rate alone", "rates 0.002"),
        ([0.002, 0.008], "", "rates 0.002 and 0.008"),
    ):
        over |= {"rates": rates, "why": why}
        assert (spikes().effect, spikes().uninformative, spikes().note) == (-0.375, why, note)
    assert stability_difference(records, "loss", "diff_v2", "diff") is None


def test_gradients_by_the_largest_factor_of_each_seed():
    rows = [
        {"id": "level-large-values", "values": [8.0, 8.1, 7.9], "why": ""},
        {"id": "updates", "values": [1.25, 1.25, 1.25], "why": "so are the control's"},
        {"id": "drift-width", "values": [], "why": "a size is not known"},
    ]
    rows = [row | {"mean": 8.0, "low": 7.7, "high": 8.3} for row in rows]
    records = ClaimRecords(studies={"gradient-flow": {"judgements": rows}})
    outcome = gradient_factor(records, "level-large-values")
    assert (outcome.effect, outcome.low, outcome.high, outcome.n) == (8.0, 7.7, 8.3, 3)
    names = ("updates", "gradients-constant", "head-norm-scale")
    updates, constant, missing = (STUDY_MEASURES[name].measure(records) for name in names)
    assert updates.uninformative == "so are the control's"
    assert constant.uninformative == "a size is not known"
    assert missing is None
