"""The sentence of a comparison of types, and the list below it, for outcomes of every kind."""

import re

from diffattn.lab.catalog.models import SWEPT
from diffattn.lab.studies.text.comparison import Sweep
from diffattn.lab.studies.text.outcomes import difference
from lab.studies.text.made_up_losses import LOSSES, adjusted, common_rates, study


def test_a_verdict_in_words():
    message = study()["verdict"]
    assert message["informative"]
    assert message["reasons"] == []
    assert re.sub(r"\+0.303, [^)]*", "+0.303", message["sentence"]) == (
        "At 5.3 million parameters and 4,096,000 tokens, all at one learning rate: DIFF V1 is "
        "0.103 nats per token better than softmax attention (−0.103, −0.118 to −0.089, 3 seeds), "
        "not shown to be better than softmax minus 0.7 times the mean value; Shared DIFF is 0.303 "
        "nats per token worse than softmax attention (+0.303); no difference to softmax attention "
        "is shown for DIFF V2; softmax attention is beaten without a second map that learns: "
        "softmax minus 0.7 times the mean value (−0.100, −0.125 to −0.075, 3 seeds)."
    )
    better, alike, worse, controls, tested = message["details"]
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
    message = results["verdict"]["details"][0]
    assert message.startswith("No difference to softmax attention is shown for DIFF V1 (−0.110, ")


def test_a_control_is_asked_at_the_common_rate_too():
    plain = {"softmax_minus_mean": [3.0, 3.1, 3.21], "softmax_half": [2.9401, 3.04, 3.13]}
    message = study(at_common=0.05, **common_rates(**plain))["verdict"]
    best, common, *_ = message["details"]
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
    ) in message["sentence"]
    assert "on tokens new to the context" in common


def test_a_lead_that_the_common_rate_does_not_have_says_so():
    losses = common_rates(softmax_minus_mean=LOSSES["softmax"])
    for at_common, there in ((0.1, "no difference is shown"), (0.3, "worse")):
        message = study(at_common=at_common, **losses)["verdict"]
        first = message["sentence"].split("; ")[0]
        assert first.endswith(
            "DIFF V1 is 0.103 nats per token better than softmax attention (−0.103, −0.118 to "
            f"−0.089, 3 seeds), {there} at the common learning rate"
        )
        assert ", not shown" not in message["details"][0]


def test_v1_is_asked_whether_it_needs_its_norm():
    plain = {"softmax_minus_mean": LOSSES["softmax"]}
    cases = (
        ([3.0, 3.1, 3.21], True),
        ([3.4, 3.5, 3.61], True),  # no lead, and shown to be worse
        ([2.8, 2.9, 2.99], False),
    )
    for bare, explained in cases:
        results = study(losses=LOSSES | plain | {"diff_no_norm": bare})
        message = results["verdict"]["sentence"]
        assert ("not shown to be better without its head norm" in message) is explained
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
        (worse, worse, ""),
        (alike, worse, "V2 without its second map"),
        (worse, alike, "V2 whose second map is added"),
    ):
        plain = {"softmax_minus_mean": LOSSES["softmax"], "diff_v2_gate": gate}
        results = study(losses=LOSSES | leading | plain | {"diff_v2_added": added})
        _, outcome = results["verdict"]["sentence"].split("DIFF V2 is 0.103 nats per token better")
        assert ("not shown to be better" in outcome) is bool(but)
        assert f"not shown to be better than {but}" in outcome or not but
        asked = [entry for entry in results["tests"] if entry["baseline"].startswith("diff_v2_")]
        assert {entry["baseline"] for entry in asked} == {"diff_v2_gate", "diff_v2_added"}
        assert {(entry["variant"], entry["at"]) for entry in asked} == {("diff_v2", "best")}


def test_how_much_of_a_lead_of_v2_is_its_difference_is_said():
    """Of those that it beats the closest in the sentence, all of them below it."""
    losses = LOSSES | {"diff_v2": [2.9, 2.99, 3.1], "softmax_minus_mean": LOSSES["softmax"]}
    losses |= {"diff_v2_gate": [3.0, 3.1, 3.21], "diff_v2_added": [2.95, 3.04, 3.16]}
    message = study(losses=losses)["verdict"]
    added = ", 0.053 better than V2 whose second map is added (−0.053, −0.068 to −0.039, 3 seeds)"
    gate = ", 0.107 better than V2 without its second map (−0.107, −0.121 to −0.092, 3 seeds)"
    (line,) = (line for line in message["details"] if line.startswith("DIFF V2"))
    assert added + ";" in message["sentence"]
    assert "without its second map" not in message["sentence"]
    assert line.endswith(added + gate + ".")


def test_a_phase_that_some_runs_passed_is_counted():
    message = study(late=("softmax-seed2",))["verdict"]["details"][0]
    assert "; phase passed in 3 of 3 runs against 2 of 3), not shown" in message


def test_a_type_that_does_not_pass_at_the_common_rate_is_not_compared_there():
    results = study(late=("shared_diff-common",), **common_rates())
    message = results["verdict"]
    assert message["informative"]
    at_common = message["details"][-3]
    assert at_common.startswith(
        "At the common learning rate Shared DIFF is not compared with softmax attention, as one "
        "has passed the induction phase and the other has not (+0.8"
    )
    assert "; phase passed in 0 of 3 runs against 3 of 3)" in at_common
    assert adjusted(results, "shared_diff", "softmax", "common")["p_holm"] == 1.0


def test_an_imitation_that_has_not_passed_the_phase_excludes_nothing():
    """Its loss is far above: it would make the lead, and other tests, easier to show."""
    worse = {"softmax_half": [3.5, 3.6, 3.71], "softmax_minus_mean": [3.5, 3.6, 3.72]}
    outcome = study(losses=LOSSES | worse)
    assert adjusted(outcome, "diff", "softmax_half", "best")["shown"]
    assert "not shown to be better" not in outcome["verdict"]["sentence"]
    stuck = study(losses=LOSSES | worse, late=("softmax_half",))
    test = adjusted(stuck, "diff", "softmax_half", "best")
    assert test["p"] < 0.01
    assert (test["p_holm"], test["shown"]) == (1.0, False)
    assert "not shown to be better than softmax times ½;" in stuck["verdict"]["sentence"]
    assert "without a second map that learns" not in stuck["verdict"]["sentence"]
    for entry in stuck["tests"]:
        pair = (entry["variant"], entry["baseline"], entry["at"])
        if "softmax_half" not in pair:  # nothing else is easier to show
            assert entry["p_holm"] >= adjusted(outcome, *pair)["p_holm"]


def test_a_lead_that_no_control_has_is_not_explained():
    losses = LOSSES | {"softmax_minus_mean": LOSSES["softmax"]}
    assert "not shown to be" not in study(losses=losses)["verdict"]["sentence"]


def test_a_control_that_is_worse_than_softmax_is_not_among_the_better():
    results = study(losses=LOSSES | {"softmax_half": [3.3, 3.4, 3.51]})
    assert any(
        test["shown"]
        for test in results["tests"]
        if (test["variant"], test["baseline"]) == ("softmax_half", "softmax")
    )
    controls = results["verdict"]["sentence"].partition("without a second map that learns: ")[2]
    assert controls.startswith("softmax minus 0.7 times the mean value (−0.100, ")
    assert "softmax times ½" not in controls


def test_one_seed_is_said_to_be_one_seed():
    message = study(seeds=1, fewer_seeds=1)["verdict"]
    assert message["informative"]
    assert "one seed: this may be chance" in message["sentence"]
    assert "DIFF V1 ends 0.100 nats per token below softmax attention" in message["sentence"]
    assert "Shared DIFF ends 0.300 nats per token above softmax attention" in message["sentence"]


V2_LEADS = {"diff_v2": [2.9, 2.99, 3.1], "softmax_minus_mean": LOSSES["softmax"]}


def test_v2_at_a_rate_of_its_own_is_asked_there_alone():
    """Itself without its difference has no runs at the common rate."""
    tried = dict.fromkeys(SWEPT, ((0.001, 3.0), (0.002, 2.0), (0.004, 4.0)))
    tried["diff_v2"] = ((1e-3, 3.0), (2e-3, 3.0), (4e-3, 2.0), (8e-3, 4.0))
    sweeps = {name: Sweep(tried=of) for name, of in tried.items()}
    without = {"diff_v2_gate": V2_LEADS["diff_v2"], "diff_v2_added": LOSSES["softmax"]}
    results = study(losses=LOSSES | V2_LEADS | without, sweeps=sweeps, at_common=0.0)
    at_best, at_common = (of for of in results["verdict"]["details"] if "DIFF V2" in of)
    assert at_best.endswith("), not shown to be better than V2 without its second map.")
    assert at_common.startswith("At the common learning rate DIFF V2 is 0.103 nats per token bet")
    assert "not shown" not in at_common
    for of in ("tests", "differences"):
        rows = [row for row in results[of] if row["baseline"] in without]
        assert {(row["variant"], row["at"]) for row in rows} == {("diff_v2", "best")}


def test_what_was_not_trained_explains_a_lead():
    message = study(losses=LOSSES | V2_LEADS)["verdict"]["sentence"]
    assert (
        ", not shown to be better than V2 without its second map (not trained) and than V2 whose "
        "second map is added (not trained);"
    ) in message


def test_what_the_common_rate_shows_besides_stands_in_the_sentence():
    worse = {"shared_diff": [3.3, 3.4, 3.51]}
    message = study(at_common=-0.8, **common_rates(**worse))["verdict"]["sentence"]
    assert re.search(
        r"Shared DIFF is 0.303 nats .*?\), better at the common learning rate;", message
    )
    alike = {"shared_diff": [3.0, 3.11, 3.2]}
    message = study(at_common=0.5, **common_rates(**alike))["verdict"]["sentence"]
    assert "for DIFF V2 and Shared DIFF (worse at the common learning rate);" in message
    late = study(late=("shared_diff-common",), **common_rates(**alike))["verdict"]["sentence"]
    assert "Shared DIFF (not compared at the common learning rate);" in late


def test_a_control_that_alone_passed_the_phase_leaves_nothing_to_compare():
    types = ("softmax", "diff", "diff_v2", "shared_diff", "none")
    message = study(late=(*types, "softmax_half"))["verdict"]
    assert not message["informative"]
    assert "a control passed the induction phase, and neither softmax" in message["sentence"]
    assert study(late=tuple(LOSSES))["verdict"]["informative"]
