"""``diffattn judge`` as a user runs it, on what ``diffattn evaluate`` wrote."""

import json

import pytest
from typer.testing import CliRunner

from diffattn.lab.cli.app import app
from diffattn.lab.evaluation.hallucination.data import TASKS, generated_rows
from judge_server import completion, judge_server
from model_folders import tiny_folder


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    """Two models on two data sets, from files in their original columns."""
    home = tmp_path_factory.mktemp("home")
    for name in ("xsum", "hotpotqa"):
        rows = generated_rows(TASKS[name], 3, seed=1)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (home / f"{name}.jsonl").write_text(text)
    models = []
    for kind in ("softmax", "diff"):
        models += ["--model", tiny_folder(home / kind, kind, text, initializer_range=0.5)]
    settings = [f"data={home}", "samples=3", "max_new_tokens=8", "lookback=false"]
    changes = [part for s in settings for part in ("--set", f"hallucination.{s}")]
    for name in ("xsum", "hotpotqa"):
        done = run("evaluate", "hallucination", "--quick", *models, *changes, "--set",
                   f"hallucination.dataset={name}", "--out", home / name)  # fmt: skip
        assert done.exit_code == 0, (done.output, done.exception)
    return home / "xsum"


def test_judge_and_report(evaluation, monkeypatch):
    """By a server that finds everything supported."""
    monkeypatch.setenv("MY_KEY", "key")
    monkeypatch.setenv("no_proxy", "*")
    with judge_server((200, completion(), {})) as (endpoint, _):
        arguments = ["judge", evaluation, "--model", "some/judge", "--endpoint", endpoint,
                     "--set", "key_variable=MY_KEY"]  # fmt: skip
        done = run(*arguments)
        again = run(*arguments, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "hallucination.judged-some-judge" in done.stdout
    assert "diff − softmax" in done.stdout
    results = json.loads(again.stdout)["results"]
    assert [result["metrics"][0]["name"] for result in results] == ["accuracy"] * 2
    contents = [path.read_bytes() for path in evaluation.rglob("*") if path.is_file()]
    assert not any(b"Bearer" in content or b'"key"' in content for content in contents)


def test_requests_can_be_taken_elsewhere_and_replies_brought_back(evaluation, tmp_path):
    requests = tmp_path / "requests.jsonl"
    done = run("judge", evaluation, "--requests", requests)
    assert "requests" in done.stdout
    lines = [json.loads(line) for line in requests.read_text().splitlines()]
    before = requests.read_bytes()
    assert run("judge", evaluation, "--requests", requests).exit_code == 0
    assert requests.read_bytes() == before
    for path, must in (
        (evaluation / "evaluation.json", "must be a new file or a file of 'diffattn judge --req"),
        (evaluation / "requests.jsonl", f"must lie outside of {evaluation}, whose records stay"),
    ):
        assert must in str(run("judge", evaluation, "--requests", path).exception)
    assert not (evaluation / "requests.jsonl").exists()
    assert lines[0]["id"].startswith("softmax/hallucination/xsum-1-")
    reply = "**Conclusion: False**"
    replies = tmp_path / "replies.jsonl"
    replies.write_text(
        "".join(json.dumps({"id": line["id"], "reply": reply}) + "\n" for line in lines)
    )
    done = run("judge", evaluation, "--model", "by hand", "--replies", replies)
    assert done.exit_code == 0, (done.output, done.exception)
    replies.write_text(json.dumps({"id": lines[0]["id"], "reply": reply}) + "\n")
    done = run("judge", evaluation, "--model", "half", "--replies", replies)
    assert done.exit_code == 1
    assert "diff/hallucination.judged-half: one verdict or more is needed" in done.stderr
    assert "no verdict on 2 of 3 outputs" in done.stderr


def test_dry_run_and_misuse(evaluation):
    done = run("judge", evaluation, "--model", "m", "--dry-run")
    assert json.loads(done.stdout)["judge"]["timeout_seconds"] == 120
    done = run("judge", evaluation, "--model", "m", "--endpoint", "http://h/v1?q=abc", "--dry-run")
    assert json.loads(done.stdout)["judge"]["endpoint"] == "http://h/v1"
    done = run("judge", evaluation, "--model", "/nowhere/at/all")
    assert "must be a run directory" in str(done.exception)
