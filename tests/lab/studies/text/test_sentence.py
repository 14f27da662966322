"""The sentence of a comparison of types, and the list below it, for outcomes of every kind."""

from diffattn.lab.catalog.models import SWEPT
from diffattn.lab.studies.text.comparison import Sweep
from lab.studies.text.made_up_losses import LOSSES, study


def test_a_verdict_in_words():
    """The words of the other parts stand in the committed study."""
    message = study()["verdict"]
    assert (message["informative"], message["reasons"]) == (True, [])
    assert message["sentence"].startswith(
        "At 5.3 million parameters and 4,096,000 tokens, all at one learning rate, loss minus the "
        "Transformer's in nats per token: DIFF V1 −0.103 (−0.118 to −0.089), DIFF V2 −0.000 "
    )
    shared = message["details"][2]
    assert "p below 0.001; the Transformer's loss in no run, p 1.000; " in shared


def test_a_phase_that_some_runs_passed_is_counted():
    details = study(late=("softmax-seed2",))["verdict"]["details"]
    assert "begins to copy at step 500, the Transformer in 2 of 3 runs" in details[0]
    assert "same step" not in " ".join(details)  # the Transformer has none on one seed


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
