"""The report of a recall study, from a made-up folder."""

import json
import re
import shutil
from dataclasses import asdict
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from diffattn.errors import CheckpointError
from diffattn.records.run import RunRecord
from diffattn.report.build import build_report, markdown_results
from record_files import read_record, replace_in_record, write_finished, write_record

TYPES = ("softmax", "diff")
TASK = {"name": "noisy_recall", "num_pairs": 2, "noise_ratio": 0.5, "num_queries": 2}
TASK |= {"replacement": True}
NEEDLE = {"name": "multi_needle", "num_pairs": 2, "num_queries": 2, "context_len": 8}
CEILINGS = {"values": 0.125, "pairs": 0.5, "elimination": 0.5}
CONTROL = "none"
WHAT = "No attention"


def write_run(folder, name, task, kind, seed, solved_step):
    model = {"attention_type": kind, "num_heads": 8, "head_dim": 8, "num_hidden_layers": 2}
    model |= {"hidden_size": 64, "intermediate_size": 64}
    train = {"num_steps": 200, "batch_tokens": 640, "seq_len": 10}
    record = RunRecord(
        name=name,
        config={"model": model, "train": train, "task": {"name": task}},
        seed=seed,
        model={"parameters": 1000, "parameter_difference": 6, "train_flops_per_token": 6000},
        created="2001-02-03T04:05:07+00:00",
        commit="c0ffee" * 6 + "c0ff",
        dirty=False,
        versions={"python": "3.11.7"},
        hardware={"processor": "Made-up <b>processor</b>"},
    )
    run = folder / "runs" / name
    write_record(run / "run.json", asdict(record))
    steps = range(0, (200 if solved_step is None else solved_step + 50) + 1, 50)
    rows = []
    for step in steps:
        accuracy = 0.5 if solved_step is None or step < solved_step else 1.0
        rows.append({"step": step, "accuracy": accuracy, "by_query": [accuracy, accuracy]})
        rows.append({"step": step, "train_loss": 1.0})
    accuracy = 0.51 if solved_step is None else 0.998
    result = {"schema": 1, "run": name, "solved": solved_step is not None, "steps": steps[-1]}
    result |= {"solved_step": solved_step, "test_accuracy": accuracy, "validation_loss": 0.7}
    write_finished(run, result, rows)
    costs = {"tokens_per_second": 1e4, "peak_bytes": 2**29, "wall_seconds": 12.0}
    write_record(run / "costs.json", {"schema": 1, "run": name, **costs})
    return result


@pytest.fixture
def study(tmp_path):
    """Two tasks, two types, two trials; DIFF V1 solved noisy recall once. Numbers are made up."""
    folder = tmp_path / "study"
    tasks = {"noisy_recall": TASK, "multi_needle": NEEDLE}
    info = {"schema": 1, "kind": "recall", "created": "2001-02-03T04:05:06+00:00"}
    info |= {"scale": "study", "types": list(TYPES), "seeds": [0, 1], "sweep_seeds": [100]}
    info |= {"learning_rates": [0.001, 0.003], "match": "params", "config_hash": "0123"}
    info |= {"controls": {CONTROL: {}}, "control_seeds": 1}
    train = {"num_steps": 200, "batch_tokens": 640, "seq_len": 10}
    shape = {"num_hidden_layers": 2, "hidden_size": 64}
    info["tasks"] = {
        name: {"model": shape, "train": train, "task": task} for name, task in tasks.items()
    }
    write_record(folder / "study.json", info)
    results = {"schema": 1, "kind": "recall", "scale": "study", "complete": True}
    results |= {"protocol": {"name": "recall_study", "version": 2}}
    results |= {"statement": "Made-up <i>statement</i>.", "tasks": {}}
    for task in tasks:
        types = {}
        for kind in TYPES:
            swept = []
            # DIFF V1's sweep was extended.
            for rate in (0.001, 0.003) if kind == "softmax" else (0.001, 0.003, 0.006):
                name = f"{task}-{kind}-lr{rate:g}-seed100"
                swept_run = write_run(folder, name, task, kind, 100, None)
                swept.append(swept_run | {"learning_rate": rate})
            trials = []
            for seed in (0, 1):
                solved = 100 if (task, kind, seed) == ("noisy_recall", "diff", 1) else None
                trials.append(
                    write_run(folder, f"{task}-{kind}-seed{seed}", task, kind, seed, solved)
                )
            types[kind] = summary(task, trials) | {"sweep": swept, "inside": kind == "diff"}
        blind = write_run(folder, f"{task}-{CONTROL}-seed0", task, "none", 0, None)
        controls = {CONTROL: summary(task, [blind]) | {"like": "softmax"}}
        p_values = {"fisher_exact": 0.4321, "fisher_exact_holm": 0.8642}
        p_values |= {"log_rank": 0.0654, "log_rank_holm": 0.1308}
        results["tasks"][task] = {
            "ceilings": CEILINGS,
            "types": types,
            "controls": controls,
            "tests": [{"types": list(TYPES), **p_values}],
            "control_tests": [{"types": [CONTROL, "softmax"], **p_values}],
            "leak": {"limit": 0.1875, "highest": 0.1255, "leaks": False},
            "can": {"verdict": "inconclusive", "sentence": "made-up shares."},
            "sooner": {"verdict": "inconclusive", "sentence": "made-up steps."},
        }
    write_record(folder / "results.json", results)
    return folder


def summary(task, trials):
    """Of a type or a control."""
    count = sum(run["solved"] for run in trials)
    entry = {
        "learning_rate": 0.003,
        "parameter_difference": -1234,
        "runs": [run["run"] for run in trials],
        "trials": len(trials),
        "solved": count,
        "solved_share": {"mean": count / 2, "low": 0.09, "high": 0.91, "level": 0.95},
        "test_by_query": [0.75, 0.25],
        "largest_write": 0.8765,
    }
    for key, source in (("solved_steps", "solved_step"), ("steps", "steps"),
                        ("test_accuracy", "test_accuracy")):  # fmt: skip
        entry[key] = [run[source] for run in trials]
    if task == "multi_needle":
        entry["test_by_depth"] = {"0.0": 0.625, "0.25": 0.375}
    return entry


class Balance(HTMLParser):
    """Ids and balance of the tags of a page."""

    def __init__(self):
        super().__init__()
        self.ids, self.open, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.ids += [value for key, value in attrs if key == "id"]
        if tag not in {"meta", "link", "br", "hr", "img"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" not in self.open and "style" not in self.open:
            self.text.append(data)


def build(folder):
    page = build_report(folder).read_text(encoding="utf-8").replace(get_plotlyjs(), "")
    reader = Balance()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    assert len(set(reader.ids)) == len(reader.ids)
    return page, " ".join(" ".join(reader.text).split())


def charts(page):
    specs = re.findall(r'<script type="application/json" data-chart="(.*?)">(.*?)</script>', page)
    return {name: json.loads(spec) for name, spec in specs}


def test_the_page_shows_every_run_and_number(study):
    page, text = build(study)
    assert "What is missing" not in text
    assert "Made-up <i>statement</i>." in text  # escaped: it reached the text
    assert "Made-up <b>processor</b>" in text
    for task in ("noisy_recall", "multi_needle"):
        for kind in TYPES:
            for name in (f"{task}-{kind}-seed0", f"{task}-{kind}-lr0.003-seed100"):
                assert text.count(name) >= 4
    for shown in (
        "1 of 2",
        "0 of 2",
        "0.09 to 0.91",
        "not in 200",
        "0.998",
        "0.432",
        "0.065",
        "0.864",
        "0.131",
        "depth 25 %",
        "rate 0.006",
        "Can it be learned? made-up shares.",
        "Is it learned sooner? made-up steps.",
        "The task does not leak: without attention the best model answers 0.126, and guessing any "
        "value explains up to 0.188.",
        "−1,234",
        "No attention and Transformer (softmax)",
        "1 seed each",
        "0.88",
    ):
        assert shown in text, shown
    assert "50 % of the context is noise" in text
    assert "2 needles in 8 tokens, 2 of them asked for" in text
    assert "any value 0.125, a value of the context 0.500" in text
    assert not re.search(r"https?://|@import|url\(", page)


def test_charts_hold_every_trial_and_the_ceilings(study):
    shown = charts(build(study)[0])
    assert set(shown) == {
        f"chart-{part}{task}"
        for part in ("", "controls-", "sweep-")
        for task in ("noisy_recall", "multi_needle")
    }
    traces = shown["chart-noisy_recall"]["data"]
    curves = {tuple(trace["y"]): trace for trace in traces if "diff" in trace["legendgroup"]}
    solved = curves[0.5, 0.5, 1.0, 1.0]
    assert solved["x"] == [0, 50, 100, 150]
    guesses = [trace for trace in traces if trace["legendgroup"].startswith("guess")]
    assert [trace["y"] for trace in guesses] == [[0.125, 0.125], [0.5, 0.5]]
    assert [trace["x"] for trace in guesses] == 2 * [[0, 200]]
    assert sum(trace["showlegend"] for trace in traces) == len(TYPES) + len(guesses)
    blind = shown["chart-controls-noisy_recall"]["data"]
    assert blind[0]["y"] == [0.5] * 5
    assert blind[0]["name"] == WHAT
    assert CONTROL not in {trace["legendgroup"] for trace in traces}
    for spec in shown.values():
        assert len(go.Figure(spec).data) == len(spec["data"]) > 0


def test_same_study_gives_same_bytes(study):
    assert build_report(study).read_bytes() == build_report(study).read_bytes()


def test_markdown(study):
    lines = markdown_results(study).splitlines()
    assert len(lines) == 2 + 2 * 3
    assert " | 0 of 2 | 0.09 to 0.91 | over 200 | — | " in lines[2]
    assert lines[3] == (
        "| Noisy recall | DIFF V1 | 0.003 | 1 of 2 | 0.09 to 0.91 | over 200 (100 to over 200) "
        "| 0.864, 0.131 | 0.510 to 0.998 | 0.500 | noisy_recall-diff-seed0, 1 |"
    )
    assert lines[4].startswith(f"| Noisy recall | {WHAT} | 0.003 | 0 of 1 | ")
    assert lines[4].endswith(" | noisy_recall-none-seed0 |")


def test_a_single_rate_is_said_to_be_no_choice(study):
    for path in (study / "study.json", study / "results.json"):
        record = read_record(path)
        if "learning_rates" in record:
            record["learning_rates"] = [0.003]
        for task in record["tasks"].values():
            for entry in task.get("types", {}).values():
                entry |= {"sweep": [], "inside": None}
        write_record(path, record)
    for path in study.glob("runs/*-lr*"):
        shutil.rmtree(path)
    text = build(study)[1]
    assert "All members use the learning rate 0.003; none was chosen." in text
    assert "all at one learning rate" in text
    assert "What is missing" not in text


def test_a_leak_is_named(study):
    replace_in_record(study / "results.json", '"leaks": false', '"leaks": true')
    assert "The task leaks: without attention" in build(study)[1]


def test_records_of_another_version_of_the_protocol_are_refused(study):
    """The first version had other tasks and no controls: never in one table with this one."""
    path = study / "results.json"
    replace_in_record(path, '"version": 2', '"version": 1')
    with pytest.raises(CheckpointError, match="protocol's version must be 2, got 1"):
        build_report(study)
    with pytest.raises(CheckpointError, match="protocol's version must be 2, got 1"):
        markdown_results(study)


def test_what_is_missing_is_named(study):
    shutil.rmtree(study / "runs" / "noisy_recall-diff-seed1")
    (study / "runs" / "noisy_recall-diff-seed0" / "results.json").unlink()
    (study / "results.json").unlink()
    text = build(study)[1]
    assert "Run noisy_recall-diff-seed1 was not found." in text
    assert "Run noisy_recall-diff-seed0 has not finished: it stopped at step 200." in text
    assert "results.json is missing" in text
    assert "The study has not finished, so it makes no statement." in text
    shutil.rmtree(study / "runs")
    assert "No run recorded an accuracy." in build(study)[1]


def test_contradictions_are_named(study):
    path = study / "runs" / "multi_needle-softmax-seed0" / "results.json"
    replace_in_record(path, "0.51", "0.93")
    shutil.copytree(study / "runs" / "multi_needle-softmax-seed1", study / "runs" / "other")
    record = study / "runs" / "other" / "run.json"
    replace_in_record(record, "multi_needle-softmax-seed1", "other")
    text = build(study)[1]
    assert "contradicts the run's own file on multi_needle-softmax-seed0." in text
    assert "Run other is in the folder but not part of this study." in text


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("study.json", ('"types"', '"kinds"'), "must hold types"),
        ("study.json", ('"task":', '"tusk":'), "must hold task"),
        ("results.json", ('"solved_steps"', '"steps_solved"'), "must hold solved_steps"),
        ("results.json", ('"control_tests"', '"tests_of_controls"'), "must hold control_tests"),
        ("results.json", ('"none": {', '"some_attention": {'), "must hold the controls of"),
    ],
)
def test_damaged_files_are_refused(study, name, change, message):
    path = study / name
    replace_in_record(path, *change)
    with pytest.raises(CheckpointError, match=message):
        build_report(study)
