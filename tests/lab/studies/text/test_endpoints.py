"""The two tests of every type, and the lead adjusted for the step at which copying begins."""

import numpy as np
import pytest
from scipy import stats

from diffattn.lab.studies.text.results import adjusted_leads, crossing, loss_curve
from lab.studies.text.made_up_losses import CURVE, LOSSES, study


def test_every_type_is_tested_by_loss_and_by_tokens():
    entries = study()["endpoints"]
    types = ("diff", "diff_v2", "shared_diff")
    pairs = [(entry["variant"], entry["measure"]) for entry in entries]
    assert pairs == [(name, measure) for measure in ("loss", "tokens") for name in types]
    alone = [entry["p"] for entry in entries]
    expected = stats.ttest_rel(LOSSES["diff"], LOSSES["softmax"]).pvalue
    assert alone[0] == pytest.approx(expected)
    order, highest = np.argsort(alone), 0.0
    for rank, index in enumerate(order):  # Holm by hand
        highest = max(highest, min(1.0, (6 - rank) * alone[index]))
        assert entries[index]["p_holm"] == pytest.approx(highest)


def test_tokens_to_the_transformers_loss():
    """Curves fall in a line from 7.0 at step 0; a worse model would need more than all tokens."""
    v1, _, shared = study()["endpoints"][3:]
    for name, entry in (("diff", v1), ("shared_diff", shared)):
        pairs = zip(LOSSES[name], LOSSES["softmax"], strict=True)
        shares = [(7 - end - CURVE) / (7 - low - CURVE) for low, end in pairs]
        assert entry["values"] == pytest.approx(shares)
    assert min(shared["values"]) > 1


def test_a_pair_that_is_not_compared_counts_with_one():
    alone, apart = study(), study(late=("diff_v2",))
    for before, after in zip(alone["endpoints"], apart["endpoints"], strict=True):
        assert after["p"] == before["p"]
        assert after["p_holm"] >= before["p_holm"] - 1e-12
        assert after["variant"] != "diff_v2" or after["p_holm"] == 1.0


def test_where_a_curve_crosses():
    curve = loss_curve(
        [
            {"step": 0, "validation_loss": 5.0, "validation_parts": {"new": 6.0}},
            {"step": 1, "train_loss": 4.9},
            {"step": 100, "validation_loss": 3.0, "validation_parts": {}},
        ]
    )
    assert curve == [(0, 5.0), (100, 3.0)]
    assert [crossing(curve, loss) for loss in (5.5, 4.0, 3.0, 2.9)] == [0.0, 50.0, 100.0, None]
    rows = [{"step": 0, "validation_loss": 5.0, "validation_parts": {"new": 6.0}}]
    assert loss_curve(rows, "new") == [(0, 6.0)]


def test_a_lead_that_is_timing_alone_vanishes():
    """Loss = 3 + 0.001 × step, and V2 starts 400 steps sooner; V1 is 0.2 lower at any step."""
    steps = {"softmax": (500, 600, 720), "diff_v2": (100, 210, 300), "diff": (510, 620, 700)}
    lower = {"softmax": 0.0, "diff_v2": 0.0, "diff": 0.2}
    noise = (1e-4, -1e-4, 0.0)
    variants, starts = {}, {}
    for name, of_name in steps.items():
        runs = [f"{name}-seed{seed}" for seed in range(3)]
        starts |= dict(zip(runs, of_name, strict=True))
        losses = [
            3 + step / 1_000 - lower[name] + e for step, e in zip(of_name, noise, strict=True)
        ]
        group = {"runs": runs, "validation_loss": {"values": losses}}
        variants[name] = {"at": {"best": group}}
    leads = {entry["variant"]: entry for entry in adjusted_leads(variants, starts)}
    assert leads["diff_v2"]["mean"] == pytest.approx(0.0, abs=1e-3)
    assert leads["diff_v2"]["low"] < 0 < leads["diff_v2"]["high"]
    assert leads["diff"]["mean"] == pytest.approx(-0.2, abs=1e-3)
    assert adjusted_leads(variants, starts | {"softmax-seed0": None}) == []
    assert adjusted_leads(variants, dict.fromkeys(starts, 500.0)) == []
    del variants["diff"]
    assert [e["variant"] for e in adjusted_leads(variants, starts)] == ["diff_v2"]
