"""Numbers of a comparison against numbers by hand, and what the plain words say."""

import math
from dataclasses import replace

import pytest

from diffattn.models.attention_types import ATTENTION_TYPES
from diffattn.studies.text.reproduce import comparison
from diffattn.studies.text.summary import comparison_results, statement

LOSSES = {
    "softmax": [3.0, 3.1, 3.2],
    "diff": [2.9, 3.1, 3.1],
    "diff_v2": [3.0, 3.1, 3.2],
    "shared_diff": [3.3, 3.2, 3.4],
}
T_975_2 = 4.302652729911275  # Student's t with two degrees of freedom, 97.5 %


def results_of(seeds):
    return {
        f"{name}-seed{seed}": {"validation_loss": LOSSES[name][i]}
        for name in ATTENTION_TYPES
        for i, seed in enumerate(seeds)
    }


def test_three_seeds_by_hand():
    config = comparison("laptop", seeds=(5, 6, 7))
    summary = comparison_results(config, results_of((5, 6, 7)))
    assert (summary["schema"], summary["scale"], summary["complete"]) == (1, "laptop", True)
    assert summary["protocol"] == {"name": "matched_comparison", "version": 1}
    assert list(summary["types"]) == list(ATTENTION_TYPES)
    softmax = summary["types"]["softmax"]
    assert softmax["runs"] == ["softmax-seed5", "softmax-seed6", "softmax-seed7"]
    loss = softmax["validation_loss"]
    assert set(loss) == {"values", "mean", "low", "high", "level", "n"}
    assert loss["values"] == LOSSES["softmax"]
    half = T_975_2 * 0.1 / math.sqrt(3)  # standard deviation 0.1
    assert loss["mean"] == pytest.approx(3.1)
    assert (loss["low"], loss["high"]) == pytest.approx((3.1 - half, 3.1 + half))
    assert (loss["level"], loss["n"]) == (0.95, 3)

    differences = {entry["type"]: entry for entry in summary["differences"]}
    assert list(differences) == ["diff", "diff_v2", "shared_diff"]
    diff = differences["diff"]
    assert (diff["baseline"], diff["metric"]) == ("softmax", "validation_loss")
    assert diff["runs"] == [[f"diff-seed{s}", f"softmax-seed{s}"] for s in (5, 6, 7)]
    assert diff["values"] == pytest.approx([-0.1, 0.0, -0.1])
    mean, deviation = -0.2 / 3, math.sqrt((2 * (0.1 / 3) ** 2 + (0.2 / 3) ** 2) / 2)
    half = T_975_2 * deviation / math.sqrt(3)
    assert diff["mean"] == pytest.approx(mean)
    assert (diff["low"], diff["high"]) == pytest.approx((mean - half, mean + half))
    assert differences["diff_v2"]["values"] == [0.0, 0.0, 0.0]


def test_one_seed_has_no_interval():
    summary = comparison_results(comparison("smoke"), results_of((0,)))
    loss = summary["types"]["diff"]["validation_loss"]
    assert (loss["mean"], loss["low"], loss["high"], loss["n"]) == (2.9, None, None, 1)
    assert summary["differences"][0]["mean"] == pytest.approx(-0.1)
    assert summary["differences"][0]["low"] is None


def test_without_a_baseline_there_are_no_differences():
    config = replace(comparison("smoke"), types=("diff", "diff_v2"))
    assert comparison_results(config, results_of((0,)))["differences"] == []


def test_statement_below_the_range_names_heads_tokens_and_seeds():
    words = statement(comparison("laptop"))
    assert "below the tested range" in words
    assert "4 DIFF heads (the papers use 8 or more)" in words
    assert "307,200 training tokens per run (the papers use 10 billion or more)" in words
    assert "cannot confirm or refute" in words
    assert "3 seeds" in words
    assert "one seed" in statement(comparison("smoke"))


def test_statement_leaves_out_what_is_in_range():
    study = statement(comparison("study"))  # 8 DIFF heads, few tokens
    assert "DIFF heads" not in study
    assert "2,048,000 training tokens" in study
    words = statement(comparison("laptop", settings=["train.num_steps=3000000"]))
    assert "4 DIFF heads" in words
    assert "training tokens per run" not in words


def test_statement_in_range():
    settings = ["train.num_steps=3000000"]
    words = statement(comparison("study", settings=settings))
    assert "below" not in words
    assert words.startswith("Heads and tokens lie in the range the papers test.")
    assert "3 seeds" in words
