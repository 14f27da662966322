"""The time that one call takes the host."""

import json
import os
import subprocess
import sys

import pytest

from diffattn.errors import BackendError

pytest.importorskip("triton")

from tools.timing.host import no_device


def test_it_says_how_long_one_call_takes_the_host(tmp_path):
    """In a process of its own: kernels are compiled, which Triton's interpreter would not do."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    record = tmp_path / "host.json"
    command = [sys.executable, "-m", "tools.timing.host", "--device", "cpu", "--out", record]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    calls = json.loads(record.read_text())["calls"]
    assert [(call["type"], call["launches"]) for call in calls] == [
        ("V1", 1), ("V1", 4), ("V2", 1), ("V2", 4)
    ]  # fmt: skip
    for call in calls:
        assert sum(call["stages"].values()) == pytest.approx(call["milliseconds"])
    assert len(done.stdout.splitlines()) == len(calls)


def test_it_needs_compiled_kernels():
    with pytest.raises(BackendError, match="needs TRITON_INTERPRET unset, got 1"), no_device():
        pass
