"""The claims beside one evaluation: all that its protocols are about, judged by seeds."""

from diffattn.lab.evaluation.quantized_logits import QuantizedLogits
from diffattn.lab.records.evaluations import EvalResult, Metric
from diffattn.lab.report.claims.evaluated import evaluation_claims, published_values
from diffattn.lab.report.claims.records import EVALUATIONS
from diffattn.lab.report.claims.verdicts import CLAIMS


def result(label, kind, value, protocol="needle", **of_metric):
    metric = Metric(**{"name": "recall", "value": value, "n": 9, "headline": True} | of_metric)
    return EvalResult(
        protocol=protocol, version=1, source="", variant=protocol, choices={}, metrics=[metric],
        model={"label": label, "attention_type": kind}, parameters={}, tables={}, num_items=9,
        num_failed=0, items={},
    )  # fmt: skip


def verdict(results):
    outcome = evaluation_claims(results)
    (row,) = outcome.rows
    return ": ".join(filter(None, (row[-1].text, row[-1].note)))


def test_every_claim_about_evaluations_names_its_protocol():
    for claim in CLAIMS:
        assert bool(claim.protocol) == (claim.record == EVALUATIONS)
    assert "0.85 against 0.55" in published_values()["needle"]


def test_seeds_are_judged_and_one_pair_is_not():
    seeds = [
        result(f"{kind}-seed{seed}", kind, 0.5 + 0.01 * seed * (kind == "diff") + shift)
        for kind, shift in (("softmax", 0.0), ("diff", 0.3), ("softmax_half", 0.1))
        for seed in range(4)
    ]
    assert verdict(seeds) == "agrees"
    assert verdict(seeds[:8]) == "uninformative: the record holds no control"
    assert verdict([*seeds[::4]]).startswith("uninformative: not shown to do better")  # one seed
    behind = [result("softmax-seed0", "softmax", 0.9), seeds[4]]
    assert verdict(behind).startswith("inconclusive: 1 of the 3 seeds")
    elsewhere = result("diff-seed0", "diff", 0.9, where={"task": "N=4, R=2"})
    assert verdict([seeds[0], elsewhere]).startswith(
        "not run: these models share no number of this claim"
    )
    pair = [result("a", "softmax", 0.5), result("b", "diff", 0.8)]
    assert verdict(pair).startswith("inconclusive: one seed, as the models are not called")
    assert verdict(pair[:1]).startswith("not run: it needs models with softmax and with DIFF V1")


def test_the_claim_about_rounded_logits_finds_its_metric():
    """Under the name that a record of Fig. 8 has it."""
    protocol = QuantizedLogits()
    names = [f"{protocol.settings['tasks'][0]} acc_norm", "hellaswag acc", "text loss"]
    seeds = [
        result(
            f"{kind}-seed{seed}", kind, value + 0.001 * seed * (kind == "diff"),
            "quantized_logits", name=f"change of {name}", headline=False, where={"bits": 4},
        )
        for name, shift in zip(names, (0.0, 5.0, 9.0), strict=True)
        for kind, value in (
            ("softmax", -0.3 + shift), ("diff", -0.1), ("softmax_half", -0.3 + shift)
        )
        for seed in range(3)
    ]  # fmt: skip
    assert verdict(seeds[:9]) == verdict(seeds) == "agrees"
    assert not verdict(seeds[9:]).startswith("agrees")


def test_protocols_without_a_claim_have_no_table():
    other = result("a", "softmax", 0.5)
    object.__setattr__(other, "protocol", "ruler")
    assert evaluation_claims([other]) is None
