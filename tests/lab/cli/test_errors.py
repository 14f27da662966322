"""Whatever a user does wrong ends in one line and the right exit code, and costs nothing."""

import os
from pathlib import Path

import pytest
from transformers.utils import logging

from lab.cli.misuse import LATER
from trials.made_up_folders import evaluation, text_study
from trials.wrong_calls import calls_besides_evaluate


@pytest.mark.parametrize(("arguments", "message"), LATER)
def test_misuse_is_two_and_leaves_no_trace(arguments, message, fails, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in fails(*arguments.format(out=tmp_path / "out").split(), code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope",), "No such command 'nope'"),
        (("trian",), "Did you mean 'train'? See '"),
        (("train", "smoke"), "Missing option '--out'"),
        (("train", "smoke", "--ouy", "x"), "No such option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_options_are_two_and_name_the_help(arguments, message, fails):
    line = fails(*arguments, code=2)
    assert message in line
    assert line.endswith(" --help'.")


NO_RECORDS = "must hold study.json or evaluation.json or analysis.json, got"


def test_missing_and_foreign_folders(fails, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear reader")
    (tmp_path / "file").write_text("dear reader")
    for arguments, code, message in (
        (("report", "mine"), 1, f"mine: {NO_RECORDS} none"),
        (("report", "file"), 1, f"file: {NO_RECORDS} none"),
        (("report", trained), 1, f"{NO_RECORDS} a training run, of which 'diffattn analyze' makes"),
        (("reproduce", "text", "--out", "mine"), 1, "mine: must be empty or hold a study"),
        (("reproduce", "text", "--out", "file"), 2, "file: must be a folder"),
        (("train", "smoke", "--out", "mine"), 1, "mine: must be empty or hold a run"),
        (("analyze", trained, "--text", "a", "--out", "mine"), 1, "must be empty or hold an analy"),
        (("analyze", trained), 2, "one of --text, --file and --data must be given, got none"),
        (("analyze", trained, "--text", "a", "--data", "b"), 2, "got --text and --data"),
        (("analyze", trained, "--file", "none"), 2, "must be a text file, got none"),
        (("fit", "nothing.csv"), 1, "nothing.csv"),
        (("train", "smoke", "--out", "file"), 2, "file: must be a folder"),
        (("train", "smoke", "--out", "x", "--data", "mine"), 1, "data.json: file must exist"),
        (("pack", "stdlib", "--out", "mine"), 1, "must be empty or hold packed data"),
        (("pack", "stdlib", "--out", "file"), 2, "file: must be a folder"),
        (("generate", "nothing", "--prompt", "x"), 1, "nothing: no folder of this name is in"),
        (("generate", "mine", "--prompt", "x"), 1, "must hold a model (config.json"),
    ):
        assert message in fails(*arguments, code=code)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "dear reader"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "mine", "thesis.txt"]


def test_no_command_writes_into_a_pipe(fails, tmp_path):
    study, evaluated, pipe = (tmp_path / name for name in ("study", "evaluation", "pipe"))
    text_study(study)
    evaluation(evaluated)
    os.mkfifo(pipe)
    for words in (
        ("report", study, "--out"), ("report", evaluated, "--out"),
        ("judge", evaluated, "--requests"), ("judge", "--model", "m", "--"),
        ("compare", evaluated, "--format", "csv", "--out"), ("compare", evaluated, "--answers"),
        ("train", "smoke", "--dry-run", "--out"), ("train", "smoke", "--resume", "--out"),
        ("pack", "/no/such/text", "--out"), ("evaluate", "needle", "--model", "none", "--out"),
        ("analyze", "none", "--text", "a", "--out"), ("bench", "ops", "--scale", "quick", "--out"),
        ("reproduce", "--scale", "smoke", "--dry-run", "--out"),
    ):  # fmt: skip
        line = fails(*words, pipe, code=2)
        assert ": must be a f" in line or ": must be a new file or a" in line, words


def test_report_replaces_its_own_pages_alone(cli, fails, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evaluation(tmp_path / "x")
    for _ in range(2):
        assert cli("report", "x", "--out", "page.html").code == 0
    page, marker = Path("page.html").read_bytes(), Path("x/evaluation.json").read_bytes()
    Path("runs").mkdir()
    Path("runs/report.html").write_text("<!doctype html><title>thesis</title>")
    several = ("report", "x", "x")  # whose page has a name unless one is given
    for command, name in (
        (("report", "x", "--out", "x/evaluation.json"), "x/evaluation.json"),
        (several, "runs/report.html"),
    ):
        line = fails(*command, code=2)
        assert f"{name}: must be a new file or a page of 'diffattn report', got another" in line
    assert Path("runs/report.html").read_text() == "<!doctype html><title>thesis</title>"
    assert Path("x/evaluation.json").read_bytes() == marker
    assert Path("page.html").read_bytes() == page


def test_loading_leaves_the_settings_of_transformers(cli, trained):
    verbosity = logging.get_verbosity()
    try:
        logging.set_verbosity_info()
        logging.enable_progress_bar()
        called = cli("generate", trained, "--prompt", "the cat", "--max-new-tokens", 1)
        assert called.code == 0
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity(verbosity)


def test_a_sample_of_the_trial_of_wrong_calls(fails, tmp_path, monkeypatch):
    """Those that need no files; the scheduled tier makes all of them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("the cat sat on the mat\n" * 50)
    sample = [call for call in calls_besides_evaluate() if "{files}/m" not in str(call)]
    for call in [call for call in sample if call.status == 2][::45]:
        fails(*(part.replace("{files}", str(tmp_path)) for part in call.arguments), code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.txt"]
