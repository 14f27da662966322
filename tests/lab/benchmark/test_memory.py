"""Peak memory from a fresh process: sizes that can be counted by hand."""

import shutil
import sys

import pytest

from diffattn.lab.benchmark import memory
from diffattn.lab.benchmark.config import Case
from diffattn.lab.benchmark.contenders import operator_contenders

CASE = Case(
    suite="ops", device="cpu", dtype="float32", mode="forward_backward",
    shape={"B": 1, "H": 4, "d": 32, "N": 512},
)  # fmt: skip


@pytest.mark.scheduled
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the high-water mark is Linux's")
def test_the_reference_holds_its_maps_and_the_flash_kernel_does_not():
    contenders = {c.name: c for c in operator_contenders(CASE)}
    maps = 4 * 512 * 512 * 4  # bytes of one map of every head
    grads = 3 * 512 * 4 * 2 * 32 * 4  # of q, k and v
    reference = memory.peak_memory(CASE, contenders["reference"])
    flash = memory.peak_memory(CASE, contenders["sdpa"])
    assert reference["held_bytes"] > 2 * maps
    assert reference["peak_bytes"] > reference["held_bytes"]
    assert grads < flash["peak_bytes"] < 2 * maps + grads
    assert flash["held_bytes"] < maps


def test_a_process_that_dies_gives_no_number(monkeypatch):
    monkeypatch.setattr(memory.sys, "executable", shutil.which("false"))
    assert memory.peak_memory(CASE, operator_contenders(CASE)[0]) == {}
