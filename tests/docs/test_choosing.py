"""The numbers of the page on choosing a variant are those of the records."""

import re
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from diffattn.files.io import read_json
from diffattn.lab.stats.paired import paired_difference

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "published" / "text" / "runs"
PAGE = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")


def cells(start):
    """What follows the question in its row: where, V1, V2, Shared DIFF."""
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in row.split("|")[2:-1]]


def test_parameters_for_the_same_loss():
    of = read_json(ROOT / "published" / "scaling" / "results.json")["axes"]["parameters"]
    shares = {
        row["type"]: f"{100 * row['ratio']:.0f} %" if row["high"] < 1 else "not shown"
        for row in of["equivalents"]
        if (row["baseline"], row["point"]) == ("softmax", of["read_at"])
    }
    _, *said = cells("Fewer parameters")
    for name, cell in zip(("diff", "diff_v2", "shared_diff"), said, strict=True):
        assert cell.startswith(shares[name])


def test_steps_until_recall():
    results = read_json(ROOT / "published" / "recall" / "results.json")["tasks"]["noisy_recall"]
    steps = {name: median(of["solved_steps"]) for name, of in results["types"].items()}
    _, v1, *others = cells("Recalls among noise")
    assert f"{steps['diff']:g} steps against {steps['softmax']:g}" in v1
    sooner = [pair for pair in results["sooner"]["pairs"] if "softmax" in pair.values()]
    assert [pair["first"] for pair in sooner] == ["diff"]
    assert others == ["not shown", "not shown"]
    level = {
        test["types"][0]
        for test in results["control_tests"]
        if test["types"][1] == "diff"
        and not (test["sooner"] == "diff" and test["log_rank_holm"] < 0.05)
    }
    assert level == {"diff_uniform"}
    blind = median(results["controls"]["diff_uniform"]["solved_steps"])
    assert f"not shown sooner than with a uniform second map ({blind:g})" in v1


@pytest.mark.parametrize(
    ("question", "shape", "measured"),
    [
        ("Training speed of", "wide | 4 | 1 × 1,024 | float32", 3),
        ("Speed in training a 3B model on an H100", "3b | 28 | 1 × 4,096 | bfloat16", 2),
    ],
)
def test_training_speed(question, shape, measured):
    table = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| {re.escape(shape)} \| forward \+ backward \|.*", table, re.M)
    of_row = row.group().split("|")[6 : 8 + measured]
    softmax, _, *types = (float(cell.split("(")[0].replace(",", "")) for cell in of_row)
    shown = cells(question)[1:]
    assert [float(cell.split()[0]) for cell in shown[:measured]] == [
        pytest.approx(speed / softmax, abs=0.005) for speed in types
    ]
    assert shown[measured:] == ["not measured"] * (3 - measured)


def test_what_is_shown_of_the_loss():
    results = read_json(ROOT / "published" / "text" / "results.json")
    lower = {
        row["variant"]
        for row in results["differences"]
        if (row["baseline"], row["at"], row["metric"]) == ("softmax", "best", "validation_loss")
        and row["mean"] < 0
    }
    shown = {
        test["variant"]
        for test in results["tests"]
        if (test["baseline"], test["at"], test["shown"]) == ("softmax", "best", True)
    }
    said = dict(
        zip(("diff", "diff_v2", "shared_diff"), cells("Lower loss than softmax")[1:], strict=True)
    )
    assert {name for name, cell in said.items() if cell != "not shown"} == lower & shown & set(said)


def test_what_the_lead_is_made_of():
    """The gate, second queries beside it, and subtraction, as the page of results says."""
    said = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").replace("\n  ", " ")
    steps = ("softmax", "diff_v2_gate", "diff_v2_added", "diff_v2")
    for without, with_it in (*pairwise(steps), ("softmax", "diff_v2_constant")):
        losses = [
            [
                read_json(path)["validation_loss"]
                for path in sorted(RUNS.glob(f"{name}-seed?/results.json"))
            ]
            for name in (with_it, without)
        ]
        pairs = list(zip(*losses, strict=False))
        found = paired_difference(*map(list, zip(*pairs, strict=True)))
        mean, low, high = (
            f"{x:+.3f}".replace("-", "−") for x in (found.mean, found.low, found.high)
        )
        assert re.search(rf"{re.escape(mean)} \({re.escape(low)} to {re.escape(high)}", said) or (
            f"{mean}, {low} to {high}" in said
        ), (with_it, mean, low, high)


@pytest.mark.parametrize("page", ["docs/choosing.md", "README.md"])
def test_the_size_of_the_study(page):
    results = read_json(ROOT / "published" / "text" / "results.json")
    size = f"{results['variants']['softmax']['parameters'] / 1e6:.1f}M"
    assert set(re.findall(r"[\d.]+M(?= parameters)", (ROOT / page).read_text("utf-8"))) == {size}
