"""Tables and the words and numbers in them."""

import math

import pytest

from diffattn.errors import CheckpointError
from diffattn.report.page import wording
from diffattn.report.page.run_tables import cost_table, models_table
from diffattn.report.study.files import read_study
from diffattn.report.study.tables import loss_table, study_markdown
from diffattn.stats.intervals import Interval
from record_files import read_record, write_record


def interval(mean, low, high, n=3):
    return Interval(mean, low, high, 0.95, n, "Student t")


def texts(of):
    """Every text in the cells of a table."""
    cells = [cell for row in of.rows for cell in row]
    parts = [(cell.text, *(text for pair in cell.lines for text in pair)) for cell in cells]
    return " ".join(text for part in parts for text in part)


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (interval(-0.03, -0.05, -0.01), "lower by 0.0300"),
        (interval(0.03, 0.01, 0.05), "higher by 0.0300"),
        (interval(-0.03, -0.07, 0.01), "interval includes 0: no difference shown"),
        (interval(0.0, 0.0, 0.0), "interval includes 0: no difference shown"),
        (interval(-0.03, None, None, n=1), "one seed: no interval, no verdict"),
    ],
)
def test_verdict(difference, words):
    assert wording.verdict(difference) == words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.14159265, "3.1416"),
        (-0.5, "−0.5000"),
        (0, "0.0000"),
        (0.00004, "0.00004"),
        (-0.0000012, "−0.000001"),
        (12345.678, "12,345.6780"),
        (None, "—"),
        (math.nan, "—"),
        (True, "—"),
        ("3", "—"),
    ],
)
def test_number(value, text):
    assert wording.number(value) == text


def test_signed_and_derived_numbers():
    assert wording.number(0.25, signed=True) == "+0.2500"
    assert wording.number(0, signed=True) == "0.0000"
    assert wording.count(-1280, signed=True) == "−1,280"
    assert wording.percent(-1280, 912_384) == "−0.14 %"
    assert wording.percent(1, 0) == "—"
    assert wording.ratio(3, 4) == "0.75×"
    assert wording.mebibytes(3 * 2**19) == "1.5 MiB"
    assert wording.listing(["a", "b", "c"]) == "a, b and c"


def test_markdown_table(make_study):
    study = make_study()
    lines = study_markdown(study).splitlines()
    assert len(lines) == 2 + 4
    assert len({line.count("|") for line in lines}) == 1
    results = read_record(study / "results.json")
    diff = results["differences"][0]
    row = next(line for line in lines if line.startswith("| DIFF V1 "))
    assert "| 912,768 |" in row
    assert f"| {wording.number(diff['mean'], signed=True)} |" in row
    assert "| diff-seed0, diff-seed1, diff-seed2 |" in row
    assert "| baseline |" in lines[2]


def test_markdown_table_of_an_interrupted_study(make_study):
    study = make_study(seeds=(0,), num_steps=10)
    (study / "results.json").unlink()
    (study / "runs" / "diff-seed0" / "results.json").unlink()
    lines = study_markdown(study).splitlines()
    assert "no finished run" in lines[3]
    assert "diff_v2-seed0" in lines[4]


def test_tables_hold_the_recorded_numbers(make_study):
    study = read_study(make_study())
    assert study.results is not None
    losses = texts(loss_table(study))
    for entry in study.results["types"].values():
        summary = entry["validation_loss"]
        for value in (summary["mean"], summary["low"], summary["high"], *summary["values"]):
            assert f"{value:.4f}" in losses
    models = [cell for row in models_table(study).rows for cell in row]
    assert ("+2,304", "+0.04 %") in [(cell.text, cell.note) for cell in models]
    costs = texts(cost_table(study))
    assert "7,990" in costs
    assert "0.70×" in costs


def test_costs_may_stand_in_the_study_file_alone(make_study):
    folder = make_study(seeds=(0,), num_steps=10)
    before = cost_table(read_study(folder))
    for path in folder.glob("runs/*/costs.json"):
        path.unlink()
    assert cost_table(read_study(folder)) == before


def test_runs_of_another_study_are_set_aside(make_study):
    folder = make_study(seeds=(0, 1), num_steps=10)
    path = folder / "study.json"
    value = read_record(path)
    write_record(path, value | {"seeds": [0]})
    study = read_study(folder)
    assert "Run diff-seed1 is in the folder but not part of this study." in study.gaps
    assert [run.name for run in study.runs_of("diff")] == ["diff-seed0"]


def test_run_without_attention_type_is_refused(make_study):
    folder = make_study(seeds=(0,), num_steps=10)
    path = folder / "runs" / "diff-seed0" / "run.json"
    value = read_record(path)
    write_record(path, value | {"config": {"model": {}}})
    with pytest.raises(CheckpointError, match="model must hold attention_type, got"):
        read_study(folder)


def test_run_without_finite_loss_is_named(make_study):
    folder = make_study(seeds=(0,), num_steps=10)
    path = folder / "runs" / "diff-seed0" / "results.json"
    value = read_record(path)
    write_record(path, value | {"validation_loss": None})
    assert "Run diff-seed0 finished without a finite validation loss." in read_study(folder).gaps
