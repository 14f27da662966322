"""The gradient-flow study: its runs, its rules by hand, and two processes that give the same."""

import pytest

from diffattn.lab.report.sections.gradient_flow import BASE
from diffattn.lab.studies.gradient_flow.judgements import (
    DRIFT,
    LEVEL,
    gradient_flow_results,
    judge_factors,
)
from diffattn.lab.studies.gradient_flow.runs import MATRICES, NULL, gradient_flow_study
from record_files import the_row


@pytest.mark.parametrize(
    ("values", "low", "high", "verdict"),
    [
        ([1.1, 1.2, 1.3], 1.0, 1.9, "agrees"),
        ([3.0, 4.0, 5.0], 2.1, 6.0, "disagrees"),
        ([1.1, 2.0, 3.0], 0.9, 3.0, "inconclusive"),
        ([9.0, 9.1], 8.0, 10.0, "inconclusive"),
        ([9.0], None, None, "inconclusive"),
    ],
)
def test_the_rule(values, low, high, verdict):
    assert judge_factors(values, low, high, LEVEL) == verdict


def made_up(gradient, *, head_rms=0.5, seeds=(0, 1, 2)):
    """Results where ``gradient(arm, type, seed, phase, matrix)`` gives sizes; updates are 1."""
    config = gradient_flow_study("smoke", seeds=seeds)
    results, rows = {}, {}
    for planned in config.planned_runs():
        config_of_run = planned.config
        run, model, seed = config_of_run.name, config_of_run.model, config_of_run.train.seed
        pairs = [(arm, name) for arm in config.arms for name in config.types(arm)]
        arm, name = next(pair for pair in pairs if run == f"{'-'.join(pair)}-seed{seed}")
        layers = range(model.num_hidden_layers)
        has_init = model.attention_type in ("diff", "shared_diff")
        init = [model.layer_lambda_init(i) for i in layers] if has_init else None
        results[run] = {"run": run, "validation_loss": 3.0, "lambda_init": init}
        rows[run] = []
        for phase, steps in config.phases.items():
            for step in steps:
                sizes = {m: gradient(arm, name, seed, phase, m) for m in (*MATRICES, "ffn")}
                layer = {m: {"gradient": x, "update": 1.0, "slope": x} for m, x in sizes.items()}
                layer |= {"head_rms": head_rms, "norm_gain": 1.0}
                rows[run].append({"step": step, "layers": [layer for _ in layers]})
    return gradient_flow_results(config, results, rows)


def sizes(diff=1.0, half=0.5, wide_lambda=1.0):
    def gradient(arm, name, seed, phase, matrix):
        of = {"diff": diff, "softmax_half": half, "diff_lambda_08": wide_lambda}
        return of.get(name, 1.0) * (1 + 0.01 * seed * (len(name) % 3))

    return gradient


def verdicts(outcome):
    return {row["id"]: row["verdict"] for row in outcome["judgements"]}


def test_tenfold_gradients_disagree_and_alike_ones_agree():
    outcome = made_up(sizes(diff=10.0))
    assert verdicts(outcome)["drift-width"] == "agrees"
    assert verdicts(outcome)["level"] == verdicts(outcome)["level-twin"] == "disagrees"
    assert verdicts(outcome)["level-no-norm"] == "agrees"
    assert the_row(outcome["judgements"], id="level")["mean"] == pytest.approx(10, rel=0.05)
    of = {"arm": BASE, "type": "diff", "baseline": "softmax_wide", "phase": "start"}
    ratio = the_row(outcome["ratios"], **of, matrix="v", measure="gradient")
    # Seeds 0, 1 and 2; names of 4 and 12 letters.
    assert ratio["values"] == pytest.approx([10, 10 * 1.01 / 1.0, 10 * 1.02 / 1.0])
    assert ratio["mean"] == pytest.approx(10 * (1.01 * 1.02) ** (1 / 3))


def test_nothing_is_judged_if_the_control_is_not_seen():
    outcome = made_up(sizes(diff=10.0, half=1.0))
    assert set(verdicts(outcome).values()) == {"uninformative"}
    assert outcome["verdict"]["informative"] is False


@pytest.mark.scheduled
def test_a_phase_in_which_seeds_differ_as_much_is_not_judged():
    quiet = sizes()

    def gradient(arm, name, seed, phase, matrix):
        wild = phase == "late" and seed == 1
        return quiet(arm, name, seed, phase, matrix) * (8.0 if wild else 1.0)

    outcome = made_up(gradient)
    assert {tuple(row["phases"]) for row in outcome["judgements"]} == {("start",)}
    alike = {row["id"]: row["phases"] for row in made_up(quiet)["judgements"]}
    assert (alike["level"], alike["drift-width"]) == (["start", "late"], ["start"])
    over_time = the_row(outcome["judgements"], id="drift-time")
    assert (over_time["verdict"], over_time["why"]) == ("uninformative", "no later phase is judged")
    assert verdicts(made_up(quiet))["drift-time"] == "agrees"
    null = [row for row in outcome["ratios"] if row["type"] == NULL and row["phase"] == "late"]
    assert max(max(row["values"]) for row in null if row["measure"] == "gradient") > 7


@pytest.mark.scheduled
def test_a_ratio_that_changes_with_lambda_init_drifts():
    outcome = made_up(sizes(wide_lambda=3.0))
    assert verdicts(outcome)["drift-lambda-init"] == "disagrees"
    row = the_row(outcome["judgements"], id="drift-lambda-init")
    assert row["bound"] == DRIFT
    assert row["mean"] == pytest.approx(3.0, rel=0.05)


@pytest.mark.scheduled
def test_heads_against_their_factor():
    outcome = made_up(sizes(), head_rms=0.8)
    entry = next(row for row in outcome["heads"] if (row["arm"], row["type"]) == (BASE, "diff"))
    assert entry["head_rms"]["mean"] == pytest.approx(0.8)
    assert entry["to_factor"]["mean"] == pytest.approx(0.8 / (1 - entry["lambda_init"]))
    assert verdicts(outcome)["head-rms"] == "agrees"
    assert verdicts(made_up(sizes(), head_rms=0.01))["head-rms"] == "disagrees"


@pytest.mark.scheduled
def test_one_seed_has_no_null_and_judges_nothing():
    outcome = made_up(sizes(), seeds=(0,))
    assert set(verdicts(outcome).values()) == {"uninformative"}
    assert all(row["low"] is None for row in outcome["ratios"])
    assert "With one seed there is no interval" in outcome["statement"]
