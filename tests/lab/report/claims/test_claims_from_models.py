"""Effects of evaluations: paired by seed, over the same parts, held against controls."""

from dataclasses import replace

import pytest

from diffattn.lab.records.evaluations import Metric
from diffattn.lab.report.claims.from_evaluations import evaluated, evaluated_ratio
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.report.claims.tables import CLAIMS
from evaluation_folders import eval_result

BY_ID = {claim.id: claim for claim in CLAIMS}


def evaluation(label, variant, *metrics):
    return eval_result("needle", variant=variant, model={"label": label}, metrics=list(metrics))


def recall(value, where=None):
    return Metric(name="recall", value=value, n=9, headline=True, where=where or {})


def test_evaluations_are_paired_by_the_seed_of_the_models():
    def both(value):
        return recall(value, {"depth": 0}), replace(recall(1.0, {"depth": 50}), headline=False)

    records = ClaimRecords(
        evaluations=tuple(
            evaluation(f"{kind}-seed{seed}", variant, *both(value))
            for kind, seed, variant, value in (
                ("softmax", 0, "a", 0.25), ("diff", 0, "a", 0.5), ("softmax", 1, "a", 0.25),
                ("diff", 1, "a", 0.75), ("diff", 2, "a", 0.0), ("diff_v2", 0, "a", 0.0),
                ("diff", 0, "b", 0.0),
            )
        )
    )  # fmt: skip
    only_a = evaluated(records, "needle", "recall", "diff", parts=("a",))
    assert (only_a.effect, only_a.n) == (0.375, 2)
    every = evaluated(records, "needle", "recall", "diff")
    assert (every.effect, every.note) == (0.375, "1 of 2 parts, which all models have")
    assert evaluated(records, "needle", "recall", "diff", where={"depth": 50}).effect == 0
    assert evaluated(records, "ruler", "recall", "diff") is None


def test_a_lead_has_to_exceed_a_control_where_less_is_better():
    """``test_evaluated_claims.py`` has scores of which more is better."""
    results = [
        evaluation(f"{kind}-seed{seed}", "a", recall(mean + 0.01 * seed))
        for kind, mean in {"softmax": 0.5, "diff": 0.25, "softmax_half": 0.0}.items()
        for seed in range(3)
    ]
    records = ClaimRecords(evaluations=results)
    effect = evaluated(records, "needle", "recall", "diff", better="below")
    assert effect.uninformative == "not shown to do better than controls: Softmax × ½"


def test_the_needles_are_those_that_the_paper_prints_or_are_named():
    def of(label, *values):
        tasks = ("N=6, R=2", "N=4, R=2", "N=1, R=1")
        numbers = [
            recall(value, {"task": task})
            for task, value in zip(tasks, values, strict=True)
            if value is not None
        ]
        return evaluation(label, "needle", *numbers)

    def needles(*results):
        return BY_ID["needles"].measure(ClaimRecords(evaluations=results))

    whole = needles(of("softmax-seed0", 0.5, 0.5, 1.0), of("diff-seed0", 0.75, 0.25, 0.0))
    assert (whole.effect, whole.note) == (0.25, "")
    rest = needles(of("softmax-seed0", None, 0.5, 1.0), of("diff-seed0", 0.75, 0.25, 0.5))
    assert (rest.effect, rest.note) == (-0.375, "N=1, R=1; N=4, R=2 in place of N=6, R=2")
    assert needles(of("softmax-seed0", 0.5, None, None), of("diff-seed0", None, 1.0, 1.0)) is None


def test_ratios_are_geometric_means_over_seeds():
    values = {"softmax-seed0": 8.0, "diff-seed0": 2.0, "softmax-seed1": 3.0, "diff-seed1": 3.0}
    records = ClaimRecords(
        evaluations=tuple(evaluation(label, "a", recall(value)) for label, value in values.items())
    )
    of = evaluated_ratio(records, "needle", "recall", "diff")
    assert (of.effect, of.n) == (pytest.approx(0.5), 2)  # a quarter and one
    assert of.low < 0.5 < of.high
    assert evaluated_ratio(records, "needle", "recall", "diff_v2") is None
