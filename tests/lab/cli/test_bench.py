"""``diffattn bench`` as a user calls it."""

import json
import os
import subprocess
import sys

import pytest
import torch

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
    assert "(0%); bench decode" in called.err
    assert (tmp_path / "runs" / "bench" / "cpu.json").exists()
    again = cli(*arguments)
    assert again.out == called.out
    assert again.err.count("already in runs/bench/cpu.json") == 2
    (case, _) = json.loads(cli(*arguments, "--json").out)
    assert (case["suite"], case["shape"]["S"]) == ("decode", 8)
    assert [row["contender"] for row in case["rows"]] == ["sdpa", "composed"]


def test_a_wrong_contender_ends_in_one(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(
        contenders, "diff_attention", lambda *args, backend: 1.1 * diff_attention(*args)
    )
    called = cli("bench", "decode", "--length", "8", "--device", "cpu", *QUICK,
                 "--out", tmp_path)  # fmt: skip
    assert called.code == 1
    assert "composed failed: output: error" in called.err


@pytest.mark.scheduled
def test_host_says_how_long_one_call_takes_the_host(tmp_path):
    """In a process of its own: kernels are compiled, which Triton's interpreter would not do."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    program = "from diffattn.lab.benchmark import host; host._CALLS, host._ROUNDS = 2, 1; "
    program += "from diffattn.lab.cli.app import main; main()"
    words = ["bench", "host", "--device", "cpu", "--json", "--out", str(tmp_path)]
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    calls = json.loads(done.stdout)
    assert [(call["type"], call["launches"]) for call in calls] == [
        ("V1", 1), ("V1", 4), ("V2", 1), ("V2", 4)
    ]  # fmt: skip
    for call in calls:
        assert sum(call["stages"].values()) == pytest.approx(call["milliseconds"])
    assert json.loads((tmp_path / "host_cpu.json").read_text())["calls"] == calls


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_host_on_cuda_needs_a_gpu(fails):
    assert fails("bench", "host", "--device", "cuda", code=2) == (
        "diffattn: bench: device 'cuda' needs a CUDA device, got none on this machine."
    )


def test_host_needs_compiled_kernels(fails):
    line = fails("bench", "host", "--device", "cpu", code=1)
    assert line == "diffattn: bench host: needs TRITON_INTERPRET unset, got 1."
