"""The recall study: its runs, the rule for learning rates, what it counts, and its refusals."""

import shutil
from dataclasses import replace

import pytest

from diffattn.files.io import read_json, write_json
from diffattn.lab.catalog.models import TYPES
from diffattn.lab.records.run import RunRecord
from diffattn.lab.report.sections.recall import read_recall_study
from diffattn.lab.stats.survival import log_rank
from diffattn.lab.studies import reproduce as driver
from diffattn.lab.studies.recall.config import recall_study
from diffattn.lab.studies.recall.summary import recall_results
from diffattn.lab.studies.reproduce import reproduce
from diffattn.lab.studies.workers import train_runs


def outcome(run, solved_step=None, loss=1.0):
    """Numbers are made up."""
    values = {"run": run, "solved": solved_step is not None, "solved_step": solved_step, "steps": 4}
    values |= {"validation_loss": loss, "test_accuracy": 0.5 if solved_step is None else 1.0}
    return values | {"test_by_query": [0.5, 0.25], "test_sequences": 16, "largest_write": 0.5}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A whole smoke study; read-only."""
    out = tmp_path_factory.mktemp("recall") / "smoke"
    reproduce("smoke", kind="recall", out=out, workers=1, on_message=[].append)
    return out


@pytest.fixture
def two_rates():
    """Two rates, two sweep seeds and three trials, of the smallest models."""
    settings = {"learning_rates": (1e-3, 1e-2), "sweep_seeds": (8, 9), "seeds": (0, 1, 2)}
    return replace(recall_study("smoke"), **settings)


def rates_of(config, results):
    """The chosen rates."""
    return {group: choice.rate for group, choice in config.choices(results).items()}


def test_the_smoke_study_is_whole(smoke):
    config = recall_study("smoke")
    results = read_json(smoke / "results.json")
    planned = config.trials(rates_of(config, {}))  # one rate: nothing to choose
    assert config.missing_tries({}) == []
    assert len(planned) == config.num_runs() == 6
    runs = {path.parent.name: read_json(path) for path in smoke.glob("runs/*/results.json")}
    assert recall_results(config, runs) == results
    assert set(results["tasks"]) == {"noisy_recall"}
    for task in results["tasks"].values():
        assert list(task["types"]) == list(TYPES)
        assert list(task["controls"]) == ["none", "diff_no_norm"]
        assert task["uninformative"] == "no run of any type was solved in the steps given."
    for run in planned:
        record = RunRecord.read(smoke / "runs" / run.config.name)
        assert record.config == run.config.resolved()
    assert set(read_json(smoke / "costs.json")["runs"]) == {m.config.name for m in planned}
    assert read_recall_study(smoke).gaps == ()
    assert "all at one learning rate" in (smoke / "report.html").read_text(encoding="utf-8")


def test_the_same_call_again_makes_what_is_missing(smoke, tmp_path):
    copied = shutil.copytree(smoke, tmp_path / "copy")
    shutil.rmtree(copied / "runs" / "noisy_recall-diff-seed0")
    (copied / "results.json").unlink()
    lines = []
    reproduce("smoke", kind="recall", out=copied, workers=1, on_message=lines.append)
    assert lines == ["trials: training 1 of 6 models"]
    assert (copied / "results.json").read_bytes() == (smoke / "results.json").read_bytes()
    reproduce("smoke", kind="recall", out=copied, workers=1, on_message=lines.append)
    assert len(lines) == 1


@pytest.mark.scheduled  # two more processes that load torch; the study itself is made by workers
def test_a_worker_makes_the_same_run(smoke, tmp_path):
    config = recall_study("smoke")
    run = config.trials(rates_of(config, {}))[1]
    events = []
    train_runs(
        [run], None, tmp_path, workers=1, on_progress=lambda name, event: events.append(event)
    )
    for name in ("metrics.jsonl", "results.json"):
        expected = (smoke / "runs" / run.config.name / name).read_bytes()
        assert (tmp_path / run.config.name / name).read_bytes() == expected
    assert events[-1] == {"done": True}
    assert events[-2]["step"] == 4


@pytest.mark.parametrize("scale", ["smoke", "laptop", "study"])
def test_models_are_matched_and_paired(scale):
    config = recall_study(scale)
    rates = {(t.task_name, name): 1e-3 for t in config.tasks for name in config.swept}
    trials = config.trials(rates)
    swept = config.missing_tries({})
    assert config.num_runs() == len(swept) + len(trials)
    names = [run.config.name for run in swept + trials]
    assert len(set(names)) == len(names)
    for run in trials:
        model, train = run.config.model, run.config.train
        # One channel of one layer's feed-forward is the finest step that a match can take.
        if "none-" not in run.config.name:  # its parameters are gone
            assert abs(run.facts["parameter_difference"]) <= 3 * model.hidden_size * 2
        assert train.seed == train.data_seed
        assert train.final_learning_rate == pytest.approx(train.learning_rate / 10)
    assert {m.config.train.seed for m in swept}.isdisjoint(config.seeds)
    kinds, first = [*config.types, *config.controls], config.seeds[0]
    for i in range(len(config.tasks)):  # of the first seed
        group = trials[i * len(kinds) : (i + 1) * len(kinds)]
        task = group[0].config.task_name
        assert [m.config.name for m in group] == [f"{task}-{kind}-seed{first}" for kind in kinds]
        assert len({m.config.train.data_seed for m in group}) == 1


def test_what_is_counted(two_rates):
    results = {}
    while wanted := two_rates.missing_tries(results):
        results |= {m.config.name: outcome(m.config.name) for m in wanted}
    rates = rates_of(two_rates, results)
    for run in two_rates.trials(rates):
        name, seed = run.config.name, run.config.train.seed
        is_diff = run.config.model.attention_type == "diff"
        results[name] = outcome(name, 2 if is_diff and seed < 2 else None)
    task = recall_results(two_rates, results)["tasks"]["noisy_recall"]
    diff = task["types"]["diff"]
    assert (diff["solved"], diff["trials"]) == (2, 3)
    assert (diff["solved_steps"], diff["median_step"]) == ([2, 2, None], 2)
    assert task["types"]["softmax"]["median_step"] is None
    assert diff["test_accuracy"] == [1.0, 1.0, 0.5]
    assert diff["test_by_query"] == [0.5, 0.25]
    assert diff["runs"] == [f"noisy_recall-diff-seed{seed}" for seed in range(3)]
    assert len(diff["sweep"]) == 2 * (2 + 3)  # alike: the lowest is best, and below it again
    assert (diff["learning_rate"], diff["inside"]) == (1e-3 / 8, False)
    bare = task["controls"]["diff_no_norm"]
    assert (bare["like"], bare["inside"], len(bare["sweep"])) == ("diff_no_norm", False, 10)
    assert bare["runs"] == [f"noisy_recall-diff_no_norm-seed{seed}" for seed in range(3)]
    blind = task["controls"]["none"]
    assert (blind["like"], blind["trials"], "sweep" in blind) == ("softmax", 1, False)
    differences = {(row["variant"], row["baseline"]): row for row in task["differences"]}
    pairs = [(name, "softmax") for name in ("diff", "diff_v2", "shared_diff", "diff_no_norm")]
    assert list(differences) == [*pairs, ("diff_no_norm", "diff")]
    lead = differences["diff", "softmax"]
    assert (lead["values"], lead["mean"], lead["low"]) == ([-4, -4, 0], -4, None)
    assert lead["p"] == log_rank([None] * 3, [2, 2, None], 4)
    assert task["ceilings"] == {"values": 0.25, "pairs": 0.5, "elimination": 0.5}


# The rule for learning rates, and sweeps that extend themselves.

DIFF = ("noisy_recall", "diff")


@pytest.fixture
def sweep():
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
        for run in wanted:
            name, train = run.config.name, run.config.train
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


def test_more_solved_seeds_then_fewer_steps_then_the_loss(sweep):
    solved = of_rates({2e-3: both(solved_step=4, loss=0.9)}) | {(1e-3, 8): {"solved_step": 1}}
    assert swept(sweep, solved)[0].rate == 2e-3
    sooner = of_rates({2e-3: both(solved_step=2, loss=0.9), 1e-3: both(solved_step=4)})
    assert swept(sweep, sooner)[0].rate == 2e-3
    assert swept(sweep, {(2e-3, 9): {"loss": 0.9}})[0].rate == 2e-3
    diverged = of_rates({1e-3: both(loss=None), 4e-3: both(loss=None)})
    assert swept(sweep, diverged)[0].rate == 2e-3


def test_a_best_rate_at_the_edge_extends_the_sweep_until_it_is_inside(sweep):
    choice, results = swept(sweep, of_rates({4e-3: both(loss=0.5), 8e-3: both(loss=0.1)}))
    assert (choice.rate, choice.inside) == (8e-3, True)
    assert choice.tried == (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
    assert len(results) == 2 * (3 + 5)  # softmax was inside from the start
    low, _ = swept(sweep, of_rates({1e-3: both(loss=0.1)}))
    assert (low.rate, low.inside, low.tried) == (1e-3, True, (5e-4, 1e-3, 2e-3, 4e-3))


def test_a_control_that_attends_is_swept_by_the_same_rule(sweep):
    config = replace(sweep, controls=("none", "softmax_norm"))
    results = {}
    while wanted := config.missing_tries(results):
        for run in wanted:
            name, rate = run.config.name, run.config.train.learning_rate
            best = {"softmax": 2e-3, "diff": 2e-3, "softmax_norm": 8e-3}[name.split("-")[1]]
            results[name] = outcome(name, loss=abs(rate - best))
    measured = config.choices(results)
    assert {name for _, name in measured} == {"softmax", "diff", "softmax_norm"}
    own = measured["noisy_recall", "softmax_norm"]
    assert (own.rate, own.inside, own.tried[-1]) == (8e-3, True, 16e-3)
    groups = config.groups({group: choice.rate for group, choice in measured.items()})
    rates = {name: of[0].config.train.learning_rate for (_, name), of in groups.items()}
    assert rates == {"softmax": 2e-3, "diff": 2e-3, "none": 2e-3, "softmax_norm": 8e-3}


def test_a_single_rate_is_no_choice_and_one_at_the_edge_need_not_be_extended(sweep):
    config = replace(sweep, learning_rates=(3e-3,))
    assert config.missing_tries({}) == []
    assert config.choices({})[DIFF].inside is None
    fixed, _ = swept(replace(sweep, extensions=0), of_rates({4e-3: both(loss=0.5)}))
    assert (fixed.rate, fixed.inside) == (4e-3, False)


def test_reproduce_runs_wave_by_wave_and_then_the_trials(sweep, tmp_path, monkeypatch):
    """Training is replaced; V1 is best at its highest rate."""
    made = []

    def train(planned, data, folder, *, on_progress):
        for run in planned:
            name = run.config.name
            made.append(name)
            rate = run.config.train.learning_rate
            results = outcome(name, loss=1 / rate if "-diff-" in name else abs(rate - 2e-3))
            (folder / name).mkdir(parents=True)
            for file, value in (("results.json", results), ("costs.json", {})):
                write_json(folder / name / file, value)

    monkeypatch.setattr(driver.processes, "run_here", train)
    monkeypatch.setattr(driver, "build_study_page", lambda folder: folder)
    lines, totals = [], []

    def make():
        hear = {"on_progress": lambda name, event: totals.append(event["total"])}
        driver.run_study(sweep, tmp_path, workers=1, on_message=lines.append, **hear)

    make()
    steps = sweep.tasks[0].train.num_steps
    assert totals == [steps * (runs + 3) for runs in (12, 14, 16, 18)]
    assert lines == [
        "learning rates: training 12 of 12 models",
        *["learning rates: training 2 of 2 models"] * 3,
        "trials: training 3 of 3 models",
    ]
    diff = read_json(tmp_path / "results.json")["tasks"]["noisy_recall"]["types"]["diff"]
    assert (diff["learning_rate"], diff["inside"]) == (32e-3, False)
    assert [run["learning_rate"] for run in diff["sweep"]] == 2 * [1e-3 * 2**i for i in range(6)]
    assert made[-3:] == [f"noisy_recall-{name}-seed0" for name in ("softmax", "diff", "none")]
    before = len(made)
    make()
    assert len(made) == before
