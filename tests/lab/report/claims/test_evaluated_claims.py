"""The claims beside one evaluation: all that its protocols are about, measured by seeds."""

from diffattn.lab.evaluation.quantized_logits import QuantizedLogits
from diffattn.lab.records.evaluations import Metric
from diffattn.lab.report.claims.records import EVALUATIONS
from diffattn.lab.report.claims.tables import CLAIMS, evaluation_claims
from evaluation_folders import eval_result


def result(label, kind, value):
    metric = Metric(name="recall", value=value, n=9, headline=True)
    model = {"label": label, "attention_type": kind}
    return eval_result("needle", model=model, metrics=[metric])


def row_of(results):
    """Effect, interval, seeds and reservation of the one claim that these results are about."""
    (row,) = evaluation_claims(results).rows
    return [cell.text for cell in row[3:]]


def test_every_claim_about_evaluations_names_its_protocol():
    for claim in CLAIMS:
        assert bool(claim.protocol) == (claim.record == EVALUATIONS)
        if claim.protocol == "quantized_logits":  # whose metric is named after its first task
            metric = claim.measure.keywords["metric"]
            assert metric == f"change of {QuantizedLogits().settings['tasks'][0]} acc_norm"


def test_models_are_paired_by_seed():
    seeds = [
        result(f"{kind}-seed{seed}", kind, 0.5 + 0.01 * seed * (kind == "diff") + shift)
        for kind, shift in (("softmax", 0.0), ("diff", 0.3), ("softmax_half", 0.1))
        for seed in range(4)
    ]
    assert row_of(seeds) == ["0.315", "0.294 to 0.336", "4 seeds", ""]
    assert row_of(seeds[:8])[2:] == ["4 seeds", "the record holds no control"]
    assert row_of(seeds[::4]) == [
        "0.300", "—", "1 seed", "not shown to do better than controls: Softmax × ½"
    ]  # fmt: skip


def test_models_without_seeds_are_not_compared():
    assert row_of([result("a", "softmax", 0.5), result("b", "diff", 0.8)]) == ["—", "—", "—", ""]


def test_protocols_without_a_claim_have_no_table():
    other = result("a", "softmax", 0.5)
    object.__setattr__(other, "protocol", "ruler")
    assert evaluation_claims([other]) is None
