"""A recall study of made-up numbers, for its page."""

from diffattn.lab.studies.recall.summary import step_differences
from record_files import write_record, write_run

TYPES = ("softmax", "diff")
TASK = {"name": "noisy_recall", "num_pairs": 2, "noise_ratio": 0.5, "num_queries": 2}
TASK |= {"replacement": True}
OTHER = {"name": "other", "num_pairs": 2}
CEILINGS = {"values": 0.125, "pairs": 0.5, "elimination": 0.5}
CONTROL = "none"
WHAT = "No attention"


def write_trial(folder, name, task, kind, seed, solved_step):
    """The results of a run that it writes."""
    model = {"attention_type": kind, "num_heads": 8, "head_dim": 8, "num_hidden_layers": 2}
    model |= {"hidden_size": 64, "intermediate_size": 64}
    train = {"num_steps": 200, "batch_tokens": 640, "seq_len": 10}
    steps = range(0, (200 if solved_step is None else solved_step + 50) + 1, 50)
    rows = []
    for step in steps:
        accuracy = 0.5 if solved_step is None or step < solved_step else 1.0
        rows.append({"step": step, "accuracy": accuracy, "by_query": [accuracy, accuracy]})
        rows.append({"step": step, "train_loss": 1.0})
    result = {"solved": solved_step is not None, "solved_step": solved_step, "steps": steps[-1]}
    result |= {"test_accuracy": 0.998 if result["solved"] else 0.51, "validation_loss": 0.7}
    result, _ = write_run(
        folder / "runs" / name, {"model": model, "train": train, "task": {"name": task}}, seed,
        result, rows=rows,
        model={"parameters": 1000, "parameter_difference": 6, "train_flops_per_token": 6000},
        cost={"tokens_per_second": 1e4, "peak_bytes": 2**29, "wall_seconds": 12.0},
    )  # fmt: skip
    return result


def write_recall_study(folder):
    """Two tasks, two types, a control, two trials; DIFF V1 solved noisy recall once."""
    tasks = {"noisy_recall": TASK, "other": OTHER}
    info = {"schema": 1, "kind": "recall", "created": "2001-02-03T04:05:06+00:00"}
    info |= {"scale": "study", "types": list(TYPES), "seeds": [0, 1], "sweep_seeds": [100]}
    info |= {"learning_rates": [0.001, 0.003], "match": "params", "config_hash": "0123"}
    info |= {"controls": {CONTROL: {"like": "softmax"}}, "control_seeds": 1}
    train = {"num_steps": 200, "batch_tokens": 640, "seq_len": 10}
    shape = {"num_hidden_layers": 2, "hidden_size": 64}
    info["tasks"] = {
        name: {"model": shape, "train": train, "task": task} for name, task in tasks.items()
    }
    write_record(folder / "study.json", info)
    results = {"schema": 2, "kind": "recall", "scale": "study", "complete": True}
    results |= {"protocol": {"name": "recall_study", "version": 6}}
    results |= {"statement": "Made-up <i>statement</i>.", "tasks": {}}
    for task in tasks:
        types = {}
        for kind in TYPES:
            swept = []
            # DIFF V1's sweep was extended.
            for rate in (0.001, 0.003) if kind == "softmax" else (0.001, 0.003, 0.006):
                name = f"{task}-{kind}-lr{rate:g}-seed100"
                swept_run = write_trial(folder, name, task, kind, 100, None)
                swept.append(swept_run | {"learning_rate": rate})
            trials = []
            for seed in (0, 1):
                solved = 100 if (task, kind, seed) == ("noisy_recall", "diff", 1) else None
                name = f"{task}-{kind}-seed{seed}"
                trials.append(write_trial(folder, name, task, kind, seed, solved))
            types[kind] = summary(task, trials) | {"sweep": swept, "inside": kind == "diff"}
        blind = write_trial(folder, f"{task}-{CONTROL}-seed0", task, "none", 0, None)
        controls = {CONTROL: summary(task, [blind]) | {"like": "softmax"}}
        leak = {"limit": 0.1875, "highest": 0.1255, "leaks": False}
        entry = {"num_steps": 200, "ceilings": CEILINGS, "types": types, "controls": controls}
        results["tasks"][task] = entry | {"leak": leak, "uninformative": ""}
    for task, differences in step_differences(results["tasks"]).items():
        results["tasks"][task]["differences"] = differences
    write_record(folder / "results.json", results)


def summary(task, trials):
    count = sum(run["solved"] for run in trials)
    entry = {
        "learning_rate": 0.003,
        "parameter_difference": -1234,
        "runs": [run["run"] for run in trials],
        "trials": len(trials),
        "solved": count,
        "median_step": None if count < len(trials) else 150,
        "test_by_query": [0.75, 0.25],
        "largest_write": 0.8765,
    }
    for key, source in (("solved_steps", "solved_step"), ("steps", "steps"),
                        ("test_accuracy", "test_accuracy")):  # fmt: skip
        entry[key] = [run[source] for run in trials]
    return entry
