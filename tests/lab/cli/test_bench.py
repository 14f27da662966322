"""``diffattn bench`` as a user calls it."""

import json

import pytest

from diffattn.lab.benchmark import contenders
from diffattn.ops.attention import diff_attention

QUICK = ("--scale", "quick", "--seconds", "0", "--rounds", "1", "--only", "composed")


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch):
    monkeypatch.setattr("diffattn.lab.benchmark.session.matmul_peak", lambda *args: 1e11)


def test_decode_prints_tables_and_writes_a_record(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ("bench", "decode", "--length", "8,16", "--device", "cpu", *QUICK)
    called = cli(*arguments)
    assert called.code == 0, called
    assert max(map(len, called.out.splitlines())) <= 80
    assert "B1 H4 d64 N1 S16, float32, decode on cpu (cpu-" in called.out
    assert "T: sdpa, sdpa (flash)" in called.out
    assert called.out.splitlines()[-2:] == [
        "We set no target for these shapes.", "Record: runs/bench/cpu.json"
    ]  # fmt: skip
    assert "time left unknown; bench decode" in called.err
    assert (tmp_path / "runs" / "bench" / "cpu.json").exists()
    again = cli(*arguments)
    assert again.out == called.out
    assert again.err.count("already in runs/bench/cpu.json") == 2


def test_json_is_the_cases(cli, tmp_path):
    called = cli("bench", "decode", "--length", "8", "--device", "cpu", *QUICK, "--json",
                 "--out", tmp_path)  # fmt: skip
    (case,) = json.loads(called.out)
    assert (case["suite"], case["shape"]["S"]) == ("decode", 8)
    assert [row["contender"] for row in case["rows"]] == ["sdpa", "composed"]
    assert (tmp_path / "cpu.json").exists()


def test_a_wrong_contender_ends_in_one(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(
        contenders, "diff_attention", lambda *args, backend: 1.1 * diff_attention(*args)
    )
    called = cli("bench", "decode", "--length", "8", "--device", "cpu", *QUICK,
                 "--out", tmp_path)  # fmt: skip
    assert called.code == 1
    assert "composed failed: output: error" in called.err


def test_paged_decoding_beside_dense(cli, tmp_path):
    called = cli("bench", "paged", "--device", "cpu", "--scale", "quick", "--length", "64",
                 "--seconds", "0", "--rounds", "1", "--json", "--out", tmp_path)  # fmt: skip
    assert called.code == 0, called
    (case,) = json.loads(called.out)
    ok = {row["contender"] for row in case["rows"] if row["status"] == "ok"}
    assert ok == {"sdpa", "reference", "gathered", "dense_decode"}
    assert (case["suite"], case["shape"]["page"]) == ("paged", 64)
