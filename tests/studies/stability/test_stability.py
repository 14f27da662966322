"""The stability study: its runs, its numbers by hand, and two processes that give the same."""

import itertools
import json
import math
from dataclasses import replace
from functools import partial

import pytest

from diffattn.errors import ConfigError
from diffattn.models.attention_types import ATTENTION_TYPES
from diffattn.recipes.stability import STABILITY
from diffattn.records.io import read_json
from diffattn.studies.stability.reproduce import reproduce_stability, stability_study
from diffattn.studies.stability.summary import AGAINST_FLOOR, METRICS, PAIRS, stability_results


@pytest.mark.parametrize("scale", STABILITY)
def test_every_scale_builds_and_can_be_written_down(scale):
    config = stability_study(scale)
    resolved = config.resolved()
    assert json.loads(json.dumps(resolved, allow_nan=False)) == resolved
    members = config.members()
    names = [member.config.name for member in members]
    assert len(set(names)) == len(names)
    assert len(names) == len(config.types) * len(config.learning_rates) * len(config.seeds)
    steps = [math.log(b / a) for a, b in itertools.pairwise(config.learning_rates)]
    assert steps == pytest.approx([steps[0]] * len(steps))  # as the sensitivity wants them
    for member in members:
        train = member.config.train
        assert member.config.model.embedding_multiplier == member.config.model.hidden_size**0.5
        assert member.config.model.depth_scaled_init
        assert train.seed == train.data_seed
        assert train.final_learning_rate == pytest.approx(train.learning_rate / 10)
        assert member.config.resolved()["divergence"] == "recorded"
    doc = STABILITY[scale].__doc__
    assert all(word in doc for word in ("Command:", "Hardware:", "Duration:", "Expected:"))


def test_the_study_spans_a_factor_of_64_with_three_seeds_or_more():
    config = stability_study("study")
    assert max(config.learning_rates) / min(config.learning_rates) == pytest.approx(64)
    assert len(config.seeds) >= 3
    assert config.types == (*ATTENTION_TYPES, "diff_no_norm", "diff_v2_norm", "none")
    norms = {m.config.name.split("-lr")[0]: m.config.model.head_norm for m in config.members()}
    assert (norms["diff"], norms["diff_no_norm"]) == (None, False)  # None: as the paper has it
    assert (norms["diff_v2"], norms["diff_v2_norm"]) == (None, True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["train.log_every=2"], "train.log_every must be 1"),
        (["train.num_steps=32", "train.warmup_steps=2"], "train.num_steps must be more than 32"),
        (["model.attention_type=diff"], "base must be a softmax model"),
    ],
)
def test_settings_that_cannot_be_counted_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        stability_study("smoke", settings=settings)


def test_seeds_must_differ():
    with pytest.raises(ConfigError, match="seeds must be distinct"):
        stability_study("smoke", seeds=(1, 1))


def made_up(config, spikes, diverged=()):
    """Results and rows; ``spikes`` gives a run's number of gradient spikes by type, rate, seed."""
    results, rows = {}, {}
    for member in config.members():
        run, train = member.config.name, member.config.train
        key = (member.config.model.attention_type, train.learning_rate, train.seed)
        made = 36 if run in diverged else train.num_steps
        norms = [0.5] * made
        for step in range(spikes(*key)):
            norms[33 + step] = 3.0
        rows[run] = [
            {"step": i + 1, "train_loss": 3.0, "gradient_norm": norm}
            for i, norm in enumerate(norms)
        ]
        loss = None if run in diverged else 3.0 + train.seed
        results[run] = {"run": run, "validation_loss": loss}
    return stability_results(config, results, rows)


def test_shares_differences_and_holm_by_hand():
    config = stability_study("smoke", seeds=(0, 1, 2))  # 40 steps, 8 of them judged
    found = made_up(config, lambda kind, rate, seed: 1 + seed if (kind, rate) == ("diff", 2) else 0)
    at = {e["learning_rate"]: e for e in found["types"]["diff"]["rates"]}
    assert at[2.0]["gradient_spike_share"]["values"] == [1 / 8, 2 / 8, 3 / 8]
    assert at[2.0]["clipped_share"]["values"] == [1 / 40, 2 / 40, 3 / 40]
    assert at[0.002]["gradient_spike_share"]["values"] == [0, 0, 0]
    assert at[2.0]["loss"]["values"] == [3.0, 4.0, 5.0]
    assert found["types"]["diff"]["sensitivity"]["values"] == [0, 0, 0]
    entries = {
        (e["type"], e["baseline"], e["metric"], e["learning_rate"]): e for e in found["differences"]
    }
    assert len(entries) == len(found["differences"])
    assert len(entries) == len(PAIRS) * (len(METRICS) * (2 + 1) + 1) + len(AGAINST_FLOOR) * 2
    entry = entries["diff_v2", "diff", "gradient_spike_share", 2.0]
    assert entry["values"] == [-1 / 8, -2 / 8, -3 / 8]
    t = 0.25 / (0.125 / math.sqrt(3))
    p = 1 - t / math.sqrt(t * t + 2)  # Student's t with two degrees of freedom
    assert entry["p_value"] == pytest.approx(p)
    # One of 6 pairs and 2 rates; diff and softmax give the same p, all others 1.
    assert entry["p_holm"] == pytest.approx(min(1, 12 * p))
    overall = entries["diff_v2", "diff", "gradient_spike_share", None]
    assert overall["values"] == [-1 / 16, -2 / 16, -3 / 16]


def test_a_run_that_diverged_counts_as_the_worst():
    config = stability_study("smoke", seeds=(0, 1))
    found = made_up(config, lambda *key: 0, diverged=("diff-lr2-seed1",))
    at = found["types"]["diff"]["rates"][1]
    assert at["diverged"] == [False, True]
    assert at["diverged_steps"] == [None, 36]
    assert at["loss"]["values"] == [3.0, math.log(512)]
    assert at["loss_spike_share"]["values"] == [0.0, 4 / 8]
    assert at["clipped_share"]["values"] == [0.0, 4 / 40]


def test_one_seed_has_no_p_values():
    found = made_up(stability_study("smoke"), lambda *key: 0)
    assert {(e["p_value"], e["p_holm"], e["low"]) for e in found["differences"]} == {
        (None, None, None)
    }
    assert "With one seed there is no interval" in found["statement"]


@pytest.mark.scheduled
def test_two_processes_and_one_give_the_same_results(corpus, tmp_path, monkeypatch):
    """Divergence passes through a worker as a result, and runs repeat bit by bit."""
    plan = replace(STABILITY["smoke"](), learning_rates=(2e-3, 1e30))
    monkeypatch.setitem(STABILITY, "smoke", lambda: plan)
    settings = (f"data.source={corpus}", "data.vocab_size=300", "data.validation_fraction=0.2")
    config = stability_study("smoke", settings=settings)
    make = partial(reproduce_stability, config, on_message=lambda line: None)
    made = []
    for workers in (1, 2):
        out = tmp_path / str(workers)
        page = make(out, workers=workers)
        assert page == out / "report.html"
        made.append(read_json(out / "results.json"))
    assert made[0] == made[1]
    before = page.read_bytes()
    assert make(out, workers=2).read_bytes() == before
    for of_type in made[0]["types"].values():
        usual, absurd = of_type["rates"]
        assert usual["diverged"] == [False]
        assert absurd["diverged_steps"][0] is not None
        assert absurd["loss"]["values"] == [math.log(300)]


def attended(losses):
    """Results where each named model ends at its loss, or at those of its seeds; others at 3."""
    config = stability_study("smoke", seeds=(0, 1, 2))
    results, rows = {}, {}
    for member in config.members():
        run, train = member.config.name, member.config.train
        name, noise = run.split("-lr")[0], 0.01 * (train.seed % 2) * len(run)
        loss = losses.get((name, train.learning_rate), 3.0)
        loss = (loss[train.seed] if isinstance(loss, tuple) else loss) + train.seed + noise
        results[run] = {"run": run, "validation_loss": loss}
        rows[run] = [{"step": i + 1, "train_loss": 3.0, "gradient_norm": 0.5} for i in range(40)]
    return stability_results(config, results, rows)


def over_rates(found, pair):
    (entry,) = (
        e
        for e in found["differences"]
        if (e["type"], e["baseline"]) == pair and e["metric"] == "loss" and not e["learning_rate"]
    )
    return entry


def test_means_are_over_the_rates_at_which_both_models_attend():
    found = attended({("diff", 0.002): 1.0, ("diff_v2", 0.002): 1.5, ("diff", 2.0): 1.0})
    assert found["attending"]["diff"] == [0.002, 2.0]
    assert found["attending"]["diff_v2"] == [0.002]
    assert found["attending"]["softmax"] == []
    entry = over_rates(found, ("diff_v2", "diff"))
    assert (entry["rates"], entry["informative"]) == ([0.002], True)
    assert entry["mean"] == pytest.approx(0.5, abs=0.1)
    entry = over_rates(found, ("diff_v2", "softmax"))
    assert (entry["rates"], entry["informative"]) == ([0.002, 2.0], False)
    sentence = found["verdict"]["sentence"]
    assert "DIFF V1 (rates 0.002 and 2)" in sentence
    assert "Not at any rate: Transformer (softmax)" in sentence


def test_a_model_attends_where_its_whole_interval_is_below_no_attention():
    found = attended({("diff", 0.002): 1.0, ("diff_v2", 0.002): (1.0, 2.0, 5.0)})
    (noisy,) = (
        e for e in found["differences"]
        if (e["type"], e["baseline"], e["learning_rate"]) == ("diff_v2", "none", 0.002)
    )  # fmt: skip
    assert noisy["mean"] < -0.3 < 0 < noisy["high"]
    assert found["attending"]["diff"] == [0.002]
    assert found["attending"]["diff_v2"] == []


def test_a_study_that_no_attention_wins_says_nothing_of_attention():
    found = attended({("none", 0.002): 1.0, ("none", 2.0): 1.0})
    assert not any(found["attending"].values())
    assert found["verdict"]["informative"] is False
    assert found["verdict"]["sentence"].startswith("Uninformative: at no learning rate")
