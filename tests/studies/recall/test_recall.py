"""The recall study: its runs, the rule for learning rates, what it counts, and its refusals."""

import shutil
from dataclasses import replace

import pytest

from diffattn.errors import CheckpointError, ConfigError
from diffattn.models.attention_types import ATTENTION_TYPES
from diffattn.records.io import read_json, write_json
from diffattn.records.run import RunRecord
from diffattn.stats.proportions import fisher_exact, wilson_interval
from diffattn.stats.survival import log_rank
from diffattn.studies.recall.config import RecallStudyConfig, choose_learning_rates
from diffattn.studies.recall.reproduce import recall_study, reproduce_recall
from diffattn.studies.recall.summary import recall_results, statement
from diffattn.studies.workers import run_members

SCALES = ("smoke", "laptop", "study")


@pytest.fixture(scope="module")
def heard():
    return {"lines": [], "events": []}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory, heard):
    """A whole smoke study; read-only."""
    out = tmp_path_factory.mktemp("recall") / "smoke"
    path = reproduce_recall(
        "smoke", out=out, workers=1, on_message=heard["lines"].append,
        on_progress=lambda name, event: heard["events"].append((name, event)),
    )  # fmt: skip
    assert path == out / "report.html"
    return out


@pytest.fixture
def two_rates():
    """Two rates, two sweep seeds and three trials, of the smallest models."""
    return replace(
        recall_study("smoke"), learning_rates=(1e-3, 1e-2), sweep_seeds=(8, 9), seeds=(0, 1, 2)
    )


def outcome(run, solved_step=None, loss=1.0, steps=4):
    """What ``results.json`` of a run may hold."""
    entry = {
        "run": run,
        "solved": solved_step is not None,
        "solved_step": solved_step,
        "steps": steps,
        "validation_loss": loss,
        "test_accuracy": 0.5 if solved_step is None else 1.0,
        "test_by_query": [0.5, 0.25],
    }
    depths = {"0.0": 0.5, "1.0": 0.25} if run.startswith("multi_needle") else None
    return entry | ({} if depths is None else {"test_by_depth": depths})


def test_the_smoke_study_is_whole(smoke, heard):
    config = recall_study("smoke")
    results = read_json(smoke / "results.json")
    members = config.sweep() + config.trials(choose_learning_rates(config, read_runs(smoke)))
    assert len(members) == config.num_runs() == 16
    assert recall_results(config, read_runs(smoke)) == results
    assert set(results["tasks"]) == {"noisy_recall", "multi_needle"}
    assert [list(task["types"]) for task in results["tasks"].values()] == 2 * [
        list(ATTENTION_TYPES)
    ]
    for member in members:
        record = RunRecord.read(smoke / "runs" / member.config.name)
        assert record.config == member.config.resolved()
    assert set(read_json(smoke / "costs.json")["runs"]) == {m.config.name for m in members}
    assert heard["lines"] == [
        "learning rates: training 8 of 8 models",
        "trials: training 8 of 8 models",
    ]
    done = [name for name, event in heard["events"] if event.get("done")]
    assert done == [member.config.name for member in members]


def read_runs(folder):
    return {path.parent.name: read_json(path) for path in folder.glob("runs/*/results.json")}


def test_the_same_call_again_makes_what_is_missing(smoke, tmp_path):
    copied = shutil.copytree(smoke, tmp_path / "copy")
    shutil.rmtree(copied / "runs" / "multi_needle-diff-seed0")
    (copied / "results.json").unlink()
    lines = []
    reproduce_recall("smoke", out=copied, workers=1, on_message=lines.append)
    assert lines == ["trials: training 1 of 8 models"]
    assert (copied / "results.json").read_bytes() == (smoke / "results.json").read_bytes()
    reproduce_recall("smoke", out=copied, workers=1, on_message=lines.append)
    assert len(lines) == 1


@pytest.mark.scheduled  # two more processes that load torch; the study itself is made by workers
def test_a_worker_makes_the_same_run(smoke, tmp_path):
    member = recall_study("smoke").sweep()[1]
    events = []
    run_members(
        [member], None, tmp_path, workers=1, on_progress=lambda name, event: events.append(event)
    )
    for name in ("metrics.jsonl", "results.json"):
        expected = (smoke / "runs" / member.config.name / name).read_bytes()
        assert (tmp_path / member.config.name / name).read_bytes() == expected
    assert events[-1] == {"done": True}
    assert events[-2]["step"] == 4


@pytest.mark.parametrize("scale", SCALES)
def test_members_are_matched_and_paired(scale):
    config = recall_study(scale)
    rates = {(t.task_name, name): 1e-3 for t in config.tasks for name in config.types}
    trials = config.trials(rates)
    assert config.num_runs() == len(config.sweep()) + len(trials)
    names = [member.config.name for member in config.sweep() + trials]
    assert len(set(names)) == len(names)
    for member in trials:
        model, train = member.config.model, member.config.train
        # One channel of one layer's feed-forward is the finest step that a match can take.
        assert abs(member.facts["parameter_difference"]) <= 3 * model.hidden_size * 2
        assert train.seed == train.data_seed
        assert train.final_learning_rate == pytest.approx(train.learning_rate / 10)
    assert {m.config.train.seed for m in config.sweep()}.isdisjoint(config.seeds)
    groups = [trials[i : i + len(config.types)] for i in range(0, len(trials), len(config.types))]
    for group in groups:
        assert [m.config.model.attention_type for m in group] == list(config.types)
        assert len({(m.config.task_name, m.config.train.data_seed) for m in group}) == 1


def test_the_study_has_the_heads_of_the_papers():
    config = recall_study("study")
    heads = {m.config.model.attention_type: m.config.model.num_heads for m in config.sweep()}
    assert heads == {"softmax": 16, "diff": 8, "diff_v2": 16, "shared_diff": 8}
    assert len(config.seeds) >= 3
    assert "fewer than the papers'" not in statement(config)
    assert "2 DIFF heads are fewer than the papers' 8" in statement(recall_study("smoke"))


def choices(config, *changes):
    """The rates chosen if all sweep runs are alike but for some."""
    results = {m.config.name: outcome(m.config.name) for m in config.sweep()}
    for name, *values in changes:
        assert name in results
        results[name] = outcome(name, *values)
    return choose_learning_rates(config, results)


def test_the_rule_for_learning_rates(two_rates):
    diff, task = ("noisy_recall", "diff"), "noisy_recall-diff"
    assert set(choices(two_rates).values()) == {1e-3}  # all alike: the first
    # More solved seeds win over fewer steps.
    chosen = choices(
        two_rates,
        (f"{task}-lr0.001-seed8", 2), (f"{task}-lr0.01-seed8", 4), (f"{task}-lr0.01-seed9", 4),
    )  # fmt: skip
    assert chosen.pop(diff) == 1e-2
    assert set(chosen.values()) == {1e-3}
    # Then fewer steps win, and only then the loss.
    faster = choices(two_rates, (f"{task}-lr0.001-seed8", 4, 0.1), (f"{task}-lr0.01-seed8", 2, 0.9))
    assert faster[diff] == 1e-2
    assert choices(two_rates, (f"{task}-lr0.01-seed9", None, 0.9))[diff] == 1e-2


def test_what_is_counted(two_rates):
    results = {m.config.name: outcome(m.config.name) for m in two_rates.sweep()}
    rates = choose_learning_rates(two_rates, results)
    for member in two_rates.trials(rates):
        name, seed = member.config.name, member.config.train.seed
        is_diff = member.config.model.attention_type == "diff"
        results[name] = outcome(name, 2 if is_diff and seed < 2 else None)
    task = recall_results(two_rates, results)["tasks"]["multi_needle"]
    diff = task["types"]["diff"]
    share = wilson_interval(2, 3)
    assert (diff["solved"], diff["trials"]) == (2, 3)
    assert diff["solved_share"]["low"] == share.low
    assert diff["solved_steps"] == [2, 2, None]
    assert diff["test_accuracy"] == [1.0, 1.0, 0.5]
    assert diff["test_by_query"] == [0.5, 0.25]
    assert diff["test_by_depth"] == {"0.0": 0.5, "1.0": 0.25}
    assert diff["runs"] == [f"multi_needle-diff-seed{seed}" for seed in range(3)]
    assert len(diff["sweep"]) == 4
    tests = {tuple(test["types"]): test for test in task["tests"]}
    assert len(tests) == 6
    assert tests["softmax", "diff"]["fisher_exact"] == fisher_exact(0, 3, 2, 3)
    assert tests["softmax", "diff"]["log_rank"] == log_rank([None] * 3, [2, 2, None], 4)
    assert tests["softmax", "diff_v2"]["fisher_exact"] == 1
    assert task["ceilings"] == {"values": 0.25, "pairs": 0.5, "elimination": 0.75}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": (0, 0)}, r"seeds must be distinct, one or more, got \[0, 0\]"),
        ({"learning_rates": ()}, "learning_rates must be distinct, one or more"),
        ({"seeds": (0, 100)}, r"seeds must not be those of the sweep, got \[100\]"),
        ({"match": "size"}, "match must be in"),
    ],
)
def test_contradicting_studies(changes, message):
    with pytest.raises(ConfigError, match=message):
        replace(recall_study("smoke"), **changes)


def test_tasks_must_start_from_softmax():
    config = recall_study("smoke")
    twin = config.sweep()[1].config
    with pytest.raises(ConfigError, match="must hold softmax models"):
        RecallStudyConfig(scale="x", tasks=(twin,), learning_rates=(1e-3,))


def test_refusals(smoke, tmp_path):
    with pytest.raises(ConfigError, match="scale must be in"):
        reproduce_recall("tiny", out=tmp_path / "new")
    with pytest.raises(ConfigError, match="workers must be 1 or more, got 0"):
        reproduce_recall("smoke", out=tmp_path / "new", workers=0)
    assert not (tmp_path / "new").exists()
    with pytest.raises(ConfigError, match="must hold this configuration to be continued"):
        reproduce_recall("smoke", out=smoke, seeds=(1,))
    (tmp_path / "other").mkdir()
    write_json(tmp_path / "other" / "notes.json", {})
    with pytest.raises(CheckpointError, match="must be empty or hold a study"):
        reproduce_recall("smoke", out=tmp_path / "other")
