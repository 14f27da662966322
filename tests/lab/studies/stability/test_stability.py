"""The stability study: its runs, its numbers by hand, and two processes that give the same."""

import math

import pytest

from diffattn.lab.catalog.recipes.comparison import laptop
from diffattn.lab.studies.stability import (
    AGAINST_FLOORS,
    METRICS,
    PAIRS,
    stability_results,
    stability_study,
)
from record_files import the_row


def test_rates_follow_that_of_the_laptop_comparison():
    config, usual = stability_study("study"), laptop().config().train.learning_rate
    assert config.learning_rates == pytest.approx([usual, 1.4 * usual, 2 * usual, 4 * usual])
    halved = stability_study("study", settings=[f"train.learning_rate={usual / 2}"])
    assert halved.learning_rates == pytest.approx([rate / 2 for rate in config.learning_rates])


def test_runs_are_made_as_the_study_says():
    settings = ["windows.documents=apart", "guard.limit=3", "engine.loss_chunk_tokens=64"]
    config = stability_study("smoke", settings=settings)
    assert (config.base.windows.apart, config.base.guard.limit) == (True, 3)
    assert config.base.engine.loss_chunk_tokens == 64
    for run in config.planned_runs():
        for part in ("windows", "guard", "engine", "data"):
            assert getattr(run.config, part) == getattr(config.base, part)
        assert run.records_divergence
        assert not config.keeps_weights(run.config.name)


def made_up(config, loss_of, spikes=lambda *key: 0):
    """Results of runs whose loss, and number of gradient spikes, follow from model, rate and seed.

    A run without a loss met a number that is not finite in step 36.
    """
    results, rows = {}, {}
    for planned in config.planned_runs():
        run, train = planned.config.name, planned.config.train
        key = (run.split("-lr")[0], train.learning_rate, train.seed)
        loss = loss_of(*key)
        norms = [0.5] * (36 if loss is None else train.num_steps)
        norms[33 : 33 + spikes(*key)] = [3.0] * spikes(*key)
        logged = enumerate(norms, 1)
        rows[run] = [{"step": i, "train_loss": 3.0, "gradient_norm": norm} for i, norm in logged]
        results[run] = {"run": run, "validation_loss": loss}
    return stability_results(config, results, rows)


def attends(name, rate, seed):
    """The loss of a model that attends at every rate."""
    return 3.0 + 0.5 * seed + name.startswith("none")


def test_shares_differences_and_holm_by_hand():
    config = stability_study("smoke", seeds=(0, 1, 2))  # 40 steps, 8 of them judged
    spikes = {("diff", 2, seed): 1 + seed for seed in range(3)}
    outcome = made_up(config, attends, lambda *key: spikes.get(key, 0))
    at = {e["learning_rate"]: e for e in outcome["types"]["diff"]["rates"]}
    assert at[2.0]["gradient_spike_share"]["values"] == [1 / 8, 2 / 8, 3 / 8]
    assert at[2.0]["clipped_share"]["values"] == [1 / 40, 2 / 40, 3 / 40]
    assert at[0.002]["gradient_spike_share"]["values"] == [0, 0, 0]
    assert at[2.0]["loss"]["values"] == [3.0, 3.5, 4.0]
    assert outcome["types"]["diff"]["sensitivity"]["values"] == [0, 0, 0]
    names = ("type", "baseline", "metric", "learning_rate")
    keys = {tuple(entry[name] for name in names) for entry in outcome["differences"]}
    assert len(keys) == len(outcome["differences"])
    assert len(keys) == len(PAIRS) * (len(METRICS) * (2 + 1) + 1) + len(AGAINST_FLOORS) * 2
    entry = entry_of(outcome, ("diff_v2", "diff"), 2.0, "gradient_spike_share")
    assert entry["values"] == [-1 / 8, -2 / 8, -3 / 8]
    t = 0.25 / (0.125 / math.sqrt(3))
    p = 1 - t / math.sqrt(t * t + 2)  # Student's t with two degrees of freedom
    assert entry["p_value"] == pytest.approx(p)
    # One of 6 pairs and 2 rates; diff and softmax give the same p, all others 1.
    assert entry["p_holm"] == pytest.approx(min(1, 12 * p))
    overall = entry_of(outcome, ("diff_v2", "diff"), None, "gradient_spike_share")
    assert overall["values"] == [-1 / 16, -2 / 16, -3 / 16]


def test_a_run_that_diverged_counts_as_the_worst():
    config = stability_study("smoke", seeds=(0, 1))
    outcome = made_up(config, lambda *key: None if key == ("diff", 2, 1) else attends(*key))
    at = outcome["types"]["diff"]["rates"][1]
    assert at["diverged"] == [False, True]
    assert at["diverged_steps"] == [None, 36]
    assert at["loss"]["values"] == [3.0, math.log(512)]
    assert at["loss_spike_share"]["values"] == [0.0, 4 / 8]
    assert at["clipped_share"]["values"] == [0.0, 4 / 40]


def test_one_seed_has_no_p_values():
    outcome = made_up(stability_study("smoke"), attends)
    tested = {entry[name] for entry in outcome["differences"] for name in ("p_value", "p_holm")}
    assert tested | {entry["low"] for entry in outcome["differences"]} == {None}
    assert "With one seed there is no interval" in outcome["statement"]


def attended(losses, seeds=(0, 1, 2)):
    """Results where each named model ends at its loss, or at those of its seeds; others at 3.

    ``None`` is a run that met a number that is not finite.
    """

    def loss_of(name, rate, seed):
        loss = losses.get((name, rate), 3.0)
        loss = loss[seed] if isinstance(loss, tuple) else loss
        noise = 0.1 * seed + 0.01 * (seed % 2) * len(f"{name}-lr{rate:g}-seed{seed}")
        return None if loss is None else loss + noise

    return made_up(stability_study("smoke", seeds=seeds), loss_of)


def entry_of(outcome, pair, rate=None, metric="loss"):
    """The difference of a pair at a rate, or of means over rates."""
    fields = {"type": pair[0], "baseline": pair[1], "metric": metric, "learning_rate": rate}
    return the_row(outcome["differences"], **fields)


BOTH = {("diff", rate): 1.0 for rate in (0.002, 2.0)} | {("diff_v2", 2.0): 1.5}
"""V1 attends at both rates, V2 at the larger one, nobody else at any."""


def test_means_are_over_the_rates_at_which_both_models_attend():
    outcome = attended(BOTH)
    assert outcome["attending"]["diff"] == [0.002, 2.0]
    assert outcome["attending"]["diff_v2"] == [2.0]
    assert outcome["attending"]["softmax"] == []
    entry = entry_of(outcome, ("diff_v2", "diff"))
    assert (entry["rates"], entry["why"]) == ([2.0], "")
    assert entry["mean"] == pytest.approx(0.5, abs=0.1)
    entry = entry_of(outcome, ("diff_v2", "softmax"))
    assert entry["rates"] == [0.002, 2.0]
    assert "says nothing of attention" in entry["why"]
    assert outcome["verdict"]["informative"]
    assert outcome["verdict"]["sentence"].startswith("Shown to end 0.1 nats or more below")
    assert "diverged: over rate 2: DIFF V2 − DIFF V1; over all" in outcome["verdict"]["sentence"]
    # A difference that says nothing counts with 1 for its p-value, at a rate and over rates.
    silent = [e for e in outcome["differences"] if e["why"]]
    assert min(e["p_value"] for e in silent if e["learning_rate"] is None) < 0.01 / 30
    assert min(e["p_value"] for e in silent if e["learning_rate"] is not None) < 0.01 / 12
    assert {e["p_holm"] for e in silent} == {1.0}
    entry = entry_of(outcome, ("diff_v2", "diff"))  # one of 30; those that speak come first
    assert entry["p_holm"] == pytest.approx(min(1, 30 * entry["p_value"]))
    nobody = attended({("none", 0.002): 1.0, ("none", 2.0): 1.0})
    assert not any(nobody["attending"].values())
    assert nobody["verdict"]["sentence"].startswith("Uninformative: at no learning rate")


def test_the_lowest_rate_alone_says_nothing_of_large_ones():
    outcome = attended({("diff", 0.002): 1.0, ("diff_v2", 0.002): 1.5, ("diff", 2.0): 1.0})
    entry = entry_of(outcome, ("diff_v2", "diff"))
    assert entry["rates"] == [0.002]
    assert "says nothing of large rates" in entry["why"]
    assert entry["p_value"] < 0.01
    assert entry["p_holm"] == 1.0
    assert entry_of(outcome, ("diff_v2", "diff"), 0.002)["why"] == ""  # at that rate it is one
    verdict = outcome["verdict"]
    assert verdict["informative"] is False
    lowest = "at the lowest learning rate (0.002) alone, so nothing is said of large"
    assert lowest in verdict["sentence"]
    assert "over rate 0.002, the lowest alone, so saying nothing" in verdict["sentence"]


def test_a_model_attends_where_its_whole_interval_is_below_both_floors_by_a_margin():
    outcome = attended({("diff", 0.002): 1.0, ("diff_v2", 0.002): (1.0, 2.0, 5.0)})
    noisy = entry_of(outcome, ("diff_v2", "none"), 0.002)
    assert noisy["mean"] < -0.3 < 0 < noisy["high"]
    assert outcome["attending"]["diff"] == [0.002]
    assert outcome["attending"]["diff_v2"] == []
    close = attended({("diff", 2.0): 2.95})
    assert -0.1 < entry_of(close, ("diff", "none"), 2.0)["high"] < 0
    assert close["attending"]["diff"] == []
    wider = attended(BOTH | {("none_ffn", 2.0): 1.05})
    assert entry_of(wider, ("diff", "none"), 2.0)["high"] < -1
    assert wider["attending"]["diff"] == [0.002]


def test_where_a_floor_diverged_nothing_is_shown():
    """Its loss counts as that of a guess, which everything is below."""
    floor = "none_ffn"
    outcome = attended(BOTH | {(floor, 2.0): (3.0, 3.0, 3.0, 3.0, None)}, seeds=range(5))
    assert entry_of(outcome, ("diff", floor), 2.0)["high"] < -0.1
    assert outcome["attending"]["diff"] == [0.002]
    assert outcome["attending"]["diff_v2"] == []
    assert "Nothing is shown at rate 2: a run without attention" in outcome["verdict"]["sentence"]
    entry = entry_of(outcome, ("diff", floor), 2.0)
    assert "diverged" in entry["why"]
    assert entry["p_holm"] == 1.0


def test_a_model_does_not_attend_where_one_of_its_runs_diverged():
    floors = {(name, 2.0): 5.5 for name in ("none", "none_ffn")}
    outcome = attended(floors | {("diff", 2.0): (1.0, 1.0, 1.0, 1.0, None)}, seeds=range(5))
    assert entry_of(outcome, ("diff", "none"), 2.0)["high"] < -0.1
    assert outcome["attending"]["diff"] == []


def test_where_one_attends_and_the_other_diverges_they_are_compared():
    """To leave such rates out would be to leave out where a model is least stable."""
    worst = {("diff", 2.0): (1.0, 1.0, None)}
    outcome = attended(BOTH | worst)
    assert (outcome["attending"]["diff"], outcome["attending"]["diff_v2"]) == ([0.002], [2.0])
    entry = entry_of(outcome, ("diff_v2", "diff"), metric="loss_spike_share")
    assert (entry["rates"], entry["why"]) == ([2.0], "")
    assert entry["mean"] < 0  # steps that were not made count as spikes
    assert entry_of(outcome, ("diff_v2", "diff"), 2.0)["why"] == ""
    neither = attended({("diff", 0.002): 1.0} | worst)
    assert neither["attending"]["diff_v2"] == []
    assert "says nothing of attention" in entry_of(neither, ("diff_v2", "diff"))["why"]


def test_sensitivity_is_over_all_rates_so_both_models_must_attend_at_all():
    outcome = attended(BOTH)
    assert "says nothing" in entry_of(outcome, ("diff_v2", "diff"), metric="sensitivity")["why"]
    everywhere = attended(BOTH | {("diff_v2", 0.002): 1.5})
    entry = entry_of(everywhere, ("diff_v2", "diff"), metric="sensitivity")
    assert (entry["rates"], entry["why"]) == ([0.002, 2.0], "")
    never = {("diff", rate): (None, None, None) for rate in (0.002, 2.0)}
    apart = attended(never | {("diff_v2", rate): 1.5 for rate in (0.002, 2.0)})
    assert entry_of(apart, ("diff_v2", "diff"))["why"] == ""  # where one diverges they are compared
    assert "says nothing" in entry_of(apart, ("diff_v2", "diff"), metric="sensitivity")["why"]
