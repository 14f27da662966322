"""``diffattn compare`` as a user runs it."""

import csv
import json

import pytest
from typer.testing import CliRunner

from diffattn.cli.app import app
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
    assert done.stderr.count("different protocol versions") == 1
    assert "c is left out of key_values: it is of key_values, version 2" in done.stderr


def test_every_format_and_the_page_of_answers(folders, tmp_path):
    out, page = tmp_path / "made" / "out.csv", tmp_path / "made" / "answers.html"
    done = run(*folders, "--format", "csv", "--out", out, "--answers", page)
    assert done.stdout.split() == [str(out), str(page)]
    lines = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [(one["model"], one["p_holm"] != "") for one in lines if one["primary"] == "True"] == [
        ("b", True)
    ]
    assert "item" in page.read_text(encoding="utf-8")
    printed = json.loads(run(*folders, "--format", "json", "--baseline", "b").stdout)
    assert printed["comparison"][0]["baseline"] == "b"
    assert run(*folders, "--format", "latex").stdout.startswith(r"\begin{tabular}")
    assert run(*folders, "--format", "markdown").stdout.startswith("| protocol |")
    done = run(*folders, "--format", "lm-eval", "--out", tmp_path / "lm")
    assert json.loads((tmp_path / "lm" / "a" / "results.json").read_text())["results"] == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "cvs"], "--format must be one of table, csv"),
        (["--format", "lm-eval"], "writes one file per model: name --out"),
        (["--baseline", "z"], "--baseline: must be one of a, b"),
    ],
)
def test_misuse_is_one_line(folders, arguments, message):
    done = run(*folders, *arguments)
    assert message in str(done.exception)
