"""The sentence of a comparison of types, and the list below it, for outcomes of every kind."""

from diffattn.lab.catalog.models import SWEPT
from diffattn.lab.studies.text.comparison import Sweep
from lab.studies.text.made_up_losses import LOSSES, common_rates, study


def test_a_verdict_in_words():
    message = study()["verdict"]
    assert message["informative"]
    assert message["reasons"] == []
    assert message["sentence"] == (
        "At 5.3 million parameters and 4,096,000 tokens, all at one learning rate, loss minus the "
        "Transformer's in nats per token: DIFF V1 −0.103 (−0.118 to −0.089), DIFF V2 −0.000 "
        "(−0.025 to +0.025), Shared DIFF +0.303 (+0.289 to +0.318); softmax minus 0.7 times the "
        "mean value −0.100 (−0.125 to −0.075)."
    )
    v1, v2, shared, controls, tests = message["details"]
    assert v1.startswith("DIFF V1: −0.103 (−0.118 to −0.089), p 0.005; ")
    for words in (
        "the Transformer's loss with 97 % (97 to 98) of the tokens, p 0.008; ",
        "on bigrams that the context repeats −0.052 (",
        "on tokens new to the context −0.155 (",
        "begins to copy at step 500, the Transformer at step 500",
        "among runs that begin to copy at the same step −0.103 (",
        "minus its controls: softmax times ½ −0.107 (",
        " and softmax minus 0.7 times the mean value −0.003 (",
    ):
        assert words in v1
    assert v2.startswith("DIFF V2: −0.000 (−0.025 to +0.025), p 1.000; the Transformer's loss ")
    assert "p below 0.001; the Transformer's loss in no run, p 1.000; " in shared
    assert controls.startswith("Controls minus the Transformer: softmax times ½ +0.003 (")
    assert "over the 6 tests of types by loss and by tokens; 0.05 counts." in tests


def test_all_numbers_at_the_common_rate_stand_in_the_list():
    details = study(at_common=0.05, **common_rates())["verdict"]["details"]
    assert "at the Transformer's learning rate −0.053 (" in details[0]
    assert "at the Transformer's learning rate" not in details[1]  # V2's own rate is that


def test_v2_stands_beside_itself_without_its_difference():
    """Its gate, and its doubled queries added, at the rate that all three have."""
    without = {"diff_v2_gate": [3.0, 3.1, 3.21], "diff_v2_added": [2.95, 3.04, 3.16]}
    results = study(losses=LOSSES | {"diff_v2": [2.9, 2.99, 3.1]} | without)
    assert (
        "minus its controls: V2 without its second map −0.107 (−0.121 to −0.092), V2 whose second "
        "map is added −0.053 (−0.068 to −0.039), softmax times ½ "
    ) in results["verdict"]["details"][1]


def test_a_phase_that_some_runs_passed_is_counted():
    details = study(late=("softmax-seed2",))["verdict"]["details"]
    assert "begins to copy at step 500, the Transformer in 2 of 3 runs" in details[0]
    assert "same step" not in " ".join(details)  # the Transformer has none on one seed


def test_a_type_that_does_not_pass_at_the_common_rate_is_not_compared_there():
    message = study(late=("shared_diff-common",), **common_rates())["verdict"]
    assert message["informative"]
    reason = "as one has passed the induction phase and the other has not"
    assert f"not compared at the Transformer's learning rate, {reason}" in message["details"][2]


def test_one_seed_is_said_to_be_one_seed():
    message = study(seeds=1, fewer_seeds=1)["verdict"]
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
    assert study(late=tuple(LOSSES))["verdict"]["informative"]
