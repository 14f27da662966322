"""The numbers of the findings are those of the committed records."""

import math
import re
from itertools import pairwise
from pathlib import Path

import pytest

from diffattn.files.io import read_json
from diffattn.lab.records.evaluations import EvalResult
from diffattn.lab.records.stored_runs import results_folder, runs_folder
from diffattn.lab.report.page.wording import number, p_value, type_name
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.stats.paired import paired_difference

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "findings" / "results.md").read_text(encoding="utf-8")
PROSE = " ".join(PAGE.split())
TABLES = dict(re.findall(r"<!-- (published/\w+) -->\n((?:\|.*\n)+)", PAGE))
SHARES = re.compile(r"^\| [^|]+ \| (\d+) % \| (\d+) to (\d+) % \|$", re.MULTILINE)
OUTLIERS = ("largest attention logit", "largest hidden state")


def results_of(study):
    return read_json(ROOT / "published" / study / "results.json")


def signed(value):
    return f"{value:+.3f}".replace("-", "−")


def loss_rows():
    for record, text in TABLES.items():
        for line in text.splitlines()[2:]:
            yield pytest.param(Path(record).name, line, id=f"{record}: {line[2:40]}")


def difference(results, variant, baseline, metric="validation_loss"):
    (row,) = (
        row
        for row in results["differences"]
        if (row["variant"], row["baseline"]) == (variant, baseline)
        and (row["at"], row["metric"]) == ("best", metric)
    )
    return signed(row["mean"]), signed(row["low"]), signed(row["high"])


def test_every_study_of_losses_has_a_table():
    assert {Path(record).name for record in TABLES} == {"text", "ablations", "rank"}


@pytest.mark.parametrize(("study", "line"), list(loss_rows()))
def test_a_row_of_losses(study, line):
    results = results_of(study)
    model, baseline, *cells = (cell.strip() for cell in line.strip("|").split("|"))
    pair = tuple(re.search(r"`(\w+)`", cell).group(1) for cell in (model, baseline))
    mean, low, high = difference(results, *pair)
    tests = [
        test["p_holm"]
        for test in results.get("tests", results.get("rows"))
        if (test["variant"], test["baseline"], test["at"]) == (*pair, "best")
    ]
    assert cells == [mean, f"{low} to {high}", p_value(tests[0]) if tests else "—"]


@pytest.mark.parametrize("metric", ["repeated_bigram", "first_occurrence"])
def test_where_the_lead_lies(metric):
    mean, low, high = difference(results_of("text"), "diff_v2", "softmax", metric)
    assert f"{mean} ({low} to {high}" in PROSE


STEPS = ("softmax", "diff_v2_gate", "diff_v2_added", "diff_v2")


@pytest.mark.parametrize(
    ("baseline", "variant"), [*pairwise(STEPS), ("softmax", "diff_v2_constant")]
)
def test_the_parts_of_the_lead(baseline, variant):
    """The gate, second queries beside it, subtraction; second queries alone."""
    runs = runs_folder(ROOT / "published" / "text")
    losses = [
        [
            read_json(path)["validation_loss"]
            for path in sorted(runs.glob(f"{name}-seed?/results.json"))
        ]
        for name in (variant, baseline)
    ]
    pairs = zip(*losses, strict=False)
    interval = paired_difference(*map(list, zip(*pairs, strict=True)))
    mean, low, high = map(signed, (interval.mean, interval.low, interval.high))
    assert f"{mean} ({low} to {high}" in PROSE


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
    recorded = {
        tuple(f"{100 * row[key]:.0f}" for key in ("ratio", "low", "high"))
        for row in axis["equivalents"]
        if (row["baseline"], row["point"]) == ("softmax", axis["read_at"])
    }
    printed = set(SHARES.findall(PAGE))
    assert len(printed) == 5
    assert printed <= recorded


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
        mean, low, high = (number(math.exp(x), 2) for x in (ratio.mean, ratio.low, ratio.high))
        cells += [mean, f"{low} to {high}"]
    assert "| " + " | ".join(cells) + " |" in PAGE


def test_the_extreme_logits(outliers):
    logits = [
        value
        for (_, metric), by_seed in outliers.items()
        if metric == OUTLIERS[0]
        for value in by_seed.values()
    ]
    (extremes,) = re.findall(r"The largest are (\d+) to (\d+):", PAGE)
    assert tuple(map(int, extremes)) == (round(min(logits)), round(max(logits)))
