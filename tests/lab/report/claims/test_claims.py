"""The claims: their commands, their effects from made-up records, and what is concluded."""

import math
import types
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from diffattn.errors import CheckpointError
from diffattn.lab.records.results import BenchResult
from diffattn.lab.report.build import build_report
from diffattn.lab.report.claims.claim import Measured
from diffattn.lab.report.claims.from_benchmarks import time_ratio
from diffattn.lab.report.claims.from_gradients import gradient_factor
from diffattn.lab.report.claims.from_studies import stability_difference
from diffattn.lab.report.claims.from_text import loss_difference
from diffattn.lab.report.claims.records import ClaimRecords, read_claim_records
from diffattn.lab.report.claims.tables import claims_document, claims_table, committed_claims
from diffattn.lab.report.claims.verdicts import CLAIMS, VERDICTS, judged_claims
from diffattn.lab.report.page.markdown import document_markdown
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.stats.paired import paired_t_test
from lab.report.scaling_claims import scaling
from record_files import write_record

ROOT = Path(__file__).parents[4]
BY_ID = {claim.id: claim for claim in CLAIMS}


def test_the_document_is_what_the_records_give():
    """After a new record: the command that the document names."""
    assert committed_claims() == ROOT
    document = (ROOT / "docs" / "findings" / "claims.md").read_text(encoding="utf-8")
    assert document == document_markdown(claims_document(ROOT))
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


def with_differences(study):
    """The record with every paired difference, as the study writes them."""
    rows = []
    for (name, entry), (other, base) in permutations(study["variants"].items(), 2):
        for at in ("best", "common"):
            if at not in entry["at"] and at not in base["at"]:
                continue
            groups = [of["at"].get(at, of["at"]["best"]) for of in (entry, base)]
            parts = [of["parts"] | {"validation_loss": of["validation_loss"]} for of in groups]
            for metric in parts[0].keys() & parts[1].keys():
                losses = (of[metric]["values"] for of in parts)
                values = [a - b for a, b in zip(*losses, strict=False)]
                of = mean_interval(values)
                rows.append(
                    {"variant": name, "baseline": other, "at": at, "metric": metric,
                     "values": values, "mean": of.mean, "low": of.low, "high": of.high}
                )  # fmt: skip
    return study | {"differences": rows}


def records_of(**studies):
    return ClaimRecords(**{kind: with_differences(study) for kind, study in studies.items()})


ALONE = {"softmax": [3.5, 3.6, 3.7], "diff": [3.40, 3.49, 3.61]}
LEAD = ALONE | {"softmax_half": [3.51, 3.61, 3.72]}


def only(claim, records):
    (judged,) = judged_claims(records, [claim])
    return judged


def test_a_clear_difference_agrees_and_its_opposite_disagrees():
    outcome = only(BY_ID["loss"], records_of(text=text(LEAD)))
    assert outcome.verdict == "agrees"
    assert outcome.measured.effect == pytest.approx(-0.1)
    assert outcome.measured.high < 0
    assert outcome.p_holm == outcome.measured.p < 0.01
    behind = text({"softmax": LEAD["diff"], "diff": LEAD["softmax"]})
    assert only(BY_ID["loss"], records_of(text=behind)).verdict == "disagrees"


def test_one_seed_and_wide_intervals_are_inconclusive():
    item = text({"softmax": [2.5], "diff": [3.5]})
    outcome = only(BY_ID["loss"], records_of(text=item))
    assert (outcome.verdict, outcome.measured.p) == ("inconclusive", None)
    assert outcome.why == "1 of the 3 seeds that it takes"
    wide = text({"softmax": [3.5, 3.6, 3.7], "diff": [3.5, 3.9, 3.7]})
    assert only(BY_ID["loss"], records_of(text=wide)).verdict == "inconclusive"


def test_the_studys_verdict_and_controls_make_it_uninformative():
    refused = only(BY_ID["loss"], records_of(text=text(LEAD, informative=False)))
    assert (refused.verdict, refused.why) == ("uninformative", "Made up.")
    alone = only(BY_ID["loss"], records_of(text=text(ALONE)))
    assert (alone.verdict, alone.why) == ("uninformative", "the record holds no control")
    as_good = text(LEAD | {"softmax_half": [3.40, 3.50, 3.60]})
    outcome = only(BY_ID["loss"], records_of(text=as_good))
    assert (outcome.verdict, outcome.why) == (
        "uninformative",
        "not shown to do better than controls: Softmax × ½",
    )
    fewer = text(LEAD | {"softmax_minus_mean": [3.40, 3.50], "softmax_half": [3.4, 3.5, 3.6]})
    outcome = only(BY_ID["loss"], records_of(text=fewer))
    assert (
        outcome.why == "not shown to do better than controls: Softmax × ½, Softmax − 0.7 mean value"
    )
    worse = text(LEAD | {"softmax_half": [3.50, 3.60, 3.70], "softmax_minus_mean": [3.6, 3.7, 3.8]})
    assert only(BY_ID["loss"], records_of(text=worse)).verdict == "agrees"


def test_a_lead_of_v2_has_to_stand_over_v2_without_its_difference():
    base = {"softmax": LEAD["softmax"], "diff_v2": LEAD["diff"]}
    base |= {"softmax_half": LEAD["softmax_half"]}
    worse, alike = LEAD["softmax"], LEAD["diff"]
    alone = only(BY_ID["v2-loss"], records_of(text=text(base)))
    assert (alone.verdict, alone.why) == ("uninformative", "the record holds no control")
    for gate, added, why in (
        (worse, worse, ""), (alike, worse, "DIFF V2, gate only"),
        (worse, alike, "DIFF V2, maps added"),
    ):  # fmt: skip
        record = text(base | {"diff_v2_gate": gate, "diff_v2_added": added})
        outcome = only(BY_ID["v2-loss"], records_of(text=record))
        assert outcome.why == (f"not shown to do better than controls: {why}" if why else "")
        assert outcome.verdict == ("uninformative" if why else "agrees")


def test_a_lead_has_to_stand_at_the_common_rate_and_without_the_norm():
    half = LEAD | {"softmax_half": [3.45, 3.54, 3.66]}
    assert only(BY_ID["loss"], records_of(text=text(half))).verdict == "agrees"
    record = text(half)
    at = record["variants"]["diff"]["at"]
    for values in ([3.5, 3.6, 3.71], [3.49, 3.63, 3.69]):  # softmax attention is not beaten there
        at["common"] = {**at["best"], "validation_loss": {"values": values}}
        outcome = only(BY_ID["loss"], records_of(text=record))
        why = "the lead is not shown at the common learning rate"
        assert (outcome.verdict, outcome.why) == ("uninformative", why)
    at["common"] = {**at["best"], "validation_loss": {"values": [3.45, 3.55, 3.65]}}
    outcome = only(BY_ID["loss"], records_of(text=record))
    assert (outcome.verdict, outcome.why) == (
        "uninformative", "not shown to do better than controls: Softmax × ½"
    )  # fmt: skip
    bare = text(LEAD | {"diff_no_norm": [3.5, 3.61, 3.69]})
    outcome = only(BY_ID["loss"], records_of(text=bare))
    assert "DIFF V1 without head norm" in outcome.why
    leading = text(LEAD | {"diff_no_norm": [3.3, 3.41, 3.5]})
    assert only(BY_ID["loss"], records_of(text=leading)).verdict == "agrees"


def test_the_studys_own_tests_decide_where_it_has_made_them():
    """Holm's adjustment takes back what an interval alone shows; the sentence says so too."""
    record = text(LEAD | {"softmax_half": [3.50, 3.60, 3.70]})
    test = {"variant": "diff", "baseline": "softmax_half", "at": "best", "p": 0.04, "p_holm": 0.4}
    for shown, verdict in ((False, "uninformative"), (True, "agrees")):
        record["tests"] = [test | {"shown": shown}]
        assert only(BY_ID["loss"], records_of(text=record)).verdict == verdict
    record["tests"] = [test | {"shown": True}]
    of_part = loss_difference("diff", "softmax", part="quarter_4")
    for of in record["variants"].values():
        values = of["at"]["best"]["validation_loss"]["values"]
        of["at"]["best"]["parts"] = {"quarter_4": {"values": values}}
    assert of_part(records_of(text=record)).uninformative == ""
    record["tests"] = [test | {"shown": False}]  # of the whole loss: then of no part
    assert "Softmax × ½" in of_part(records_of(text=record)).uninformative
    record["tests"] = [test | {"shown": True}]
    record["variants"]["softmax_half"]["at"]["best"]["validation_loss"]["values"] = [3.3, 3.4, 3.5]
    assert only(BY_ID["loss"], records_of(text=record)).verdict == "uninformative"  # shown: worse


def test_a_control_before_the_induction_phase_excludes_nothing():
    record = text(LEAD | {"softmax_half": [3.8, 3.9, 4.0]})
    for name, steps in (("softmax", [500]), ("diff", [500]), ("softmax_half", [None])):
        record["variants"][name]["at"]["best"]["phase_steps"] = 3 * steps
    outcome = only(BY_ID["loss"], records_of(text=record))
    assert outcome.why == "not shown to do better than controls: Softmax × ½"


def test_a_side_before_the_induction_phase_makes_it_uninformative():
    record = text(LEAD)
    for name, steps in (("softmax", [None] * 3), ("diff", [500] * 3)):
        record["variants"][name]["at"]["best"]["phase_steps"] = steps
    outcome = only(BY_ID["loss"], records_of(text=record))
    assert outcome.why == "one has passed the induction phase and the other has not"


def test_holm_counts_every_claim_with_a_p_value():
    """Two tests of p = 0.03 are not two results."""

    def measure(records):
        return Measured(effect=-1.0, low=-2.0, high=-0.1, n=5, p=0.03)

    claim = replace(BY_ID["loss"], measure=measure)
    assert only(claim, ClaimRecords()).verdict == "agrees"
    both = judged_claims(ClaimRecords(), [claim, replace(claim, id="another")])
    assert [(row.verdict, row.p_holm) for row in both] == 2 * [("inconclusive", 0.06)]


def test_an_uninformative_claim_makes_no_other_easier_to_show():
    """Its own p-value, however small, is not a step of Holm's adjustment."""

    def measured(p, **more):
        return lambda records: Measured(effect=-1.0, low=-2.0, high=-0.1, n=5, p=p, **more)

    silent = replace(BY_ID["loss"], measure=measured(0.001, uninformative="Made up."))
    claim = replace(BY_ID["loss"], id="another", measure=measured(0.03))
    rows = judged_claims(ClaimRecords(), [silent, claim])
    assert [(row.verdict, row.p_holm) for row in rows] == [
        ("uninformative", 1.0), ("inconclusive", 0.06),
    ]  # fmt: skip
    assert rows[0].measured.p == 0.001


def test_a_bound_other_than_zero_is_what_is_tested():
    claim = BY_ID["v2-norm"]
    same = {"diff_v2": [3.5, 3.6, 3.7], "diff_v2_norm": [3.5, 3.601, 3.699]}
    assert only(claim, records_of(text=text(same))).verdict == "agrees"
    better = {"diff_v2": [3.5, 3.6, 3.7], "diff_v2_norm": [3.4, 3.501, 3.599]}
    assert only(claim, records_of(text=text(better))).verdict == "disagrees"


def test_rows_of_ablations_and_ranks_are_read_from_their_own_records():
    rank = text({"shared_diff_r2": [3.0, 3.1, 3.2], "shared_diff_r16": [2.9, 3.0, 3.11]})
    claim = BY_ID["shared-rank"]
    assert claim.measure(records_of(text=rank, ablations=rank)) is None
    judged = only(claim, records_of(rank=rank))
    assert judged.measured.effect == pytest.approx((0.1 + 0.1 + 0.09) / 3)
    assert judged.verdict == "disagrees"  # far above the margin
    losses = {"diff": [3.0, 3.1, 3.2], "diff_lambda_08": [3.0, 3.1, 3.2001]}
    assert only(BY_ID["lambda-init-0.8"], records_of(ablations=text(losses))).verdict == "agrees"
    wrong = text(losses, informative=False)
    assert only(BY_ID["lambda-init-0.8"], records_of(ablations=wrong)).verdict == "uninformative"
    diverged = text({"diff": losses["diff"]}) | {"diverged": {"diff_lambda_08": [1, 3]}}
    outcome = only(BY_ID["lambda-init-0.8"], records_of(ablations=diverged))
    assert (outcome.verdict, outcome.measured.p) == ("uninformative", 1.0)
    assert outcome.why == "DIFF V1, λ_init 0.8 diverged in 1 of 3 runs"


def test_loss_of_a_part():
    parts = {"softmax": {"quarter_4": [3.0, 3.0]}, "diff": {"quarter_4": [2.5, 2.75]}}
    study = text({"softmax": [3.0, 3.0], "diff": [3.0, 3.0]}, parts=parts)
    outcome = loss_difference("diff", "softmax", part="quarter_4")(records_of(text=study))
    assert outcome.effect == -0.375
    assert loss_difference("diff", "softmax", part="other")(records_of(text=study)) is None


def test_stability_over_the_rates_at_which_both_attend():
    entry = {"type": "diff_v2", "baseline": "diff", "metric": "loss_spike_share"}
    ends = {"mean": -0.375, "low": -1.0, "high": 0.25}
    outcome = ClaimRecords(
        stability={
            "types": {},
            "differences": [
                entry | {"learning_rate": 0.002, "values": [1.0, 1.0]},
                entry | {"learning_rate": None, "values": [-0.25, -0.5]} | ends,
            ],
        }
    )
    spikes = stability_difference("loss_spike_share", "diff_v2", "diff")(outcome)
    assert spikes.effect == -0.375
    assert "counted before" in spikes.uninformative  # a record of earlier rules
    over = outcome.stability["differences"][1]
    over |= {"rates": [0.002], "why": "the lowest rate alone"}
    spikes = stability_difference("loss_spike_share", "diff_v2", "diff")(outcome)
    assert (spikes.uninformative, spikes.note) == ("the lowest rate alone", "rates 0.002")
    over |= {"rates": [0.002, 0.008], "why": ""}
    spikes = stability_difference("loss_spike_share", "diff_v2", "diff")(outcome)
    assert (spikes.uninformative, spikes.note) == ("", "rates 0.002 and 0.008")
    assert stability_difference("loss", "diff_v2", "diff")(outcome) is None


def test_gradients_by_the_largest_factor_of_each_seed():
    rows = [
        {"id": "level-large-values", "values": [8.0, 8.1, 7.9], "why": ""},
        {"id": "updates", "values": [1.25, 1.25, 1.25], "why": "so are the control's"},
        {"id": "drift-width", "values": [], "why": "a size is not known"},
    ]
    rows = [row | {"mean": 8.0, "low": 7.7, "high": 8.3} for row in rows]
    records = ClaimRecords(gradient_flow={"judgements": rows})
    outcome = gradient_factor("level-large-values", 2.0)(records)
    assert (outcome.effect, outcome.low, outcome.high) == (8.0, 7.7, 8.3)
    logs = [math.log(value / 2) for value in (8.0, 8.1, 7.9)]
    assert outcome.p == pytest.approx(paired_t_test(logs))
    assert only(BY_ID["gradients"], records).verdict == "disagrees"
    assert only(BY_ID["updates"], records).why == "so are the control's"
    assert only(BY_ID["gradients-constant"], records).verdict == "uninformative"
    assert only(BY_ID["head-norm-scale"], records).verdict == "not run"


def test_times_of_a_cpu_say_nothing_about_gpus(bench_result):
    records = ClaimRecords(benchmarks=(bench_result,))
    case = next(case for case in bench_result.cases if case.suite == "models")
    outcome = time_ratio("diff", mode=case.mode)(records)
    assert outcome is None  # the made-up row has no ratio to the same technique
    ops = next(case for case in bench_result.cases if case.suite == "ops")
    measured = time_ratio("", mode=ops.mode, suite="ops")(records)
    assert (measured.effect, measured.n) == (1.07, 2)
    assert measured.uninformative == "timed on a CPU; the claim is about GPUs"
    assert time_ratio("", mode=ops.mode, suite="ops", on_gpu=False)(records).uninformative == ""
    cases = [replace(case, device="cuda") for case in bench_result.cases]
    on_gpu = ClaimRecords(benchmarks=(BenchResult(runs=bench_result.runs, cases=cases),))
    assert time_ratio("", mode=ops.mode, suite="ops")(on_gpu).uninformative == ""
    no_contender = replace(ops, device="cuda", rows=[row for row in ops.rows if row.role != "DIFF"])
    cases = [*bench_result.cases, no_contender]
    both = ClaimRecords(benchmarks=(BenchResult(runs=bench_result.runs, cases=cases),))
    message = time_ratio("", mode=ops.mode, suite="ops", on_gpu=False)
    assert message(both).note == message(records).note  # devices on which it was timed
    claim = replace(
        BY_ID["training-cost"], bound=1.08, measure=time_ratio("", mode=ops.mode, suite="ops")
    )
    assert only(claim, on_gpu).verdict == "agrees"
    assert only(replace(claim, bound=1.0), on_gpu).verdict == "disagrees"


def commit(root, kind, results):
    write_record(root / "published" / kind / "study.json", {"kind": kind})
    write_record(root / "published" / kind / "results.json", results)


def test_a_whole_folder_of_records(tmp_path):
    commit(tmp_path, "text", with_differences(text(LEAD)))
    commit(tmp_path, "scaling", {"schema": 1} | scaling())
    outcome = {row.claim.id: row for row in judged_claims(read_claim_records(tmp_path), CLAIMS)}
    assert outcome["loss"].verdict == "agrees"
    assert outcome["tokens"].measured.effect == 0.8
    assert outcome["head-norm"].verdict == "not run"
    shown = claims_table(tmp_path)
    loss = next(row for row in shown.rows if row[0].text == "loss")
    assert [cell.text for cell in loss][-1] == "agrees"
    assert shown.caption.startswith(f"{len(CLAIMS)} claims: agrees 3, ")
    assert {row.verdict for row in outcome.values()} <= set(VERDICTS)


def test_an_old_or_damaged_study_is_refused(tmp_path):
    commit(tmp_path, "ablations", fewer := text(LEAD | {"diff_no_norm": LEAD["diff"][:2]}))
    assert read_claim_records(tmp_path).ablations == fewer  # a control with the first seeds alone
    commit(tmp_path, "text", text(LEAD) | {"schema": 1})
    with pytest.raises(CheckpointError, match=r"published/text/results\.json: "):
        read_claim_records(tmp_path)


def test_the_page_of_a_study_shows_them_if_asked(make_study):
    study = make_study(num_steps=10)
    page = build_report(study, claims=ROOT).read_text(encoding="utf-8")
    assert '<a href="#claims">What do the papers claim?</a>' in page
    for claim in CLAIMS:
        assert f">{claim.id}</th>" in page
    assert '<section id="claims">' not in build_report(study).read_text(encoding="utf-8")
