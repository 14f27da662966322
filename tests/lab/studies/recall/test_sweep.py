"""The rule for learning rates, and sweeps that extend themselves."""

from dataclasses import replace

import pytest
from recall_outcomes import outcome

from diffattn.files.io import read_json, write_json
from diffattn.lab.studies import run
from diffattn.lab.studies.recall.config import recall_study
from diffattn.lab.studies.reproduce import judge

DIFF = ("noisy_recall", "diff")


@pytest.fixture
def config():
    """Three rates, two sweep seeds, one task, two types and no attention, the smallest models."""
    smoke = recall_study("smoke")
    return replace(
        smoke,
        tasks=smoke.tasks[:1],
        types=("softmax", "diff"),
        sweep_seeds=(8, 9),
        learning_rates=(1e-3, 2e-3, 4e-3),
        controls=("none",),
    )


def swept(config, outcomes=None):
    """V1's choice after a whole sweep, and all results; softmax is best in the middle.

    ``outcomes``: by rate and seed, where V1's runs are not all alike.
    """
    results = {}
    while wanted := config.missing_tries(results):
        for member in wanted:
            name, train = member.config.name, member.config.train
            is_middle = "softmax" in name and train.learning_rate == 2e-3
            changed = (outcomes or {}).get((train.learning_rate, train.seed), {})
            changed = changed if "diff" in name else {"loss": 0.5 if is_middle else 1.0}
            results[name] = outcome(name, **changed)
    return config.choices(results)[DIFF], results


def both(**changes):
    """The same of both seeds."""
    return {8: changes, 9: changes}


def of_rates(changes):
    return {(rate, seed): value for rate, seeds in changes.items() for seed, value in seeds.items()}


def test_more_solved_seeds_then_fewer_steps_then_the_loss(config):
    solved = of_rates({2e-3: both(solved_step=4, loss=0.9)}) | {(1e-3, 8): {"solved_step": 1}}
    assert swept(config, solved)[0].rate == 2e-3
    sooner = of_rates({2e-3: both(solved_step=2, loss=0.9), 1e-3: both(solved_step=4)})
    assert swept(config, sooner)[0].rate == 2e-3
    assert swept(config, {(2e-3, 9): {"loss": 0.9}})[0].rate == 2e-3
    diverged = of_rates({1e-3: both(loss=None), 4e-3: both(loss=None)})
    assert swept(config, diverged)[0].rate == 2e-3


def test_inside_is_recorded_and_nothing_more_is_run(config):
    choice, results = swept(config, of_rates({2e-3: both(loss=0.1)}))
    assert (choice.inside, choice.tried) == (True, (1e-3, 2e-3, 4e-3))
    assert len(results) == 2 * 3 * 2
    assert "noisy_recall-diff-lr0.004-seed9" in results


def test_a_best_rate_at_the_edge_extends_the_sweep_until_it_is_inside(config):
    choice, results = swept(config, of_rates({4e-3: both(loss=0.5), 8e-3: both(loss=0.1)}))
    assert (choice.rate, choice.inside) == (8e-3, True)
    assert choice.tried == (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
    assert len(results) == 2 * (3 + 5)  # softmax was inside from the start
    low, _ = swept(config, of_rates({1e-3: both(loss=0.1)}))
    assert (low.rate, low.inside, low.tried) == (1e-3, True, (5e-4, 1e-3, 2e-3, 4e-3))


def test_three_extensions_are_the_most(config):
    rising = {4e-3 * 2**i: both(loss=0.5 / 2**i) for i in range(5)}
    choice, _ = swept(config, of_rates(rising))
    assert (choice.rate, choice.inside) == (32e-3, False)
    assert choice.tried[-1] == 32e-3
    fixed, _ = swept(replace(config, extensions=0), of_rates(rising))
    assert (fixed.rate, fixed.inside) == (4e-3, False)


def test_a_control_that_attends_is_swept_by_the_same_rule(config):
    config = replace(config, controls=("none", "softmax_norm"))
    results = {}
    while wanted := config.missing_tries(results):
        for member in wanted:
            name, rate = member.config.name, member.config.train.learning_rate
            best = {"softmax": 2e-3, "diff": 2e-3, "softmax_norm": 8e-3}[name.split("-")[1]]
            results[name] = outcome(name, loss=abs(rate - best))
    measured = config.choices(results)
    assert {name for _, name in measured} == {"softmax", "diff", "softmax_norm"}
    own = measured["noisy_recall", "softmax_norm"]
    assert (own.rate, own.inside, own.tried[-1]) == (8e-3, True, 16e-3)
    groups = config.groups({group: choice.rate for group, choice in measured.items()})
    rates = {name: of[0].config.train.learning_rate for (_, name), of in groups.items()}
    assert rates == {"softmax": 2e-3, "diff": 2e-3, "none": 2e-3, "softmax_norm": 8e-3}


def test_a_single_rate_is_no_choice(config):
    config = replace(config, learning_rates=(3e-3,))
    assert config.missing_tries({}) == []
    assert config.choices({})[DIFF].inside is None


def test_reproduce_runs_wave_by_wave_and_then_the_trials(config, tmp_path, monkeypatch):
    """Training is replaced; V1 is best at its highest rate."""
    made = []

    def train(members, data, folder, *, on_progress):
        for member in members:
            name = member.config.name
            made.append(name)
            rate = member.config.train.learning_rate
            results = outcome(name, loss=1 / rate if "-diff-" in name else abs(rate - 2e-3))
            (folder / name).mkdir(parents=True)
            for file, value in (("results.json", results), ("costs.json", {})):
                write_json(folder / name / file, value)

    monkeypatch.setattr(run.processes, "run_here", train)
    monkeypatch.setattr(run, "build_study_page", lambda folder: folder)
    lines, totals = [], []

    def make():
        return run.run_study(
            config,
            tmp_path,
            judge,
            workers=1,
            on_message=lines.append,
            on_progress=lambda name, event: totals.append(event["total"]),
        )

    make()
    steps = config.tasks[0].train.num_steps
    assert totals == [steps * (runs + 3) for runs in (12, 14, 16, 18)]
    assert lines == [
        "learning rates: training 12 of 12 models",
        *["learning rates: training 2 of 2 models"] * 3,
        "trials: training 3 of 3 models",
    ]
    diff = read_json(tmp_path / "results.json")["tasks"]["noisy_recall"]["types"]["diff"]
    assert (diff["learning_rate"], diff["inside"]) == (32e-3, False)
    assert [run["learning_rate"] for run in diff["sweep"]] == [
        rate for _ in (8, 9) for rate in (1e-3, 2e-3, 4e-3, 8e-3, 16e-3, 32e-3)
    ]
    assert made[-3:] == [f"noisy_recall-{name}-seed0" for name in ("softmax", "diff", "none")]
    before = len(made)
    make()
    assert len(made) == before
