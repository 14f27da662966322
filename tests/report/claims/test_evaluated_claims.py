"""The claims beside one evaluation: all that its protocols are about, judged by seeds."""

from diffattn.records.evaluations import EvalResult, Metric
from diffattn.report.claims.catalog import CLAIMS
from diffattn.report.claims.evaluated import PROTOCOLS, evaluation_claims, published_values
from diffattn.report.claims.records import EVALUATIONS


def result(label, kind, value):
    metric = Metric(name="recall", value=value, n=9, headline=True)
    return EvalResult(
        protocol="needle", version=1, source="", variant="needle", choices={}, metrics=[metric],
        model={"label": label, "attention_type": kind}, parameters={}, tables={}, num_items=9,
        num_failed=0, items={},
    )  # fmt: skip


def verdict(results):
    found = evaluation_claims(results)
    (row,) = found.rows
    return [cell.text for cell in row][-1]


def test_every_claim_about_evaluations_names_its_protocol():
    assert set(PROTOCOLS) == {claim.id for claim in CLAIMS if claim.record == EVALUATIONS}
    assert "0.85 against 0.55" in published_values()["needle"]


def test_seeds_are_judged_and_one_pair_is_not():
    seeds = [
        result(f"{kind}-seed{seed}", kind, 0.5 + 0.01 * seed * (kind == "diff") + shift)
        for kind, shift in (("softmax", 0.0), ("diff", 0.3))
        for seed in range(4)
    ]
    assert verdict(seeds) == "agrees"
    assert verdict([seeds[0], seeds[4]]).startswith("inconclusive: 1 of the 3 seeds")
    pair = [result("a", "softmax", 0.5), result("b", "diff", 0.8)]
    assert verdict(pair).startswith("inconclusive: one seed, as the models are not called")
    assert verdict(pair[:1]).startswith("not run: it needs models with softmax and with DIFF V1")


def test_protocols_without_a_claim_have_no_table():
    other = result("a", "softmax", 0.5)
    object.__setattr__(other, "protocol", "ruler")
    assert evaluation_claims([other]) is None
