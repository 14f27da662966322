"""The scaling study: its runs, its fits by known laws, its verdict, and two processes."""

from dataclasses import replace
from functools import cache

import pytest

from diffattn.errors import DiffAttnError
from diffattn.lab.studies.scaling import scaling_results, scaling_study
from record_files import the_row


@cache
def blank():
    """The smoke study, and its results with a loss of 1 throughout."""
    config = scaling_study("smoke", seeds=(0, 1, 2))
    runs = [run.config.name for run in config.planned_runs()]
    return config, scaling_results(config, dict.fromkeys(runs, 1.0))


@cache
def made_up(diff=1.0, control=1.0, *, none=9.0, **options):
    """Results of losses that obey one law, as if a type had 1 / share of its parameters or tokens.

    Seeds differ by a thousandth, so that there are intervals.
    """
    config, results = blank()
    shares, losses = {"diff": diff, "softmax_minus_mean": control}, {}
    for axis in ("parameters", "tokens"):
        for name, of in results["axes"][axis]["types"].items():
            for point in of["points"]:
                # One law of both, since the base run is a point of both axes.
                size = point["parameters"] * point["tokens"] / shares.get(name, 1.0) / 100
                for seed, run in enumerate(point["runs"]):
                    law = 30 * size**-0.4 + 3 + (seed - 1) * 1e-3
                    losses[run] = none if name == "none" else law
    return scaling_results(replace(config, **options), losses)


def read(results, axis, name, baseline="softmax", point=None):
    """At a point, or where the study reads it."""
    of = results["axes"][axis]
    point = of["read_at"] if point is None else point
    return the_row(of["equivalents"], type=name, baseline=baseline, point=point)


def test_a_type_that_needs_less_is_said_to_and_by_how_much():
    outcome = made_up(0.8)
    # The twins' parameters differ by 24 of some thousand, which the made-up law sees.
    for axis in ("parameters", "tokens"):
        row = read(outcome, axis, "diff")
        assert row["ratio"] == pytest.approx(0.8, rel=0.01)
        assert row["low"] < row["ratio"] < row["high"] < 1
        assert read(outcome, axis, "diff", "softmax_minus_mean")["high"] < 1
        assert outcome["verdict"]["axes"][axis]["informative"]
        assert "fewer are needed by DIFF V1 (80 %" in outcome["verdict"]["axes"][axis]["sentence"]
    assert outcome["axes"]["tokens"]["form"] == "offset"
    assert outcome["verdict"]["sentence"].startswith(
        "For the loss of the Transformer and a control whose second map sees nothing, fewer "
        "parameters are needed by DIFF V1 and fewer training tokens are needed by DIFF V1."
    )


def test_a_model_that_diverged_is_left_out_and_the_others_are_judged():
    config, results = blank()
    point = results["axes"]["tokens"]["types"]["diff"]["points"][0]
    losses = dict.fromkeys((run.config.name for run in config.planned_runs()), 1.0)
    judged = scaling_results(config, losses | {point["runs"][1]: None})
    assert all("diff" not in axis["types"] for axis in judged["axes"].values())
    assert all("softmax" in axis["types"] for axis in judged["axes"].values())
    assert judged["statement"].startswith("Left out, as a run diverged: ")
    assert all(run.records_divergence for run in config.planned_runs())
    vital = results["axes"]["tokens"]["types"]["softmax"]["points"][0]["runs"][0]
    with pytest.raises(DiffAttnError, match=f"got none from {vital}. The others are kept"):
        scaling_results(config, losses | {vital: None})


def test_a_control_that_does_as_well_is_named():
    outcome = made_up(0.8, 0.8)
    assert outcome["verdict"]["sentence"].startswith(
        "No differential type is shown to need fewer parameters or fewer training tokens than both"
    )
    sentence = outcome["verdict"]["axes"]["tokens"]["sentence"]
    assert "not shown to need fewer than Softmax − 0.7 mean value" in sentence
    assert "the control Softmax − 0.7 mean value (80 %" in sentence


def test_no_difference_and_more_are_said():
    sentence = made_up()["verdict"]["axes"]["tokens"]["sentence"]
    assert "no difference is shown for DIFF V1 (100 %" in sentence
    sentence = made_up(1.25)["verdict"]["axes"]["tokens"]["sentence"]
    assert "more are needed by DIFF V1 (125 %" in sentence


def test_an_axis_where_attention_gains_nothing_says_nothing_of_types():
    of = made_up(0.8, none=0.5)["verdict"]["axes"]["parameters"]
    assert not of["informative"]
    assert "softmax attention does not beat no attention" in of["sentence"]


def test_a_floor_without_a_fit_has_to_be_well_above():
    """Flat over sizes: no law says how much more it would need."""
    level = made_up()["axes"]["parameters"]
    softmax = level["types"]["softmax"]["points"][level["read_at"]]["loss"]["mean"]
    for above, informative in ((0.05, False), (0.15, True)):
        outcome = made_up(0.8, none=softmax + above)
        assert outcome["axes"]["parameters"]["types"]["none"]["fit"]["refused"]
        of = outcome["verdict"]["axes"]["parameters"]
        assert of["informative"] is informative
        message = "No attention has no fit, and softmax attention beats it by less than 0.1 nats"
        assert (message in of["sentence"]) is not informative


def test_outside_the_points_nothing_is_said_unless_asked():
    last = len(made_up()["axes"]["tokens"]["types"]["diff"]["points"]) - 1
    refused = read(made_up(0.8), "tokens", "diff", point=last)
    assert refused["ratio"] is None
    assert "must lie within the points" in refused["refused"]
    asked = read(made_up(0.8, extrapolate=True), "tokens", "diff", point=last)
    assert asked["extrapolated"]
    assert asked["ratio"] == pytest.approx(0.8, rel=0.01)
