"""The numbers of the findings are those of the committed records."""

import math
import re
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.records.evaluations import EvalResult
from diffattn.lab.records.stored_runs import results_folder, runs_folder
from diffattn.lab.report.page.run_tables import median_cost
from diffattn.lab.report.page.wording import number, p_value, type_name
from diffattn.lab.report.study.files import at_equal_time, read_study, train_losses
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.stats.paired import paired_difference
from diffattn.lab.studies.text.results import loss_curve, phase_step
from published_pages import FINDINGS, ROOT, estimate, prose, results_of, run_losses, signed
from record_files import the_row

PAGE = (FINDINGS / "results.md").read_text(encoding="utf-8")
PROSE = " ".join(PAGE.split())
TABLES = dict(re.findall(r"<!-- (published/\w+) -->\n((?:\|.*\n)+)", PAGE))
LADDER = runs_folder(ROOT / "published" / "ladder")
OUTLIERS = ("largest attention logit", "largest hidden state")
CLAIMS_AND_RESULTS = ("docs/findings/claims.md", "docs/findings/results.md")


def difference(results, variant, baseline, metric="validation_loss"):
    pair = {"variant": variant, "baseline": baseline}
    return the_row(results["differences"], **pair, at="best", metric=metric)


def test_every_row_of_losses():
    assert {Path(record).name for record in TABLES} == {"text", "ablations", "rank"}
    for record, table in TABLES.items():
        for line in table.splitlines()[2:]:
            model, baseline, mean, interval = map(str.strip, line.strip("|").split("|"))
            pair = (re.search(r"`(\w+)`", cell).group(1) for cell in (model, baseline))
            row = difference(results_of(Path(record).name), *pair)
            assert estimate(row) == f"{mean} ({interval})", line


TYPES = {"diff": "V1", "diff_v2": "V2", "shared_diff": "Shared DIFF"}


@pytest.fixture(scope="module")
def study():
    return read_study(ROOT / "published" / "text")


def percent(share):
    return f"{100 * share:.0f}"


@pytest.mark.parametrize("page", ["README.md", *CLAIMS_AND_RESULTS])
@pytest.mark.parametrize("name", TYPES)
def test_the_endpoints(page, name, study):
    text = prose(page)
    tests = {
        entry["measure"]: entry
        for entry in results_of("text")["endpoints"]
        if entry["variant"] == name
    }
    printed = [
        estimate(mean_interval(tests["loss"]["values"])),
        estimate(mean_interval(tests["tokens"]["values"]), percent).replace(" (", " % ("),
        estimate(at_equal_time(study, name)),
    ]
    if page.endswith("results.md"):
        losses = (train_losses(study, side) for side in (name, "softmax"))
        printed.append(estimate(paired_difference(*losses)))
    for value in printed:
        # A row of the claims leaves Shared DIFF's time out.
        assert value in text or (page.endswith("claims.md") and name == "shared_diff")
    adjusted = [p_value(tests[measure]["p_holm"]) for measure in ("loss", "tokens")]
    if page.endswith("claims.md"):
        loss, tokens = text.partition("two measures): by loss ")[2].partition("; by tokens ")[::2]
        assert f"{TYPES[name]} {adjusted[0]}" in loss
        assert f"{TYPES[name]} {adjusted[1]}" in tokens.partition(". ")[0]
    if page.endswith("results.md"):
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| {type_name(name)} | "))
        assert [cell.strip() for cell in row.split("|")][3:6:2] == adjusted


def test_processor_time(study):
    """Medians over seeds, as the loss at equal time and the page's table take them."""
    seconds = {}
    for name in (*TYPES, "softmax"):
        runs = results_of("text")["variants"][name]["at"]["best"]["runs"]
        of_type = [run for run in study.runs if run.name in runs]
        seconds[name] = median_cost(of_type, "cpu_seconds")
    more = {name: f"{100 * (seconds[name] / seconds['softmax'] - 1):.0f} %" for name in TYPES}
    v2, shared, v1 = more["diff_v2"], more["shared_diff"], more["diff"]
    assert f"V2 takes {v2} more, Shared DIFF {shared}, V1 {v1}." in PROSE
    for page in ("README.md", "docs/findings/claims.md"):
        assert f"{v2} more processor time" in prose(page)


def test_losses_at_the_speeds_of_an_h100(study):
    """Of the runs on a CPU, as if a model had trained at that share of the Transformer's speed."""

    def change(curves, others, speed):
        points = (np.transpose(curve) for curve in curves)
        losses = [np.interp(speed * steps[-1], steps, values) for steps, values in points]
        return paired_difference(losses, [curve[-1][1] for curve in others])

    speeds = {"diff": 0.83, "diff_v2": 0.82}
    v1, v2 = (f"{100 * speed:.0f}" for speed in speeds.values())
    claims = prose("docs/findings/claims.md")
    assert f"our V1 trains at 0.{v1} of the Transformer's speed, V2 at 0.{v2}" in claims
    curves = {
        name: [run.series("validation_loss") for run in study.runs_of(name)]
        for name in (*speeds, "softmax")
    }
    v1, v2 = (
        estimate(change(curves[name], curves["softmax"], speed)) for name, speed in speeds.items()
    )
    assert f"on an H100 V2 would stand at {v2}, V1 at {v1}; with four times" in claims
    longer = [
        [loss_curve(read_jsonl(LADDER / f"{name}-seed{i}" / "metrics.jsonl")) for i in range(3)]
        for name in ("diff_v2", "softmax")
    ]
    assert f"four times the tokens V2 at {signed(change(*longer, 0.82).mean, 2)}" in claims


@pytest.mark.parametrize("page", CLAIMS_AND_RESULTS)
def test_the_lead_among_runs_that_begin_to_copy_at_the_same_step(page):
    leads = {entry["variant"]: entry for entry in results_of("text")["adjusted_leads"]}
    v2, gate = (leads[name] for name in ("diff_v2", "diff_v2_gate"))
    text = prose(page)
    assert f"{-v2['mean']:.3f} ({-v2['high']:.3f} to {-v2['low']:.3f})" in text
    assert f"by {-gate['mean']:.3f} ({-gate['high']:.3f} to {-gate['low']:.3f})" in text


def test_shared_diff_at_the_rate_of_the_transformer():
    at = results_of("text")["variants"]["shared_diff"]["at"]
    worse = paired_difference(
        *(at[rate]["validation_loss"]["values"] for rate in ("common", "best"))
    )
    assert all(estimate(worse, "{:.3f}".format) in prose(page) for page in CLAIMS_AND_RESULTS)


def test_where_the_lead_lies():
    for metric in ("repeated_bigram", "first_occurrence"):
        row = difference(results_of("text"), "diff_v2", "softmax", metric)
        assert estimate(row).removesuffix(")") in PROSE


GATE, SUM = "diff_v2_gate", "diff_v2_added_matched"


@pytest.mark.parametrize(
    ("baseline", "variant"), [("softmax", GATE), (GATE, SUM), ("softmax", "diff_v2_constant")]
)
def test_the_parts_of_the_lead(baseline, variant):
    """The gate, a sum of two maps beside it, second queries alone."""
    runs = runs_folder(ROOT / "published" / "text")
    files = (sorted(runs.glob(f"{name}-seed?/results.json")) for name in (variant, baseline))
    losses = ([read_json(path)["validation_loss"] for path in paths] for paths in files)
    pairs = zip(*losses, strict=False)
    shown = estimate(paired_difference(*map(list, zip(*pairs, strict=True)))).removesuffix(")")
    assert shown in PROSE or shown.replace(" (", ", ") in PROSE


@pytest.mark.parametrize("page", CLAIMS_AND_RESULTS)
def test_the_sign_alone(page):
    for metric in ("validation_loss", "first_occurrence"):
        row = difference(results_of("text"), SUM, "diff_v2", metric)
        low, mean, high = sorted(abs(row[key]) for key in ("mean", "low", "high"))
        shown = estimate({"mean": mean, "low": low, "high": high}, "{:.3f}".format)
        assert shown in prose(page)


def test_factors_of_gradients():
    recorded = {
        (f"{row['mean']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}")
        for row in results_of("gradient_flow")["judgements"]
        if row.get("mean") is not None
    }
    section = PAGE.partition("## Gradient flow")[2].partition("\n## ")[0]
    table = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    printed = {(row[2].strip(), row[3].strip()) for row in table[2:]}
    assert len(printed) > 4
    assert printed <= recorded


def test_shares_of_parameters():
    axis = results_of("scaling")["axes"]["parameters"]
    for row in axis["equivalents"]:
        if (row["baseline"], row["point"]) != ("softmax", axis["read_at"]):
            continue
        if row["type"] in ("diff_v2", "softmax_minus_mean"):
            assert f"({percent(row['low'])} to {percent(row['high'])})" in PROSE
            assert f"{percent(row['ratio'])} %" in PROSE


@pytest.fixture(scope="module")
def outliers():
    """Kind of model and metric to the values by seed."""
    values = {}
    stored = results_folder(ROOT / "published" / "evaluations" / "outliers")
    for path in sorted(stored.glob("*/outliers")):
        result = EvalResult.read(path)
        kind, _, seed = result.model["label"].partition("-seed")
        for metric in result.metrics:
            if metric.headline:
                values.setdefault((kind, metric.name), {})[seed] = metric.value
    return values


@pytest.mark.parametrize(
    "kind", ["diff", "diff_v2", "shared_diff", "softmax_half", "softmax_minus_mean"]
)
def test_a_row_of_outliers(kind, outliers):
    cells = [type_name(kind)]
    for metric in OUTLIERS:
        values, baseline = outliers[kind, metric], outliers["softmax", metric]
        assert values.keys() == baseline.keys() == set("01234")
        ratio = mean_interval([math.log(values[seed] / baseline[seed]) for seed in values])
        shown = estimate(ratio, lambda x: number(math.exp(x), 2))
        cells += shown.removesuffix(")").split(" (")
    assert "| " + " | ".join(cells) + " |" in PAGE


def test_the_extreme_logits(outliers):
    by_seed = (seeds for (_, metric), seeds in outliers.items() if metric == OUTLIERS[0])
    logits = [round(value) for seeds in by_seed for value in seeds.values()]
    (extremes,) = re.findall(r"The largest logits are (\d+) to (\d+),", PAGE)
    assert tuple(map(int, extremes)) == (min(logits), max(logits))


MEASURES = ("attention_size_answer", "found_6_x2", "bits_3", "unsupported_6_x1")
MEASURES_OF_SHOTS = ("shots_23", "order_changes")


def test_differences_of_lookup():
    for measure, digits, names in (
        ("found_6_x2", 3, ("diff", "diff_uniform")),
        ("attention_size_answer", 2, ("diff_v2", "shared_diff", "diff")),
    ):
        for name in names:
            rows = results_of("practical")["tasks"]["lookup"]["differences"]
            row = the_row(rows, type=name, measure=measure)
            shown = estimate(row, partial(signed, digits=digits)).replace("+", "").removesuffix(")")
            mean, interval = shown.split(" (")
            assert re.search(rf"{mean} (more [a-z ]*)?\({interval}", PROSE), (name, measure)


@pytest.mark.parametrize("name", ["softmax", "diff", "diff_v2", "shared_diff", "diff_uniform"])
def test_a_row_of_lookup_and_shots(name):
    tasks = results_of("practical")["tasks"]
    means = [
        tasks[task]["members"][name]["measures"][measure]["mean"]
        for task, measures in (("lookup", MEASURES), ("many_shot", MEASURES_OF_SHOTS))
        for measure in measures
    ]
    assert " | " + " | ".join(f"{mean:.3f}" for mean in means) + " |" in PAGE


def test_the_ladder():
    """Losses by seed: V2's lead over its gate and over the Transformer, all in bfloat16."""
    ends_of = partial(run_losses, "ladder")

    def lead(name, other, part=None):
        return [b - a for a, b in zip(ends_of(name, part), ends_of(other, part), strict=True)]

    def shown(value, digits=2):
        return f"{value:.{digits}f}".replace("-", "−")

    def by_seed(values, digits=3):
        *first, last = (shown(x, digits) for x in values)
        return f"{', '.join(first)} and {last}"

    v2, gate, softmax = "diff_v2", "diff_v2_gate", "softmax"
    to_gate, to_softmax, of_gate = lead(v2, gate), lead(v2, softmax), lead(gate, softmax)
    claims, page = map(prose, CLAIMS_AND_RESULTS)
    readme, log = prose("README.md"), prose("docs/log.md")
    leads = f"{by_seed(to_softmax)}; the gate leads it by {by_seed(of_gate)}"
    assert f"V2 leads the Transformer by {leads} (three seeds; only of the third did all" in claims
    assert f"V2 ends {by_seed(to_gate)} below the gate" in claims
    assert f"V2 leads softmax by {by_seed(to_softmax)}, at a quarter of the schedule by" in log
    assert f"the gate leads it by {by_seed(of_gate)}." in log
    whole, part = (
        estimate(paired_difference(ends_of(softmax), ends_of(x)), shown) for x in (v2, gate)
    )
    assert f"of other text, V2 leads by {whole}, its gate by {part}; three seeds" in readme
    assert f"of other text, {whole} is left (three seeds)" in claims
    copied = [fmean(lead(v2, x, "repeated_bigram")) for x in (gate, softmax)]
    assert f"V2 leads its gate by {copied[0]:.3f} there" in page
    assert f"ends {fmean(to_softmax):.3f} below the Transformer, not 0.216" in page
    assert f"on repeated bigrams {copied[1]:.3f}, not 0.694 (three seeds)" in page
    for name, words in ((softmax, "Softmax ends at"), (v2, "V2 at"), (gate, "the gate at")):
        assert f"{words} {by_seed(ends_of(name), 4)}" in log
    others = runs_folder(ROOT / "published" / "ladder" / "float32")
    old = [read_json(others / f"softmax-seed{i}" / "results.json") for i in (0, 1)]
    was = [x["validation_loss"] for x in old]
    assert f"softmax ends at {by_seed(was, 4)}, and V2 leads by" in log
    above = by_seed([x - y for x, y in zip(was, ends_of(v2), strict=False)])
    assert f"V2 leads by {above}" in log
    ran_on = [
        read_json(at / f"{name}-seed{i}" / "run.json")["hardware"]["processor"].split()[0]
        for at, name in ((others, softmax), (LADDER, v2), (LADDER, gate), (LADDER, softmax))
        for i in range(2 if at is others else 3)
    ]
    assert ran_on == ["AMD"] * 2 + ["AMD", "AMD", "Intel(R)"] * 2 + ["Intel(R)"] * 3
    early = [
        dict(loss_curve(read_jsonl(LADDER / f"{name}-seed{i}" / "metrics.jsonl")))[4_000]
        for name in (softmax, v2)
        for i in range(3)
    ]
    then = by_seed([early[i] - early[3 + i] for i in range(3)], 2)
    assert f"at a quarter of the schedule by {then};" in log


def test_the_place_of_the_second_map():
    """Differences that no study tests, computed from the losses by seed."""
    variants = results_of("shuffled")["variants"]
    losses = {x: v["at"]["best"]["validation_loss"]["values"] for x, v in variants.items()}

    def ends_of(name, other):
        row = paired_difference(losses[name], losses[other])
        return f"{abs(row.mean):.3f}", *(f"{abs(x):.3f}" for x in (row.low, row.high))

    shuffled, softmax, gate = "diff_v2_shuffled", "softmax", "diff_v2_gate"
    place, low, high = ends_of(shuffled, "diff_v2")
    lead, high_lead, low_lead = ends_of(shuffled, softmax)
    assert (
        f"V2 ends {place} ({low} to {high}) higher and still {lead} ({low_lead} to {high_lead}) "
        "below the Transformer" in prose("docs/findings/claims.md")
    )
    log = prose("docs/log.md")
    assert f"V2 minus shuffled −{place} (−{high} to −{low})" in log
    assert "Shuffled minus gate −{} (−{} to −{})".format(*ends_of(shuffled, gate)) in log
    assert "the gate ends {} ({} to {}) above softmax".format(*ends_of(gate, softmax)) in log


def test_the_place_of_the_second_map_at_study_scale():
    """In float32; the gate and the Transformer are those of the study, in bfloat16."""
    losses = partial(run_losses, "shuffled_study")
    shuffled, exact = losses("diff_v2_shuffled"), losses("diff_v2")
    log, claims = prose("docs/log.md"), prose("docs/findings/claims.md")
    variants = results_of("text")["variants"]
    v2, gate, softmax = (
        variants[name]["at"]["best"]["validation_loss"]["values"]
        for name in ("diff_v2", "diff_v2_gate", "softmax")
    )
    minus = [estimate(paired_difference(shuffled, values)) for values in (v2, gate, softmax)]
    printed = "minus V2 in bfloat16 {}, gate {}, softmax {}".format(*minus)
    assert f"{', '.join(f'{x:.3f}' for x in shuffled)}; {printed}." in log
    place, gain = paired_difference(shuffled, exact), paired_difference(softmax, shuffled)
    ends, apart = ", ".join(f"{loss:.3f}" for loss in exact), max(map(abs, np.subtract(exact, v2)))
    assert f"V2 in float32 ends at {ends}, up to {apart:.3f} from" in log
    new = paired_difference(
        *(losses(x, "first_occurrence") for x in ("diff_v2_shuffled", "diff_v2"))
    )
    assert place.low < 0 < new.low
    told = f"minus V2 {estimate(place)}, the place is not shown to count"
    assert f"{told}, but on new tokens {estimate(new)}." in log
    above, new, higher = (
        estimate(row, lambda x: signed(x).lstrip("+"))
        for row in (place, new, paired_difference(exact, v2))
    )
    assert f"At 4.8M it ends {above} above V2 (five seeds, both in float32)" in claims
    assert f"and {estimate(gain, '{:.3f}'.format)} below the Transformer (five seeds" in claims
    assert f"on new tokens it is worth {new}." in claims
    assert f"V2 itself ends {higher} higher in float32, partly on another" in claims
    assert f"random keys {gain.mean:.2f}." in prose("README.md")


def test_when_v2_with_shuffled_keys_begins_to_copy():
    text = results_of("text")
    done = runs_folder(ROOT / "published" / "shuffled_study").glob("diff_v2*-seed*")
    curves = [loss_curve(read_jsonl(run / "metrics.jsonl"), "repeated_bigram") for run in done]
    assert len(curves) == 10  # V2 with shuffled keys and V2, five seeds each
    both = [phase_step(curve, text["phase"]["threshold"]) for curve in curves]
    softmax = text["variants"]["softmax"]["at"]["best"]["phase_steps"]
    both, softmax = (f"{min(steps):,} to {max(steps):,}" for steps in (both, softmax))
    claims = prose("docs/findings/claims.md")
    assert f"both begin to copy at {both}, the Transformer in bfloat16 at {softmax}." in claims
