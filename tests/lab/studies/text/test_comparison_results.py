"""Numbers of a comparison against numbers by hand, and the verdict that they lead to."""

import math

import pytest

from diffattn.lab.catalog.models import SWEPT
from diffattn.lab.report.page import phase
from diffattn.lab.studies.text.comparison import Sweep
from diffattn.lab.studies.text.verdict import difference
from lab.studies.text.made_up_losses import LOSSES, study

T_975_2 = 4.302652729911275  # Student's t with two degrees of freedom, 97.5 %


def test_three_seeds_by_hand():
    results = study()
    assert (results["schema"], results["seeds"], results["tokens"]) == (3, [0, 1, 2], 4_096_000)
    softmax = results["variants"]["softmax"]["at"]["best"]
    assert softmax["runs"] == ["softmax-seed0", "softmax-seed1", "softmax-seed2"]
    assert softmax["phase_steps"] == [500, 500, 500]
    loss = softmax["validation_loss"]
    half = T_975_2 * 0.1 / math.sqrt(3)  # standard deviation 0.1
    assert loss["values"] == LOSSES["softmax"]
    assert (loss["mean"], loss["n"]) == (pytest.approx(3.1), 3)
    assert (loss["low"], loss["high"]) == pytest.approx((3.1 - half, 3.1 + half))
    new = softmax["parts"]["first_occurrence"]["values"]
    assert new == pytest.approx([4.5, 4.65, 4.8])
    row = difference(results, "diff", "softmax")
    assert row["runs"] == [[f"diff-seed{i}", f"softmax-seed{i}"] for i in range(3)]
    assert row["values"] == pytest.approx([-0.1, -0.1, -0.11])
    spread = math.sqrt(1 / 3) * 0.01  # of −0.10, −0.10, −0.11
    half = T_975_2 * spread / math.sqrt(3)
    assert (row["low"], row["high"]) == pytest.approx((-0.31 / 3 - half, -0.31 / 3 + half))


def test_rates_of_the_sweep():
    at_edge = Sweep(tried=((1e-3, 3.0), (2e-3, 2.0)))
    inside = Sweep(tried=((1e-3, 3.0), (2e-3, 2.0), (4e-3, 4.0)))
    other = Sweep(tried=((1e-3, 2.0), (2e-3, 2.1)))
    sweeps = dict.fromkeys(SWEPT, inside) | {"diff": other, "none": at_edge}
    results = study(sweeps=sweeps)
    rates = results["rates"]
    assert (rates["common"], rates["sweep_seed"], rates["sweep_steps"]) == (2e-3, 1_000, 1_000)
    measured = {"learning_rate": 1e-3, "validation_loss": 2.0}
    first = rates["variants"]["diff"]["tried"][0]
    assert first == {"run": "diff-lr0.001-sweep1000"} | measured
    is_inside = {name: of["inside"] for name, of in rates["variants"].items()}
    assert is_inside == dict.fromkeys(SWEPT, True) | {"diff": False, "none": False}
    groups = results["variants"]["diff"]["at"]
    assert (groups["best"]["learning_rate"], groups["common"]["learning_rate"]) == (1e-3, 2e-3)
    assert groups["common"]["runs"][0] == "diff-common-seed0"
    assert set(results["variants"]["diff_v2"]["at"]) == {"best"}
    at_common = difference(results, "diff", "softmax", "common")["mean"]
    assert at_common == pytest.approx(-0.31 / 3 + 0.5)
    assert "each type at the learning rate chosen for it, " in results["verdict"]["sentence"]
    assert "at the Transformer's learning rate +0.397 (" in results["verdict"]["details"][0]
    assert results["verdict"]["reasons"] == [
        "the chosen learning rate of DIFF V1 lies at the edge of its sweep",
        "the chosen learning rate of No attention lies at the edge of its sweep",
    ]


@pytest.mark.parametrize(
    ("seeds", "late", "informative"),
    [(2, ("diff-seed1",), True), (3, ("diff-seed1", "diff-seed2"), False)],
    ids=["half", "a third"],
)
def test_half_of_its_runs_take_a_model_past_the_phase(seeds, late, informative):
    results = study(seeds=seeds, fewer_seeds=seeds, late=late)
    assert results["verdict"]["informative"] is informative
    assert (phase.explain_gap(results["variants"], "diff", "softmax") == "") is informative


def ends(*losses, of="none", **options):
    """Changes after which the runs of a model end at other losses."""
    return {"losses": LOSSES | {of: list(losses)}} | options


NO_GAIN = "softmax attention does not beat no attention"
WIDER = f"{NO_GAIN}, its parameters given to the feed-forward layers by 0.1 nats"
LATE = "passed the induction phase and {} did not"
UNINFORMATIVE = {
    "too near": (ends(3.05, 3.15, 3.25), f"{NO_GAIN} by 0.1 nats"),
    "too uncertain": (ends(3.0, 3.6, 3.2), f"{NO_GAIN} by 0.1 nats"),
    "a type": (ends(4.1, 4.1, 4.1, of="shared_diff"), "Shared DIFF does not beat no attention"),
    "an uncertain type": (  # it does on average
        ends(3.0, 3.1, 4.9, of="diff_v2"),
        "DIFF V2 does not beat no attention: −0.430 (−2.88",
    ),
    "wider": (ends(3.05, 3.15, 3.25, of="none_ffn"), WIDER),
    "phase of softmax": ({"late": ("softmax",)}, LATE.format("Transformer (softmax)")),
    "phase of V2": ({"late": ("diff_v2",)}, LATE.format("DIFF V2")),
    "one seed": (ends(3.05, seeds=1, fewer_seeds=1), f"{NO_GAIN} by 0.1 nats: −0.050 (one seed"),
}


@pytest.mark.parametrize(("changes", "reason"), UNINFORMATIVE.values(), ids=UNINFORMATIVE)
def test_what_makes_a_comparison_uninformative(changes, reason):
    message = study(**changes)["verdict"]
    assert not message["informative"]
    assert reason in message["reasons"][0]
    assert message["sentence"].startswith("Uninformative about attention types: ")
    assert reason in message["sentence"]


def test_a_phase_that_nobody_passed_separates_nobody():
    message = study(late=tuple(LOSSES))["verdict"]
    assert message["informative"]
    assert "one learning rate, none of them past the induction phase, loss" in message["sentence"]
    assert "to copy" not in " ".join(message["details"])


def test_a_verdict_in_words():
    """The words of the other parts stand in the committed study."""
    message = study()["verdict"]
    assert (message["informative"], message["reasons"]) == (True, [])
    assert message["sentence"].startswith(
        "At 5.3 million parameters and 4,096,000 tokens, all at one learning rate, loss minus the "
        "Transformer's in nats per token: DIFF V1 −0.103 (−0.118 to −0.089), DIFF V2 −0.000 "
    )
    shared = message["details"][2]
    assert "p below 0.001; the Transformer's loss in no run, p 0.004; " in shared
    details = study(late=("softmax-seed2",))["verdict"]["details"]
    assert "begins to copy at step 500, the Transformer in 2 of 3 runs" in details[0]


def test_one_seed_is_said_to_be_one_seed():
    results = study(seeds=1, fewer_seeds=1)
    assert {entry["p"] for entry in results["endpoints"]} == {None}
    message = results["verdict"]
    assert message["informative"]
    assert "DIFF V1 −0.100 (one seed: this may be chance)" in message["sentence"]
    assert "p " not in message["details"][0].split(";")[0].replace("per", "")


def test_v2_at_a_rate_of_its_own_is_compared_with_its_parts_there_alone():
    """Itself without its difference has no runs at the common rate."""
    tried = dict.fromkeys(SWEPT, ((0.001, 3.0), (0.002, 2.0), (0.004, 4.0)))
    tried["diff_v2"] = ((1e-3, 3.0), (2e-3, 3.0), (4e-3, 2.0), (8e-3, 4.0))
    sweeps = {name: Sweep(tried=of) for name, of in tried.items()}
    without = {"diff_v2_gate": [3.0, 3.1, 3.21], "diff_v2_added": LOSSES["softmax"]}
    results = study(losses=LOSSES | without, sweeps=sweeps, at_common=0.0)
    rows = [row for row in results["differences"] if row["baseline"] in without]
    assert {(row["variant"], row["at"]) for row in rows} == {("diff_v2", "best")}


def test_a_control_that_alone_passed_the_phase_leaves_nothing_to_compare():
    types = ("softmax", "diff", "diff_v2", "shared_diff", "none")
    message = study(late=(*types, "softmax_half"))["verdict"]
    assert not message["informative"]
    assert "a control passed the induction phase, and neither softmax" in message["sentence"]


def test_a_rate_chosen_before_copying_begins_is_void():
    """By the rule of the study for leases, whose sweeps are short."""
    sweeps = dict.fromkeys(LOSSES, Sweep(tried=((1e-3, 3.0), (2e-3, 2.0), (4e-3, 3.0))))
    reasons = study(sweeps=sweeps, own_rates=True)["verdict"]["reasons"]
    assert "the choice of DIFF V1's learning rate is void: no copying yet" in reasons
    assert "void" not in str(study(sweeps=sweeps)["verdict"]["reasons"])
