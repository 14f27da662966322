"""``diffattn analyze`` as a user calls it."""

import json
import shutil

import pytest

from diffattn.files.io import append_jsonl
from diffattn.lab.records.analysis import AnalysisResult
from diffattn.lab.records.run import RunRecord


@pytest.mark.scheduled
def test_a_run_is_analysed_and_shown(cli, fails, trained, corpus, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    shutil.copy(corpus, "stdlib")  # a file, though --data has a corpus of this name
    text = ("--text", "the cat sat\r\non a mat", "--out", tmp_path / "text", "--json")
    record = json.loads(cli("analyze", f"a={trained}", *text).out)
    assert record["models"][0]["model"]["label"] == "a"
    assert record["text"]["source"] == "the text of --text"
    called = cli("analyze", trained, "--file", "stdlib", "--tokens", 60, "--out", out)
    assert called.code == 0, called
    assert "sink share" in " ".join(called.out.split())
    assert f"Page: {out / 'report.html'}" in called.out
    assert "items" in called.err
    assert AnalysisResult.read(out).text["documents"] == ["stdlib"]
    (analysis,) = AnalysisResult.read(out).models
    assert analysis.model["attention_type"] == "diff"
    assert analysis.lambda_log["steps"][0] == 0
    assert cli("report", out, "--out", tmp_path / "again.html").code == 0
    assert (tmp_path / "again.html").read_bytes() == (out / "report.html").read_bytes()
    line = fails("analyze", trained, "--text", "the cat", "--out", out, code=2)
    assert "must not hold an analysis yet" in line
    assert "got an analysis" in fails("report", out, "--markdown", code=2)


def test_a_log_alone_needs_no_text(cli, tmp_path):
    config = {"model": {"attention_type": "diff", "num_hidden_layers": 1}}
    RunRecord(name="diff-seed0", config=config, seed=0).write(tmp_path / "run")
    append_jsonl(tmp_path / "run" / "metrics.jsonl", {"step": 0, "lam": [-0.2]})
    called = cli("analyze", tmp_path / "run", "--out", tmp_path / "out")
    assert called.code == 0, called
    assert "λ was below 0 at 1 of 1 logged steps" in called.out
