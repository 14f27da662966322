"""The claims: their effects from made-up records, and the reservations about them."""

import types
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from diffattn.errors import CheckpointError
from diffattn.lab.catalog.models import own_side_effects
from diffattn.lab.records.results import BenchResult
from diffattn.lab.report.build import build_report
from diffattn.lab.report.claims.from_benchmarks import time_ratio
from diffattn.lab.report.claims.from_studies import loss_difference
from diffattn.lab.report.claims.records import ClaimRecords, read_claim_records
from diffattn.lab.report.claims.tables import CLAIMS, checkout_root, claims_table, measured_claims
from diffattn.lab.stats.intervals import mean_interval
from record_files import write_record

ROOT = Path(__file__).parents[4]
BY_ID = {claim.id: claim for claim in CLAIMS}
NO_CONTROL = "the record holds no control"
NOT_BETTER = "not shown to do better than controls: "


# What records would hold; every number is made up.


def text(losses, *, informative=True, parts=types.MappingProxyType({})):
    """A study on text with every paired difference, as the study writes them."""
    variants = {}
    for name, values in losses.items():
        best = {"runs": [f"{name}-seed{i}" for i in range(len(values))]}
        best |= {"validation_loss": {"values": values}, "phase_steps": [500] * len(values)}
        best["parts"] = {key: {"values": of} for key, of in parts.get(name, {}).items()}
        variants[name] = {"parameters": 1_000, "at": {"best": best}}
    sentence = "Uninformative about attention types: Made up."
    verdict = {"informative": informative, "sentence": sentence, "reasons": []}
    study = {"schema": 3, "variants": variants, "verdict": verdict, "rates": {"variants": {}}}
    return study | {"seeds": list(range(len(next(iter(losses.values())))))}


def with_differences(study):
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


def measure(claim, **studies):
    """The effect of a claim by its name."""
    of_kind = {kind: with_differences(study) for kind, study in studies.items()}
    return BY_ID[claim].measure(ClaimRecords(studies=of_kind))


ALONE = {"softmax": [3.5, 3.6, 3.7], "diff": [3.40, 3.49, 3.61]}
LEAD = ALONE | {"softmax_half": [3.51, 3.61, 3.72]}
V2 = {"softmax": LEAD["softmax"], "diff_v2": LEAD["diff"], "softmax_half": LEAD["softmax_half"]}


def test_an_effect_has_its_interval_and_the_kind_of_rates():
    lead = measure("loss", text=(study := text(LEAD)))
    assert (lead.effect, lead.count, lead.uninformative) == (pytest.approx(-0.1), "3 seeds", "")
    assert lead.low < -0.1 < lead.high < 0
    assert lead.note == "one learning rate"
    study["variants"]["diff"]["at"]["best"]["learning_rate"] = 1e-3
    assert measure("loss", text=study).note == "chosen rates"
    behind = measure("loss", text=text({"softmax": LEAD["diff"], "diff": LEAD["softmax"]}))
    assert (behind.effect, behind.low > 0) == (pytest.approx(0.1), True)
    assert behind.uninformative == ""  # no control is needed where nothing is gained
    one = measure("loss", text=text({"softmax": [2.5], "diff": [3.5]}))
    assert (one.effect, one.low, one.high, one.count) == (1.0, None, None, "1 seed")


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        (ALONE, NO_CONTROL),
        (LEAD | {"softmax_half": [3.40, 3.50, 3.60]}, f"{NOT_BETTER}Softmax × ½"),
        (LEAD | {"softmax_half": [3.45, 3.54, 3.66]}, ""),
        (LEAD | {"softmax_minus_mean": [3.40, 3.50], "softmax_half": [3.4, 3.5, 3.6]},
         f"{NOT_BETTER}Softmax × ½, Softmax − 0.7 mean value"),
        (LEAD | {"diff_no_norm": [3.5, 3.61, 3.69]}, f"{NOT_BETTER}DIFF V1 without head norm"),
        (LEAD | {"diff_no_norm": [3.3, 3.41, 3.5]}, ""),
    ],
)  # fmt: skip
def test_a_lead_has_to_stand_over_the_controls(losses, why):
    assert measure("loss", text=text(losses)).uninformative == why


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (dict.fromkeys(own_side_effects("diff_v2"), LEAD["softmax"]), ""),
        ({"diff_v2_gate": LEAD["diff"], "diff_v2_added": LEAD["softmax"]},
         f"{NOT_BETTER}DIFF V2, gate only"),
        ({"diff_v2_gate": LEAD["softmax"], "diff_v2_added": LEAD["diff"]},
         f"{NOT_BETTER}DIFF V2, maps added"),
    ],
)  # fmt: skip
def test_a_lead_of_v2_has_to_stand_over_v2_without_its_difference(parts, why):
    assert measure("v2-loss", text=text(V2 | parts)).uninformative == why


@pytest.mark.parametrize(
    ("common", "why"),
    [  # softmax attention is not beaten there, or the control is not
        ([3.5, 3.6, 3.71], "the lead is not shown at the common learning rate"),
        ([3.49, 3.63, 3.69], "the lead is not shown at the common learning rate"),
        ([3.45, 3.55, 3.65], f"{NOT_BETTER}Softmax × ½"),
        ([3.40, 3.50, 3.60], ""),
    ],
)
def test_a_lead_has_to_stand_at_the_common_rate(common, why):
    record = text(LEAD | {"softmax_half": [3.45, 3.54, 3.66]})
    at = record["variants"]["diff"]["at"]
    at["common"] = {**at["best"], "validation_loss": {"values": common}}
    assert measure("loss", text=record).uninformative == why


@pytest.mark.parametrize(
    ("late", "why"),
    [
        ("softmax", "one has passed the induction phase and the other has not"),
        ("softmax_half", f"{NOT_BETTER}Softmax × ½"),  # though its loss is far above
    ],
)
def test_a_model_before_the_induction_phase_says_nothing(late, why):
    record = text(LEAD | {"softmax_half": [3.8, 3.9, 4.0]})
    for name, entry in record["variants"].items():
        entry["at"]["best"]["phase_steps"] = 3 * [None if name == late else 500]
    assert measure("loss", text=record).uninformative == why


def test_rows_of_ablations_and_ranks_are_read_from_their_own_records():
    rank = text({"shared_diff_r2": [3.0, 3.1, 3.2], "shared_diff_r16": [2.9, 3.0, 3.11]})
    assert measure("shared-rank", text=rank, ablations=rank) is None
    effect = measure("shared-rank", rank=rank)
    assert effect.effect == pytest.approx((0.1 + 0.1 + 0.09) / 3)
    unpaired = ClaimRecords(studies={"rank": rank | {"differences": []}})
    assert BY_ID["shared-rank"].measure(unpaired) == effect  # the study has other pairs
    losses = {"diff": [3.0, 3.1, 3.2], "diff_lambda_08": [3.0, 3.1, 3.2001]}
    assert measure("lambda-init-0.8", ablations=text(losses)).uninformative == ""
    wrong = text(losses, informative=False)
    assert measure("lambda-init-0.8", ablations=wrong).uninformative == "Made up."
    diverged = text({"diff": losses["diff"]}) | {"diverged": {"diff_lambda_08": [1, 3]}}
    lost = measure("lambda-init-0.8", ablations=diverged)
    assert (lost.n, lost.uninformative) == (0, "DIFF V1, λ_init 0.8 diverged in 1 of 3 runs")


def test_loss_of_a_part():
    parts = {"softmax": {"quarter_4": [3.0, 3.0]}, "diff": {"quarter_4": [2.5, 2.75]}}
    study = text({"softmax": [3.0, 3.0], "diff": [3.0, 3.0]}, parts=parts)
    assert measure("long-context", text=study).effect == -0.375
    records = ClaimRecords(studies={"text": with_differences(study)})
    assert loss_difference(records, "diff", "softmax", part="other") is None


def test_times_of_a_cpu_say_nothing_about_gpus(bench_result):
    def timed(cases, **options):
        result = BenchResult(runs=bench_result.runs, cases=cases)
        records = ClaimRecords(benchmarks={Path(): result})
        return time_ratio(records, "", modes=[("ops", ops.mode)], **options)

    cases = bench_result.cases
    ops = next(case for case in cases if case.suite == "ops")
    on_cpu = timed(cases)
    assert (on_cpu.effect, on_cpu.low, on_cpu.high) == (1.07, 1.07, 1.07)
    assert (on_cpu.count, on_cpu.note) == ("2 cases", "cpu float32")
    assert on_cpu.uninformative == "timed on a CPU; the claim is about GPUs"
    assert timed(cases, on_gpu=False).uninformative == ""
    assert timed([replace(case, device="cuda") for case in cases]).uninformative == ""
    fastest = min(row.ratio_t.median for row in ops.rows if row.role == "DIFF" and row.ratio_t)
    assert timed([ops], against="T").effect == fastest != timed([ops]).effect
    single = timed([ops])
    assert (single.low, single.high) == pytest.approx((0.9 * 1.07, 1.1 * 1.07))  # of its rounds
    no_contender = replace(ops, device="cuda", rows=[row for row in ops.rows if row.role != "DIFF"])
    assert timed([*cases, no_contender], on_gpu=False).note == "cpu float32"  # where it was timed
    model = next(case for case in cases if case.suite == "models")
    records = ClaimRecords(benchmarks={Path(): bench_result})
    # The made-up row has no ratio to the same technique.
    assert time_ratio(records, "diff", modes=[("models", model.mode)]) is None


def commit(root, kind, results):
    write_record(root / "published" / kind / "study.json", {"kind": kind})
    write_record(root / "published" / kind / "results.json", results)


def test_a_whole_folder_of_records(tmp_path):
    commit(tmp_path, "text", with_differences(text(ALONE)))
    diverged = text({"diff": ALONE["diff"]}) | {"diverged": {"diff_lambda_08": [1, 3]}}
    commit(tmp_path, "ablations", with_differences(diverged))
    shown = claims_table(tmp_path)
    assert shown.caption == f"2 claims of {len(CLAIMS)} measured here."
    loss, lost = ([cell.text for cell in row] for row in shown.rows)
    effect = ["−0.100", "−0.125 to −0.075", "3 seeds"]
    assert loss[0] == "loss"
    assert loss[3:] == [*effect, NO_CONTROL, "published/text"]
    assert (shown.rows[0][5].note, lost[0]) == ("one learning rate", "lambda-init-0.8")
    assert lost[3:6] == ["—", "—", "0 seeds"]


def test_an_old_or_damaged_study_is_refused(tmp_path):
    commit(tmp_path, "ablations", fewer := text(LEAD | {"diff_no_norm": LEAD["diff"][:2]}))
    # A control may have the first seeds alone.
    assert read_claim_records(tmp_path).studies == {"ablations": fewer}
    commit(tmp_path, "text", text(LEAD) | {"schema": 1})
    with pytest.raises(CheckpointError, match=r"published/text/results\.json: "):
        read_claim_records(tmp_path)


def test_the_page_of_a_study_shows_those_of_the_committed_records_if_asked(make_study):
    assert checkout_root() == ROOT
    study = make_study(num_steps=10)
    page = build_report(study, claims=ROOT).read_text(encoding="utf-8")
    assert '<a href="#claims">What do the papers claim?</a>' in page
    for row in measured_claims(read_claim_records(ROOT)):
        assert (f">{row.claim.id}</th>" in page) == (row.measured is not None), row.claim.id
    assert '<section id="claims">' not in build_report(study).read_text(encoding="utf-8")
