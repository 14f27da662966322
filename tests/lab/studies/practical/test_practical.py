"""Practical studies: the runs, what counts as learned, differences, tests and divergence."""

import pytest

from diffattn.lab.catalog.recipes.practical import PRIMARY
from diffattn.lab.stats.paired import paired_difference, paired_t_test
from diffattn.lab.studies.practical import practical_results, practical_study

SEEDS = (3, 4, 5)


@pytest.fixture
def config():
    return practical_study("smoke", seeds=SEEDS)


def made_up(config):
    """V1 is 0.1 ahead in every measure but for seeds' noise; no attention knows nothing."""
    results = {}
    (wave,) = config.waves({})
    for run in wave.runs:
        name, seed = run.config.name, run.config.train.seed
        task, model, _ = name.rsplit("-", 2)
        lead = (0.1 + 0.001 * seed) * (model == "diff")
        value = 0.0 if model == "none" else 0.8 + 0.01 * seed + lead
        learned = {"lookup": ("found_4_x1",), "many_shot": ("shots_23", "vote_23")}[task]
        measures = dict.fromkeys((*PRIMARY[task], *learned), value)
        results[name] = {"run": name, "test_accuracy": value, "measures": measures}
    return results


def test_every_model_gets_every_seed_and_equal_steps_seed_by_seed(config):
    (wave,) = config.waves({})
    names = [run.config.name for run in wave.runs]
    assert len(names) == len(set(names)) == 2 * 7 * len(SEEDS)
    assert [int(name[-1]) for name in names] == sorted(int(name[-1]) for name in names)
    assert {name.split("-")[1] for name in names} == set(config.models)
    for run in wave.runs:
        assert run.config.resolved()["stops_when_solved"] is False
        name = run.config.name
        assert config.keeps_weights(name) is name.endswith(f"-seed{SEEDS[0]}")
    rates = {run.config.train.learning_rate for run in wave.runs}
    assert rates == {2e-3}


def test_differences_are_paired_and_types_alone_are_tested(config):
    runs = made_up(config)
    results = practical_results(config, runs)
    for task, measures in PRIMARY.items():
        entry = results["tasks"][task]
        assert {x["measure"] for x in entry["differences"]} == set(measures)
        assert {x["type"] for x in entry["differences"]} == set(config.models) - {"softmax"}
        (lead, *_) = (x for x in entry["differences"] if x["type"] == "diff")
        assert lead["mean"] == pytest.approx(0.104)
        values = [
            [runs[f"{task}-{name}-seed{seed}"]["measures"][next(iter(measures))] for seed in SEEDS]
            for name in ("diff", "softmax")
        ]
        assert lead["low"] == paired_difference(*values).low
        raw = paired_t_test([x - y for x, y in zip(*values, strict=True)])
        assert lead["p_value"] == raw
        # Of 18 tests six are this one; Holm multiplies the smallest by 18.
        assert raw < lead["p_holm"] <= min(1.0, 18 * raw) * (1 + 1e-9)
        untested = {x["type"] for x in entry["differences"] if x["p_value"] is None}
        assert untested == set(config.controls)


def test_learned_is_counted_and_said(config):
    runs = made_up(config)
    failed = runs["lookup-diff_v2-seed4"]
    failed["measures"] = failed["measures"] | {"found_4_x1": 0.6}  # below (1/4 + 1) / 2
    results = practical_results(config, runs)
    models = results["tasks"]["lookup"]["members"]
    assert {name: entry["learned"] for name, entry in models.items()} == {
        **dict.fromkeys(config.models, 3), "diff_v2": 2, "none": 0,
    }  # fmt: skip
    assert "Lookup: all models that attend, but DIFF V2 (2 of 3), learn it" in results["statement"]
    assert "Many-shot classification: all models that attend learn it" in results["statement"]


def test_a_diverged_run_leaves_its_model_without_measures(config):
    runs = made_up(config)
    del runs["many_shot-shared_diff-seed3"]["measures"]
    entry = practical_results(config, runs)["tasks"]["many_shot"]
    assert entry["members"]["shared_diff"]["measures"] == {}
    assert entry["members"]["shared_diff"]["learned"] == 0
    assert "shared_diff" not in {x["type"] for x in entry["differences"]}
