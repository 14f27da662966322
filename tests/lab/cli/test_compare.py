"""``diffattn compare`` as a user runs it."""

import csv
import json

import pytest
from typer.testing import CliRunner

from diffattn.lab.cli.app import app
from diffattn.lab.report.evaluation import tables
from evaluation_folders import write


@pytest.fixture
def folders(tmp_path):
    write(tmp_path / "x", "a", [0] * 10)
    write(tmp_path / "y", "b", [1] * 10)
    write(tmp_path / "y", "c", [1] * 10, version=2)
    return [tmp_path / "x", tmp_path / "y"]


def run(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_a_table_and_what_was_left_out(folders):
    done = run(*folders)
    assert done.exit_code == 0, done.output
    assert "b − a" in done.stdout
    assert "higher" in done.stdout
    assert done.stderr.count("it is of key_values, version 2") == 1
    assert "key_values: c was not compared: it is of key_values, version 2" in done.stderr


def test_every_format_and_the_page_of_answers(folders, tmp_path):
    out, page = tmp_path / "made" / "out.csv", tmp_path / "made" / "answers.html"
    done = run(*folders, "--format", "csv", "--out", out, "--answers", page)
    assert done.stdout.split() == [str(out), str(page)]
    lines = csv.DictReader(out.read_text(encoding="utf-8").splitlines())
    (primary,) = (line for line in lines if line["primary"] == "True")
    assert (primary["model"], primary["p_holm"] != "") == ("b", True)
    assert "item" in page.read_text(encoding="utf-8")
    printed = json.loads(run(*folders, "--format", "json", "--baseline", "b").stdout)
    assert printed["comparison"][0]["baseline"] == "b"
    assert run(*folders, "--format", "markdown").stdout.startswith("| Protocol |")
    done = run(*folders, "--format", "lm-eval", "--out", tmp_path / "lm")
    assert json.loads((tmp_path / "lm" / "a" / "results.json").read_text())["results"] == {}
    within = [tmp_path / "evals" / label for label in "ab"]  # called as their labels
    for folder, label in zip(within, "ab", strict=True):
        write(folder, label, [0] * 10)
    above = run(*within, "--format", "lm-eval", "--out", tmp_path / "evals")
    assert "must lie outside" in str(above.exception)
    assert not list((tmp_path / "evals").glob("*/results.json"))


@pytest.mark.parametrize("format_", tables.BEGINNINGS)
def test_what_it_wrote_is_replaced_and_nothing_else(folders, tmp_path, format_):
    """Also the page of answers, and of lm-eval the file of each model."""
    out, page = tmp_path / "out", tmp_path / "answers.html"
    arguments = (*folders, "--format", format_, "--out", out, "--answers", page)
    assert run(*arguments).exit_code == 0
    made = out / "a" / "results.json" if format_ == "lm-eval" else out
    before = {path: path.read_bytes() for path in (made, page)}
    page.write_text("")  # nothing is lost
    assert run(*arguments).exit_code == 0
    assert {path: path.read_bytes() for path in before} == before
    for path in before:
        foreign = '{\n  "kind": "thesis"\n}\n'
        path.write_text(foreign)
        refused = str(run(*arguments).exception)
        assert refused.startswith(f"{path}: must be a new file or a "), refused
        assert refused.endswith("an older version wrote. Name another file, or delete this one.")
        assert path.read_text() == foreign
        path.write_bytes(before[path])


@pytest.mark.parametrize(
    "options",
    [
        ("--format", "json", "--out", "y/evaluation.json"),
        ("--format", "csv", "--out", "x/../y/new/table.csv"),
        ("--format", "lm-eval", "--out", "y"),
        ("--answers", "y/answers.html"),
        ("--answers", "link/answers.html"),
    ],
    ids=" ".join,
)
def test_nothing_is_written_among_the_records(folders, tmp_path, options):
    (tmp_path / "link").symlink_to("y")
    before = sorted(tmp_path.rglob("*"))
    marker = (tmp_path / "y" / "evaluation.json").read_bytes()
    *words, place = options
    refused = str(run(*folders, *words, tmp_path / place).exception)
    assert "evaluation.json: must be a new file" in refused or (
        f"must lie outside of {tmp_path / 'y'}, whose records stay as they are" in refused
    )
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "y" / "evaluation.json").read_bytes() == marker


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "same", "--answers", "same"], "--out and --answers must differ"),
        (["--format", "cvs"], "Did you mean 'csv'?"),
        (["--format", "lm-eval"], "writes one file per model: name --out"),
        (["--baseline", "z"], "--baseline: must be one of a, b"),
    ],
)
def test_misuse_is_one_line(folders, arguments, message):
    done = run(*folders, *arguments)
    assert message in str(done.exception)
