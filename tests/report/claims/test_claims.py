"""The claims: their commands, their effects from made-up records, and what is concluded."""

import math
import types
from dataclasses import replace
from pathlib import Path

import pytest

from diffattn.errors import CheckpointError
from diffattn.records.evaluations import EvalResult, Metric
from diffattn.records.results import BenchResult
from diffattn.report.build import build_report
from diffattn.report.claims.catalog import CLAIMS
from diffattn.report.claims.folders import read_claim_records
from diffattn.report.claims.from_gradients import gradient_factor
from diffattn.report.claims.from_models import evaluated, evaluated_ratio, time_ratio
from diffattn.report.claims.from_studies import stability_difference
from diffattn.report.claims.from_text import loss_difference
from diffattn.report.claims.measured import Measured
from diffattn.report.claims.records import ClaimRecords
from diffattn.report.claims.tables import claims_document, claims_table, committed_claims
from diffattn.report.claims.verdicts import VERDICTS, judged_claims
from diffattn.stats.paired import paired_t_test
from record_files import write_record
from report.scaling_claims import scaling

ROOT = Path(__file__).parents[3]
BY_ID = {claim.id: claim for claim in CLAIMS}


def test_the_document_is_what_the_records_give():
    """After a new record: ``python -m diffattn.report.claims.tables docs/claims.md``."""
    assert committed_claims() == ROOT
    document = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert document == claims_document(ROOT)
    shown = claims_table(ROOT)
    assert [row[0].text for row in shown.rows] == [claim.id for claim in CLAIMS]
    assert shown.caption in document


def test_the_catalog_is_whole():
    assert len(BY_ID) == len(CLAIMS) >= 20
    for claim in CLAIMS:
        assert all((claim.says, claim.source, claim.effect, claim.record)), claim.id
        assert "arXiv:" in claim.source or "note" in claim.source or "ours" in claim.source
        if claim.commands.study is None:
            assert claim.commands == (None, None, None)


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.id for claim in CLAIMS])
def test_without_records_nothing_is_measured(claim):
    assert claim.measure(ClaimRecords()) is None


def test_a_folder_without_records_gives_claims_that_were_not_run(tmp_path):
    assert read_claim_records(tmp_path) == ClaimRecords()
    assert {row.verdict for row in judged_claims(ClaimRecords(), CLAIMS)} == {"not run"}


# What records would hold; every number is made up.


def text(losses, *, informative=True, parts=types.MappingProxyType({})):
    variants = {
        name: {
            "parameters": 1_000,
            "at": {
                "best": {
                    "runs": [f"{name}-seed{i}" for i in range(len(values))],
                    "validation_loss": {"values": values},
                    "parts": {
                        key: {"values": of} for key, of in (parts or {}).get(name, {}).items()
                    },
                }
            },
        }
        for name, values in losses.items()
    }
    verdict = {"informative": informative, "sentence": "Made up.", "reasons": []}
    seeds = list(range(len(next(iter(losses.values())))))
    rates = {"variants": {}}
    return {"schema": 2, "seeds": seeds, "variants": variants, "verdict": verdict, "rates": rates}


LEAD = {"softmax": [3.5, 3.6, 3.7], "diff": [3.40, 3.49, 3.61]}


def only(claim, records):
    (judged,) = judged_claims(records, [claim])
    return judged


def test_a_clear_difference_agrees_and_its_opposite_disagrees():
    found = only(BY_ID["loss"], ClaimRecords(text=text(LEAD)))
    assert found.verdict == "agrees"
    assert found.measured.effect == pytest.approx(-0.1)
    assert found.measured.high < 0
    assert found.p_holm == found.measured.p < 0.01
    behind = text({"softmax": LEAD["diff"], "diff": LEAD["softmax"]})
    assert only(BY_ID["loss"], ClaimRecords(text=behind)).verdict == "disagrees"


def test_one_seed_and_wide_intervals_are_inconclusive():
    one = text({"softmax": [3.5], "diff": [2.5]})
    found = only(BY_ID["loss"], ClaimRecords(text=one))
    assert (found.verdict, found.measured.p) == ("inconclusive", None)
    assert found.why == "1 of the 3 seeds that it takes"
    wide = text({"softmax": [3.5, 3.6, 3.7], "diff": [3.3, 3.7, 3.5]})
    assert only(BY_ID["loss"], ClaimRecords(text=wide)).verdict == "inconclusive"


def test_the_studys_verdict_and_controls_make_it_uninformative():
    refused = only(BY_ID["loss"], ClaimRecords(text=text(LEAD, informative=False)))
    assert (refused.verdict, refused.why) == ("uninformative", "Made up.")
    as_good = text(LEAD | {"softmax_half": [3.40, 3.50, 3.60]})
    found = only(BY_ID["loss"], ClaimRecords(text=as_good))
    assert (found.verdict, found.why) == (
        "uninformative",
        "not shown to do better than controls: Softmax × ½",
    )
    fewer = text(LEAD | {"softmax_minus_mean": [3.40, 3.50], "softmax_half": [3.4, 3.5, 3.6]})
    found = only(BY_ID["loss"], ClaimRecords(text=fewer))
    assert (
        found.why == "not shown to do better than controls: Softmax × ½, Softmax − 0.7 mean value"
    )
    worse = text(LEAD | {"softmax_half": [3.50, 3.60, 3.70], "softmax_minus_mean": [3.6, 3.7, 3.8]})
    assert only(BY_ID["loss"], ClaimRecords(text=worse)).verdict == "agrees"


def test_a_lead_has_to_stand_at_the_common_rate_and_without_the_norm():
    half = LEAD | {"softmax_half": [3.45, 3.54, 3.66]}
    assert only(BY_ID["loss"], ClaimRecords(text=text(half))).verdict == "agrees"
    record = text(half)
    at = record["variants"]["diff"]["at"]
    at["common"] = {**at["best"], "validation_loss": {"values": [3.45, 3.55, 3.65]}}
    found = only(BY_ID["loss"], ClaimRecords(text=record))
    assert (found.verdict, found.why) == (
        "uninformative", "not shown to do better than controls: Softmax × ½"
    )  # fmt: skip
    bare = text(LEAD | {"diff_no_norm": [3.5, 3.61, 3.69]})
    found = only(BY_ID["loss"], ClaimRecords(text=bare))
    assert "DIFF V1 without head norm" in found.why
    leading = text(LEAD | {"diff_no_norm": [3.3, 3.41, 3.5]})
    assert only(BY_ID["loss"], ClaimRecords(text=leading)).verdict == "agrees"


def test_the_studys_own_tests_decide_where_it_has_made_them():
    """Holm's adjustment takes back what an interval alone shows; the sentence says so too."""
    record = text(LEAD | {"softmax_half": [3.50, 3.60, 3.70]})
    test = {"variant": "diff", "baseline": "softmax_half", "at": "best", "p": 0.04, "p_holm": 0.4}
    for shown, verdict in ((False, "uninformative"), (True, "agrees")):
        record["tests"] = [test | {"shown": shown}]
        assert only(BY_ID["loss"], ClaimRecords(text=record)).verdict == verdict
    record["tests"] = [test | {"shown": True}]
    record["variants"]["softmax_half"]["at"]["best"]["validation_loss"]["values"] = [3.3, 3.4, 3.5]
    assert only(BY_ID["loss"], ClaimRecords(text=record)).verdict == "uninformative"  # shown: worse


def test_a_control_before_the_induction_phase_excludes_nothing():
    record = text(LEAD | {"softmax_half": [3.8, 3.9, 4.0]})
    for name, steps in (("softmax", [500]), ("diff", [500]), ("softmax_half", [None])):
        record["variants"][name]["at"]["best"]["phase_steps"] = 3 * steps
    found = only(BY_ID["loss"], ClaimRecords(text=record))
    assert found.why == "not shown to do better than controls: Softmax × ½"


def test_a_side_before_the_induction_phase_makes_it_uninformative():
    record = text(LEAD)
    for name, steps in (("softmax", [None] * 3), ("diff", [500] * 3)):
        record["variants"][name]["at"]["best"]["phase_steps"] = steps
    found = only(BY_ID["loss"], ClaimRecords(text=record))
    assert found.why == "one has passed the induction phase and the other has not"


def test_holm_counts_every_claim_with_a_p_value():
    """Two tests of p = 0.03 are not two results."""

    def measure(records):
        return Measured(effect=-1.0, low=-2.0, high=-0.1, n=5, p=0.03)

    claim = replace(BY_ID["loss"], measure=measure)
    assert only(claim, ClaimRecords()).verdict == "agrees"
    both = judged_claims(ClaimRecords(), [claim, replace(claim, id="another")])
    assert [(row.verdict, row.p_holm) for row in both] == 2 * [("inconclusive", 0.06)]


def test_a_bound_other_than_zero_is_what_is_tested():
    claim = BY_ID["v2-norm"]
    same = {"diff_v2": [3.5, 3.6, 3.7], "diff_v2_norm": [3.5, 3.601, 3.699]}
    assert only(claim, ClaimRecords(text=text(same))).verdict == "agrees"
    better = {"diff_v2": [3.5, 3.6, 3.7], "diff_v2_norm": [3.4, 3.501, 3.599]}
    assert only(claim, ClaimRecords(text=text(better))).verdict == "disagrees"


def test_rows_of_ablations_and_ranks_are_read_from_their_own_records():
    rank = text({"shared_diff_r2": [3.0, 3.1, 3.2], "shared_diff_r16": [2.9, 3.0, 3.11]})
    claim = BY_ID["shared-rank"]
    assert claim.measure(ClaimRecords(text=rank, ablations=rank)) is None
    judged = only(claim, ClaimRecords(rank=rank))
    assert judged.measured.effect == pytest.approx((0.1 + 0.1 + 0.09) / 3)
    assert judged.verdict == "disagrees"  # far above the margin
    losses = {"diff": [3.0, 3.1, 3.2], "diff_lambda_08": [3.0, 3.1, 3.2001]}
    assert only(BY_ID["lambda-init-0.8"], ClaimRecords(ablations=text(losses))).verdict == "agrees"
    wrong = text(losses, informative=False)
    assert only(BY_ID["lambda-init-0.8"], ClaimRecords(ablations=wrong)).verdict == "uninformative"


def test_loss_of_a_part():
    parts = {"softmax": {"quarter_4": [3.0, 3.0]}, "diff": {"quarter_4": [2.5, 2.75]}}
    study = text({"softmax": [3.0, 3.0], "diff": [3.0, 3.0]}, parts=parts)
    found = loss_difference("diff", "softmax", part="quarter_4")(ClaimRecords(text=study))
    assert found.effect == -0.375
    assert loss_difference("diff", "softmax", part="other")(ClaimRecords(text=study)) is None


def test_stability_over_the_rates_at_which_both_attend():
    entry = {"type": "diff_v2", "baseline": "diff", "metric": "loss_spike_share"}
    found = ClaimRecords(
        stability={
            "types": {},
            "differences": [
                entry | {"learning_rate": 0.002, "values": [1.0, 1.0]},
                entry | {"learning_rate": None, "values": [-0.25, -0.5]},
            ],
            "attending": {"diff": [0.002], "softmax": [0.002]},
        }
    )
    spikes = stability_difference("loss_spike_share", "diff_v2", "diff")(found)
    assert spikes.effect == -0.375
    assert "without attention" in spikes.uninformative
    found.stability["differences"][1]["informative"] = True
    assert not stability_difference("loss_spike_share", "diff_v2", "diff")(found).uninformative
    assert stability_difference("loss", "diff_v2", "diff")(found) is None


def test_gradients_by_the_largest_factor_of_each_seed():
    rows = [
        {"id": "level-large-values", "values": [8.0, 8.1, 7.9], "why": ""},
        {"id": "updates", "values": [1.25, 1.25, 1.25], "why": "so are the control's"},
        {"id": "drift-width", "values": [], "why": "a size is not known"},
    ]
    records = ClaimRecords(gradient_flow={"judgements": rows})
    found = gradient_factor("level-large-values", 2.0)(records)
    assert found.effect == pytest.approx((8.0 * 8.1 * 7.9) ** (1 / 3))
    assert found.low < found.effect < found.high
    logs = [math.log(value / 2) for value in (8.0, 8.1, 7.9)]
    assert found.p == pytest.approx(paired_t_test(logs))
    assert only(BY_ID["gradients"], records).verdict == "disagrees"
    assert only(BY_ID["updates"], records).why == "so are the control's"
    assert only(BY_ID["gradients-constant"], records).verdict == "uninformative"
    assert only(BY_ID["head-norm-scale"], records).verdict == "not run"


def evaluation(label, variant, *metrics):
    return EvalResult(
        protocol="needle", version=2, source="", variant=variant, model={"label": label},
        parameters={}, choices={}, metrics=list(metrics), tables={}, num_items=1, num_failed=0,
        items={},
    )  # fmt: skip


def test_evaluations_are_paired_by_the_seed_of_the_models():
    def both(value):
        first = Metric(name="recall", value=value, n=9, where={"depth": 0}, headline=True)
        return first, Metric(name="recall", value=1.0, n=9, where={"depth": 50})

    found = ClaimRecords(
        evaluations=tuple(
            evaluation(f"{kind}-seed{seed}", variant, *both(value))
            for kind, seed, variant, value in (
                ("softmax", 0, "a", 0.25), ("diff", 0, "a", 0.5), ("softmax", 1, "a", 0.25),
                ("diff", 1, "a", 0.75), ("diff", 2, "a", 0.0), ("diff_v2", 0, "a", 0.0),
                ("diff", 0, "b", 0.0),
            )
        )
    )  # fmt: skip
    only_a = evaluated("needle", "recall", "diff", parts=("a",))(found)
    assert (only_a.effect, only_a.n) == (0.375, 2)
    every = evaluated("needle", "recall", "diff")(found)
    assert (every.effect, every.note) == (0.375, "1 of 2 parts, which all models have")
    assert evaluated("needle", "recall", "diff", where={"depth": 50})(found).effect == 0
    assert evaluated("ruler", "recall", "diff")(found) is None


@pytest.mark.parametrize("better", ["above", "below"])
def test_a_lead_without_a_control_says_nothing(better):
    sign = 1 if better == "above" else -1
    means = {"softmax": 0.5, "diff": 0.5 + 0.25 * sign, "softmax_half": 0.5}

    def judged(kinds, protocol="needle"):
        results = [
            evaluation(
                f"{kind}-seed{seed}", "a",
                Metric(name="recall", value=means[kind] + 0.01 * seed, n=9, headline=True),
            )
            for kind in kinds
            for seed in range(3)
        ]  # fmt: skip
        measure = evaluated(protocol, "recall", "diff", better=better)
        return measure(ClaimRecords(evaluations=tuple(results))).uninformative

    assert judged(("softmax", "diff")) == "the record holds no control"
    assert judged(means) == ""
    means["softmax_half"] = 0.5 + 0.5 * sign
    assert judged(means) == "not shown to do better than controls: Softmax × ½"
    means["diff"] = 0.5 - 0.25 * sign  # nothing to explain where there is no lead
    assert judged(("softmax", "diff")) == ""


def test_the_needles_are_those_that_the_paper_prints_or_are_named():
    def of(label, *values):
        tasks = ("N=6, R=2", "N=4, R=2", "N=1, R=1")
        numbers = [
            Metric(name="recall", value=value, n=9, headline=True, where={"task": task})
            for task, value in zip(tasks, values, strict=True)
            if value is not None
        ]
        return evaluation(label, "needle", *numbers)

    def found(*results):
        return BY_ID["needles"].measure(ClaimRecords(evaluations=results))

    whole = found(of("softmax-seed0", 0.5, 0.5, 1.0), of("diff-seed0", 0.75, 0.25, 0.0))
    assert (whole.effect, whole.note) == (0.25, "")
    rest = found(of("softmax-seed0", None, 0.5, 1.0), of("diff-seed0", 0.75, 0.25, 0.5))
    assert (rest.effect, rest.note) == (-0.375, "N=1, R=1; N=4, R=2 in place of N=6, R=2")
    assert found(of("softmax-seed0", 0.5, None, None), of("diff-seed0", None, 1.0, 1.0)) is None


def test_ratios_are_geometric_means_over_seeds():
    values = {"softmax-seed0": 8.0, "diff-seed0": 2.0, "softmax-seed1": 3.0, "diff-seed1": 3.0}
    found = ClaimRecords(
        evaluations=tuple(
            evaluation(label, "a", Metric(name="recall", value=value, n=9, headline=True))
            for label, value in values.items()
        )
    )
    of = evaluated_ratio("needle", "recall", "diff")(found)
    assert (of.effect, of.n) == (pytest.approx(0.5), 2)  # a quarter and one
    assert of.low < 0.5 < of.high
    assert evaluated_ratio("needle", "recall", "diff_v2")(found) is None


def test_times_of_a_cpu_say_nothing_about_gpus(bench_result):
    records = ClaimRecords(benchmarks=(bench_result,))
    case = next(case for case in bench_result.cases if case.suite == "models")
    found = time_ratio("diff", mode=case.mode)(records)
    assert found is None  # the made-up row has no ratio to the same technique
    ops = next(case for case in bench_result.cases if case.suite == "ops")
    measured = time_ratio("", mode=ops.mode, suite="ops")(records)
    assert (measured.effect, measured.n) == (1.07, 2)
    assert measured.uninformative == "timed on a CPU; the claim is about GPUs"
    assert time_ratio("", mode=ops.mode, suite="ops", on_gpu=False)(records).uninformative == ""
    cases = [replace(case, device="cuda") for case in bench_result.cases]
    on_gpu = ClaimRecords(benchmarks=(BenchResult(runs=bench_result.runs, cases=cases),))
    assert time_ratio("", mode=ops.mode, suite="ops")(on_gpu).uninformative == ""
    claim = replace(
        BY_ID["training-cost"], bound=1.08, measure=time_ratio("", mode=ops.mode, suite="ops")
    )
    assert only(claim, on_gpu).verdict == "agrees"
    assert only(replace(claim, bound=1.0), on_gpu).verdict == "disagrees"


def commit(root, kind, results):
    write_record(root / "published" / kind / "study.json", {"kind": kind})
    write_record(root / "published" / kind / "results.json", results)


def test_a_whole_folder_of_records(tmp_path):
    commit(tmp_path, "text", text(LEAD))
    commit(tmp_path, "scaling", {"schema": 1} | scaling())
    found = {row.claim.id: row for row in judged_claims(read_claim_records(tmp_path), CLAIMS)}
    assert found["loss"].verdict == "agrees"
    assert found["tokens"].measured.effect == 0.8
    assert found["head-norm"].verdict == "not run"
    shown = claims_table(tmp_path)
    loss = next(row for row in shown.rows if row[0].text == "loss")
    assert [cell.text for cell in loss][-2:] == ["agrees", "published/text"]
    assert shown.caption.startswith(f"{len(CLAIMS)} claims: agrees 3, ")
    assert {row.verdict for row in found.values()} <= set(VERDICTS)


def test_an_old_or_damaged_study_is_refused(tmp_path):
    commit(tmp_path, "ablations", fewer := text(LEAD | {"diff_no_norm": LEAD["diff"][:2]}))
    assert read_claim_records(tmp_path).ablations == fewer  # a control with the first seeds alone
    for wrong in (
        text(LEAD | {"none": [4.0] * 4}),  # more than the study has seeds
        text(LEAD) | {"schema": 1},
        text(LEAD) | {"verdict": None},
    ):
        commit(tmp_path, "text", wrong)
        with pytest.raises(CheckpointError, match=r"published/text/results\.json: "):
            read_claim_records(tmp_path)


def test_the_page_of_a_study_shows_them_if_asked(make_study):
    study = make_study(num_steps=10)
    page = build_report(study, claims=ROOT).read_text(encoding="utf-8")
    assert '<a href="#claims">Claims of the papers</a>' in page
    for claim in CLAIMS:
        assert f">{claim.id}</th>" in page
    assert '<section id="claims">' not in build_report(study).read_text(encoding="utf-8")
