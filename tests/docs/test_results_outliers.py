"""The table of outliers in the results follows from its records."""

import math
import re
from pathlib import Path

import pytest

from diffattn.lab.records.evaluations import EvalResult
from diffattn.lab.report.page.wording import number, type_name
from diffattn.lab.stats.intervals import mean_interval

ROOT = Path(__file__).parents[2]
METRICS = ("largest attention logit", "largest hidden state")


def recorded():
    """Kind of model, metric and seed to the value."""
    found = {}
    for path in sorted((ROOT / "published" / "evaluations" / "outliers").glob("*/outliers")):
        result = EvalResult.read(path)
        kind, _, seed = result.model["label"].partition("-seed")
        for of in result.metrics:
            if of.headline:
                found.setdefault((kind, of.name), {})[seed] = of.value
    return found


@pytest.mark.parametrize(
    "kind", ["diff", "diff_v2", "shared_diff", "softmax_half", "softmax_minus_mean"]
)
def test_every_row_follows(kind):
    values, cells = recorded(), [type_name(kind)]
    for metric in METRICS:
        ours, theirs = values[kind, metric], values["softmax", metric]
        assert ours.keys() == theirs.keys() == set("01234")
        of = mean_interval([math.log(ours[seed] / theirs[seed]) for seed in ours])
        mean, low, high = (number(math.exp(x), 2) for x in (of.mean, of.low, of.high))
        cells += [mean, f"{low} to {high}"]
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert "| " + " | ".join(cells) + " |" in text


def test_the_extremes_that_the_text_names():
    logits = [v for (_, m), of in recorded().items() if m == METRICS[0] for v in of.values()]
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"The largest are (\d+) to (\d+):", text)
    assert tuple(map(int, found)) == (round(min(logits)), round(max(logits)))
