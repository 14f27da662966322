"""The report of a recall study, from a made-up folder."""

import re

import plotly.graph_objects as go
import pytest

from diffattn.errors import CheckpointError
from diffattn.lab.report.build import build_report, markdown_results
from diffattn.lab.studies.recall.summary import step_differences
from lab.report.page_reader import build, figures, outline_of
from recall_records import TYPES, WHAT, summary, write_recall_study, write_trial
from record_files import read_record, replace_in_record, write_record


@pytest.fixture
def study(tmp_path):
    write_recall_study(tmp_path / "study")
    return tmp_path / "study"


def read(folder):
    page = build(folder)
    outline = outline_of(page)
    assert len(set(outline.ids)) == len(outline.ids)
    return page, " ".join(" ".join(outline.text).split())


def test_the_page_shows_every_run_and_number(study):
    page, text = read(study)
    assert "What is missing" not in text
    assert "Made-up <i>statement</i>." in text  # escaped: it reached the text
    assert "Made-up <b>chip</b>" in text
    for task in ("noisy_recall", "other"):
        for kind in TYPES:
            for name in (f"{task}-{kind}-seed0", f"{task}-{kind}-lr0.003-seed100"):
                assert name in text
    for shown in (
        "not in 200",
        "in over 200 training steps, the Transformer in over 200 (medians of 2 seeds; difference "
        "by seed −100).",
        "Median step at which it is learned: the Transformer over 200, DIFF V1 over 200 (−100; "
        "p 1.000). In brackets: the median difference to the Transformer by seed and p of the "
        "log-rank test after Holm over 2 tests.",
        "The task does not leak: a model that sees no other token answers 0.126; by guessing up "
        "to 0.188 would be chance.",
        "The chosen learning rate of Transformer (softmax) lies at the edge of its sweep.",
    ):
        assert shown in text, shown
    assert "noise_ratio 0.5" in text
    assert "any value 0.125, a value of the context 0.500" in text
    assert not re.search(r"https?://|@import|url\(", page)


def test_the_chart_holds_the_curves_and_the_band_of_all_seeds(study):
    (spec,) = figures(read(study)[0]).values()
    assert len(go.Figure(spec).data) == len(spec["data"]) == 3 * len(TYPES)
    low, high, mean = (x["y"] for x in spec["data"] if x.get("legendgroup") == "diff")
    assert (low[-1], high[-1], mean[-1]) == (0.5, 1.0, 0.75)


def test_a_control_with_a_sweep_is_shown_with_it(study):
    """As every control that attends has: two rates tried, all seeds."""
    name, rates = "softmax_norm", (0.001, 0.003)
    info, results = (read_record(study / file) for file in ("study.json", "results.json"))
    info["controls"][name] = {"like": name}
    for task, entry in results["tasks"].items():
        run = f"{task}-{name}"
        tried = [
            write_trial(study, f"{run}-lr{r}-seed100", task, "softmax", 100, 50) for r in rates
        ]
        swept = [run | {"learning_rate": rate} for run, rate in zip(tried, rates, strict=True)]
        runs = [write_trial(study, f"{run}-seed{i}", task, "softmax", i, 150) for i in (0, 1)]
        of_control = {"sweep": swept, "inside": False, "like": name}
        entry["controls"][name] = summary(task, runs) | of_control
    for task, differences in step_differences(results["tasks"]).items():
        results["tasks"][task]["differences"] = differences
    write_record(study / "study.json", info)
    write_record(study / "results.json", results)
    text = read(study)[1]
    assert "What is missing" not in text
    assert "each at the learning rate that was chosen for it before" in text
    row = next(row for row in markdown_results(study).splitlines() if "with head norm" in row)
    assert "| 150 |" in row
    assert "| −75 |" in row
    assert f"noisy_recall-{name}-lr0.001-seed100" in text


def test_markdown(study):
    lines = markdown_results(study).splitlines()
    assert len(lines) == 2 + 2 * 3
    assert " | 0 of 2 | over 200 | — | — | — | " in lines[2]
    assert lines[3] == (
        "| Noisy recall | DIFF V1 | 0.003 | 1 of 2 | over 200 (100 to over 200) | −100 | 1.000 "
        "| — | 0.510 to 0.998 |"
    )
    assert lines[4].startswith(f"| Noisy recall | {WHAT} | 0.003 | 0 of 1 | ")


def test_a_task_that_says_nothing_is_uninformative(study):
    path = study / "results.json"
    replace_in_record(path, '"leaks": false', '"leaks": true')
    replace_in_record(path, '"uninformative": ""', '"uninformative": "made up."')
    text = read(study)[1]
    assert "The task leaks: a model that sees no other token" in text
    assert text.count("Uninformative: made up.") == 3  # first, and of both tasks
    assert "Median step at which it is learned: the Transformer over" not in text


def test_records_of_another_version_of_the_protocol_are_refused(study):
    """Others asked less, and some held other tasks: never in one table with this one."""
    path = study / "results.json"
    replace_in_record(path, '"version": 6', '"version": 1')
    with pytest.raises(CheckpointError, match="protocol's version must be 6, got 1"):
        build_report(study)
    with pytest.raises(CheckpointError, match="protocol's version must be 6, got 1"):
        markdown_results(study)
    replace_in_record(path, '"version": 1', f'"version": "{"9" * 5_000}"')
    with pytest.raises(CheckpointError, match=r"must be 6, got '9{50,60}\. Run"):
        build_report(study)
