"""Numbers of a comparison against numbers by hand, and the verdict that they lead to."""

import math
import re
from dataclasses import replace

import pytest

from diffattn.report.page import phase
from diffattn.studies.text.comparison import Sweep, best_rates, sweep_name, whole_name
from diffattn.studies.text.reproduce import comparison
from diffattn.studies.text.results import comparison_results
from diffattn.studies.text.verdict import difference, verdict
from diffattn.studies.variants import SWEPT, VARIANTS

LOSSES = {  # by seed
    "softmax": [3.0, 3.1, 3.2],
    "diff": [2.9, 3.0, 3.09],
    "diff_v2": [3.01, 3.09, 3.2],
    "shared_diff": [3.3, 3.4, 3.51],
    "none": [4.0, 4.1, 4.19],
    "softmax_half": [3.0, 3.1, 3.21],
    "softmax_minus_mean": [2.9, 3.01, 3.09],
}
PARTS = {"repeated_bigram": 0.5, "first_occurrence": 1.5}  # times the loss of the whole
T_975_2 = 4.302652729911275  # Student's t with two degrees of freedom, 97.5 %


def study(seeds=3, losses=LOSSES, sweeps=None, late=(), at_common=0.5, **changes):
    """Results and verdict of made-up runs; those named in ``late`` never pass the phase.

    Names of runs, of variants, or of variants at the common rate, as ``"diff-common"``.
    """
    changes = {"seeds": tuple(range(seeds)), "variants": tuple(losses), "fewer_seeds": 3} | changes
    config = replace(comparison("study"), **changes)
    sweeps = sweeps or {}
    runs, phases = {}, {}
    for member in config.trials(best_rates(config, sweeps)):
        run = member.config.name
        group, seed = run.split("-seed")
        name = group.removesuffix("-common")
        loss = losses[name][int(seed)] + (at_common if "common" in run else 0.0)
        parts = {part: {"tokens": 10, "loss": factor * loss} for part, factor in PARTS.items()}
        runs[run] = {"validation_loss": loss, "validation_parts": parts}
        phases[run] = None if {run, group, name} & set(late) else 500
    for name, sweep in sweeps.items():
        for rate, loss in sweep.tried:
            runs[sweep_name(name, rate, config.sweep_seed)] = {"validation_loss": loss}
        for rate, loss in sweep.whole:
            runs[whole_name(name, rate, config.sweep_seed)] = {"validation_loss": loss}
    results = comparison_results(config, sweeps, runs, phases)
    return results | {"verdict": verdict(results)}


def test_three_seeds_by_hand():
    results = study()
    assert (results["schema"], results["seeds"], results["tokens"]) == (2, [0, 1, 2], 4_096_000)
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


def test_who_is_compared_with_whom():
    pairs = {
        (row["variant"], row["baseline"])
        for row in study()["differences"]
        if row["metric"] == "validation_loss"
    }
    types = ("diff", "diff_v2", "shared_diff")
    controls = ("softmax", "none", "softmax_half", "softmax_minus_mean")
    expected = {(name, control) for name in types for control in controls}
    expected |= {(name, "softmax") for name in controls[1:]}
    assert pairs == expected


def test_other_matches_are_compared_with_their_type_and_with_softmax():
    results = study(losses=LOSSES | {"diff_v2_flops": [3.1, 3.2, 3.3]})
    assert difference(results, "diff_v2_flops", "diff_v2") is not None
    assert difference(results, "diff_v2_flops", "softmax")["mean"] == pytest.approx(0.1)


def test_parts_are_compared_with_softmax_and_with_no_attention():
    rows = [row for row in study()["differences"] if row["metric"] == "first_occurrence"]
    assert {(row["variant"], row["baseline"]) for row in rows} >= {
        ("diff", "softmax"), ("diff", "none"), ("none", "softmax"),
    }  # fmt: skip
    assert all(row["at"] == "best" for row in rows)
    rows = [row for row in study(**common_rates())["differences"] if row["at"] == "common"]
    assert {row["baseline"] for row in rows if row["metric"] == "first_occurrence"} == {"softmax"}


def test_fewer_seeds_pair_from_the_first_on():
    results = study(fewer_seeds=2, losses=LOSSES | {"diff_v2_constant": [3.0, 3.1]})
    row = difference(results, "diff_v2_constant", "diff_v2")
    assert row["runs"] == [[f"diff_v2_constant-seed{i}", f"diff_v2-seed{i}"] for i in range(2)]


def test_rates_of_the_sweep():
    at_edge = Sweep(tried=((1e-3, 3.0), (2e-3, 2.0)))
    inside = Sweep(tried=((1e-3, 3.0), (2e-3, 2.0), (4e-3, 4.0)))
    other = Sweep(tried=((1e-3, 2.0), (2e-3, 2.1)))
    sweeps = dict.fromkeys(SWEPT, inside) | {"diff": other, "none": at_edge}
    results = study(sweeps=sweeps)
    rates = results["rates"]
    assert (rates["common"], rates["sweep_seed"], rates["sweep_steps"]) == (2e-3, 1_000, 1_000)
    assert rates["variants"]["diff"]["tried"][0] == {
        "run": "diff-lr0.001-sweep1000", "learning_rate": 1e-3, "validation_loss": 2.0,
    }  # fmt: skip
    assert {name: of["inside"] for name, of in rates["variants"].items()} == {
        "softmax": True, "diff": False, "diff_v2": True, "shared_diff": True, "none": False,
    }  # fmt: skip
    groups = results["variants"]["diff"]["at"]
    assert (groups["best"]["learning_rate"], groups["common"]["learning_rate"]) == (1e-3, 2e-3)
    assert groups["common"]["runs"][0] == "diff-common-seed0"
    assert set(results["variants"]["diff_v2"]["at"]) == {"best"}
    assert difference(results, "diff", "softmax", "common")["mean"] == pytest.approx(
        -0.31 / 3 + 0.5
    )
    assert "each type at the learning rate chosen for it: " in results["verdict"]["sentence"]
    at_common = "At the common learning rate DIFF V1 is 0.397 nats per token worse than softmax "
    assert results["verdict"]["details"][1].startswith(at_common)
    assert results["verdict"]["reasons"] == [
        "the chosen learning rate of DIFF V1 lies at the edge of its sweep",
        "the chosen learning rate of No attention lies at the edge of its sweep",
    ]


def test_without_a_sweep_there_is_one_rate():
    rates = study()["rates"]
    assert rates == {"common": 2e-3, "sweep_seed": None, "sweep_steps": None, "variants": {}}


def test_what_each_variant_says_of_itself():
    variant = study()["variants"]["none"]
    assert variant["what"] == VARIANTS["none"].what
    assert (variant["role"], variant["match"]) == ("control", "heads")
    assert variant["parameters"] < study()["variants"]["softmax"]["parameters"]
    assert variant["train_flops_per_token"] > 0


def test_a_verdict_in_words():
    said = study()["verdict"]
    assert said["informative"]
    assert said["reasons"] == []
    assert re.sub(r"\+0.303, [^)]*", "+0.303", said["sentence"]) == (
        "At 4.8 million parameters and 4,096,000 tokens, all at one learning rate: DIFF V1 is "
        "0.103 nats per token better than softmax attention (−0.103, −0.118 to −0.089, 3 seeds), "
        "not shown to be better than softmax minus 0.7 times the mean value; Shared DIFF is 0.303 "
        "nats per token worse than softmax attention (+0.303); no difference to softmax attention "
        "is shown for DIFF V2; softmax attention is beaten without a second map that learns: "
        "softmax minus 0.7 times the mean value (−0.100, −0.125 to −0.075, 3 seeds)."
    )
    better, alike, worse, controls, tested = said["details"]
    assert better == (
        "DIFF V1 is 0.103 nats per token better than softmax attention (−0.103, −0.118 to −0.089, "
        "3 seeds; on tokens new to the context −0.155, −0.177 to −0.133; phase passed at step 500 "
        "against 500, medians), not shown to be better than softmax minus 0.7 times the mean value."
    )
    assert alike.startswith("No difference to softmax attention is shown for DIFF V2 (")
    assert alike.endswith(
        "0.000, −0.025 to +0.025, 3 seeds; phase passed at step 500 against 500, medians)."
    )
    assert worse.startswith("Shared DIFF is 0.303 nats per token worse than softmax attention (+0.")
    assert controls.startswith(  # the other one is no better than softmax
        "Softmax attention is beaten without a second map that learns: softmax minus 0.7 times "
    )
    assert tested == (
        "Nats per token, 95 % intervals, unadjusted; what is shown stands among 11 comparisons, p "
        "at most 0.05 after Holm's adjustment."
    )


def test_what_stands_alone_and_not_among_all_is_not_shown():
    losses = LOSSES | {"diff": [2.9, 3.0, 3.07], "softmax_minus_mean": [3.0, 3.1, 3.21]}
    results = study(losses=losses)
    test = adjusted(results, "diff", "softmax", "best")
    assert test["p"] < 0.05 < test["p_holm"]
    assert difference(results, "diff", "softmax")["high"] < 0
    said = results["verdict"]["details"][0]
    assert said.startswith("No difference to softmax attention is shown for DIFF V1 (−0.110, ")


def common_rates(**losses):
    """V1 and Shared DIFF at a rate of their own, and at the common one."""
    tried = ((5e-4, 9.0), (1e-3, 3.0), (2e-3, 2.0), (4e-3, 9.0))
    own = ((5e-4, 9.0), (1e-3, 2.0), (2e-3, 3.0), (4e-3, 9.0))
    sweeps = dict.fromkeys(SWEPT, Sweep(tried=tried))
    sweeps |= dict.fromkeys(("diff", "shared_diff"), Sweep(tried=own))
    return {"sweeps": sweeps, "losses": LOSSES | losses}


def test_a_control_is_asked_at_the_common_rate_too():
    plain = {"softmax_minus_mean": [3.0, 3.1, 3.21], "softmax_half": [2.9401, 3.04, 3.13]}
    said = study(at_common=0.05, **common_rates(**plain))["verdict"]
    best, common, *_ = said["details"]
    assert best.startswith("DIFF V1 is 0.103 nats per token better than softmax attention (")
    assert "not shown to be" not in best
    where = "at the common learning rate"
    assert common.startswith(
        f"{where.capitalize()} DIFF V1 is 0.053 nats per token better than softmax attention ("
    )
    assert "), not shown to be better than softmax times ½ and than softmax minus 0.7 " in common
    assert (
        f", not shown to be better than softmax times ½ {where} and than softmax minus 0.7 times "
        f"the mean value {where};"
    ) in said["sentence"]
    assert "on tokens new to the context" in common


def test_a_lead_that_the_common_rate_does_not_have_says_so():
    losses = common_rates(softmax_minus_mean=LOSSES["softmax"])
    for at_common in (0.1, 0.3):  # as good as softmax attention there, and worse
        said = study(at_common=at_common, **losses)["verdict"]
        first = said["sentence"].split("; ")[0]
        assert first.endswith(
            "DIFF V1 is 0.103 nats per token better than softmax attention (−0.103, −0.118 to "
            "−0.089, 3 seeds), not shown to be better at the common learning rate"
        )
        assert ", not shown" not in said["details"][0]


def test_v1_is_asked_whether_it_needs_its_norm():
    plain = {"softmax_minus_mean": LOSSES["softmax"]}
    cases = (
        ([3.0, 3.1, 3.21], True), ([3.4, 3.5, 3.61], True),  # no lead, and shown to be worse
        ([2.8, 2.9, 2.99], False),
    )  # fmt: skip
    for bare, explained in cases:
        results = study(losses=LOSSES | plain | {"diff_no_norm": bare})
        said = results["verdict"]["sentence"]
        assert ("not shown to be better without its head norm" in said) is explained
        both = common_rates(**plain, diff_no_norm=bare, softmax_half=[3.4, 3.5, 3.61])
        at_common = study(at_common=-0.2, **both)["verdict"]["details"][1]
        assert "DIFF V1 is 0.303 nats per token better" in at_common
        assert ("without its head norm" in at_common) is explained
        assert difference(results, "diff_no_norm", "softmax") is not None


def test_v2_is_asked_whether_it_needs_its_difference():
    """Its gate, and its doubled queries added, at the rate that all three have."""
    leading = {"diff_v2": [2.9, 2.99, 3.1]}
    worse, alike = [3.0, 3.1, 3.21], [2.9, 3.0, 3.09]
    for gate, added, but in (
        (worse, worse, ""), (alike, worse, "V2 without its second map"),
        (worse, alike, "V2 whose second map is added"),
    ):  # fmt: skip
        plain = {"softmax_minus_mean": LOSSES["softmax"], "diff_v2_gate": gate}
        results = study(losses=LOSSES | leading | plain | {"diff_v2_added": added})
        _, found = results["verdict"]["sentence"].split("DIFF V2 is 0.103 nats per token better")
        assert ("not shown to be better" in found) is bool(but)
        assert f"not shown to be better than {but}" in found or not but
        asked = [one for one in results["tests"] if one["baseline"].startswith("diff_v2_")]
        assert {one["baseline"] for one in asked} == {"diff_v2_gate", "diff_v2_added"}
        assert {(one["variant"], one["at"]) for one in asked} == {("diff_v2", "best")}


def test_a_phase_that_some_runs_passed_is_counted():
    said = study(late=("softmax-seed2",))["verdict"]["details"][0]
    assert "; phase passed in 3 of 3 runs against 2 of 3), not shown" in said


def test_a_type_that_does_not_pass_at_the_common_rate_is_not_compared_there():
    results = study(late=("shared_diff-common",), **common_rates())
    said = results["verdict"]
    assert said["informative"]
    at_common = said["details"][-3]
    assert at_common.startswith(
        "At the common learning rate Shared DIFF is not compared with softmax attention, as one "
        "has passed the induction phase and the other has not (+0.8"
    )
    assert "; phase passed in 0 of 3 runs against 3 of 3)" in at_common
    assert adjusted(results, "shared_diff", "softmax", "common")["p_holm"] == 1.0


def adjusted(results, *wanted):
    (found,) = (
        test for test in results["tests"]
        if (test["variant"], test["baseline"], test["at"]) == wanted
    )  # fmt: skip
    return found


def test_an_imitation_that_has_not_passed_the_phase_excludes_nothing():
    """Its loss is far above: it would make the lead, and other tests, easier to show."""
    worse = {"softmax_half": [3.5, 3.6, 3.71], "softmax_minus_mean": [3.5, 3.6, 3.72]}
    found = study(losses=LOSSES | worse)
    assert adjusted(found, "diff", "softmax_half", "best")["shown"]
    assert "not shown to be better" not in found["verdict"]["sentence"]
    stuck = study(losses=LOSSES | worse, late=("softmax_half",))
    test = adjusted(stuck, "diff", "softmax_half", "best")
    assert test["p"] < 0.01
    assert (test["p_holm"], test["shown"]) == (1.0, False)
    assert "not shown to be better than softmax times ½;" in stuck["verdict"]["sentence"]
    assert "without a second map that learns" not in stuck["verdict"]["sentence"]
    for one in stuck["tests"]:
        pair = (one["variant"], one["baseline"], one["at"])
        if "softmax_half" not in pair:  # nothing else is easier to show
            assert one["p_holm"] >= adjusted(found, *pair)["p_holm"]


def test_a_lead_that_no_control_has_is_not_explained():
    losses = LOSSES | {"softmax_minus_mean": LOSSES["softmax"]}
    assert "not shown to be" not in study(losses=losses)["verdict"]["sentence"]


def test_a_type_that_ends_lower_at_the_common_rate_is_named():
    tried = ((1e-3, 3.0), (2e-3, 2.0), (4e-3, 4.0))
    sweeps = dict.fromkeys(SWEPT, Sweep(tried=tried))
    sweeps["diff"] = Sweep(tried=tried, whole=((1e-3, 2.0), (2e-3, 2.1)))
    said = study(sweeps=sweeps, at_common=-0.5)["verdict"]
    assert said["reasons"] == [
        "the chosen learning rate of DIFF V1 lies at the edge of its sweep",
        "DIFF V1 ends lower at the common learning rate than at the one that was chosen for it",
    ]


def test_one_seed_is_said_to_be_one_seed():
    said = study(seeds=1, fewer_seeds=1)["verdict"]
    assert said["informative"]
    assert "one seed: this may be chance" in said["sentence"]
    assert "DIFF V1 ends 0.100 nats per token below softmax attention" in said["sentence"]
    assert "Shared DIFF ends 0.300 nats per token above softmax attention" in said["sentence"]


def test_a_control_that_is_worse_than_softmax_is_not_among_the_better():
    results = study(losses=LOSSES | {"softmax_half": [3.3, 3.4, 3.51]})
    assert any(
        test["shown"] for test in results["tests"]
        if (test["variant"], test["baseline"]) == ("softmax_half", "softmax")
    )  # fmt: skip
    controls = results["verdict"]["sentence"].partition("without a second map that learns: ")[2]
    assert controls.startswith("softmax minus 0.7 times the mean value (−0.100, ")
    assert "softmax times ½" not in controls


@pytest.mark.parametrize(
    ("seeds", "late", "informative"),
    [(2, ("diff-seed1",), True), (3, ("diff-seed1", "diff-seed2"), False)],
    ids=["half", "a third"],
)
def test_half_of_its_runs_take_a_model_past_the_phase(seeds, late, informative):
    results = study(seeds=seeds, fewer_seeds=seeds, late=late)
    assert results["verdict"]["informative"] is informative
    assert (phase.gap(results["variants"], "diff", "softmax") == "") is informative


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"losses": {k: v for k, v in LOSSES.items() if k != "none"}},
         "no model without attention was trained beside them"),
        ({"losses": LOSSES | {"none": [3.05, 3.15, 3.25]}},
         "softmax attention does not beat no attention by 0.1 nats"),
        ({"losses": LOSSES | {"none": [3.0, 3.6, 3.2]}},
         "softmax attention does not beat no attention by 0.1 nats"),
        ({"losses": LOSSES | {"shared_diff": [4.1, 4.1, 4.1]}},
         "Shared DIFF does not beat no attention"),
        ({"losses": LOSSES | {"diff_v2": [3.0, 3.1, 4.9]}},  # it does on average
         "DIFF V2 does not beat no attention (−0.430, −2.88"),
        ({"losses": LOSSES | {"none_ffn": [3.05, 3.15, 3.25]}},
         "softmax attention does not beat no attention, its parameters given to the feed-forward "
         "layers by 0.1 nats"),
        ({"late": ("softmax",)}, "passed the induction phase and Transformer (softmax) did not"),
        *(({"late": (name,)}, f"passed the induction phase and {label} did not")
          for name, label in (("diff_v2", "DIFF V2"), ("shared_diff", "Shared DIFF"))),
        ({"seeds": 1, "fewer_seeds": 1, "losses": LOSSES | {"none": [3.05]}},
         "softmax attention does not beat no attention by 0.1 nats (−0.050, one seed)"),
    ],
    ids=["no control", "too near", "too uncertain", "a type", "an uncertain type", "wider",
         "phase of softmax", "phase of V2", "phase of Shared DIFF", "one seed"],
)  # fmt: skip
def test_what_makes_a_comparison_uninformative(changes, reason):
    said = study(**changes)["verdict"]
    assert not said["informative"]
    assert reason in said["reasons"][0]
    assert said["sentence"].startswith("Uninformative about attention types: ")
    assert reason in said["sentence"]


def test_a_phase_that_nobody_passed_separates_nobody():
    said = study(late=tuple(LOSSES))["verdict"]
    assert said["informative"]
    assert "one learning rate, none of them past the induction phase: DIFF V1" in said["sentence"]
    assert "phase passed" not in " ".join(said["details"])
