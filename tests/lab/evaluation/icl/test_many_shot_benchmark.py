"""The benchmark of many-shot learning checks before it measures, and writes its record."""

import json
import runpy
import sys


def test_a_small_run_writes_a_record(build, tmp_path, monkeypatch):
    model = build("diff")
    model.network.save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    out = tmp_path / "record.json"
    arguments = ["--data", "generated", "--prefix-tokens", "200", "--questions", "9"]
    arguments += ["--scratch-items", "2", "--rounds", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["many_shot", f"diff={tmp_path / 'model'}", *arguments])
    runpy.run_module("tools.many_shot", run_name="__main__")
    row = json.loads(out.read_text())["models"]["diff"]
    assert row["check"]["predictions_equal"]
    assert row["check"]["float32_error"] <= row["check"]["float32_budget"]
    assert set(row["times_as_fast_as"]) == {"once per question", "decoding", "labels"}
