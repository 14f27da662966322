"""BenchResult on disk: what is written is read, and what is foreign is refused."""

import json
from dataclasses import replace

import pytest

from diffattn.errors import CheckpointError
from diffattn.lab.records.results import (
    BenchCase,
    BenchResult,
    BenchRow,
    BenchRun,
    Spread,
    Verdict,
    case_key,
)
from record_files import change_record

SPREAD = Spread(median=1.0, low=0.9, high=1.1, minimum=0.8, maximum=1.2, rounds=5)
MEASURED = {"status": "ok", "seconds": SPREAD, "ratio_t": SPREAD, "check": {"error": 1e-7}}
ROW = BenchRow(contender="chunked", role="DIFF", backend="chunked", **MEASURED)
MISS = Verdict(target="forward at most 1.05 × T", contender="chunked", value=1.1, limit=1.05)
CASE = BenchCase(
    suite="ops", run="cpu-1", device="cpu", dtype="float32", mode="forward",
    shape={"B": 1, "N": 512}, created="2001-02-03", matmul_flops_per_second=1e11, rows=[ROW],
    verdicts=[MISS],
)  # fmt: skip
OF_CODE = {"commit": None, "dirty": None, "source": "0", "versions": {}}
RUN = BenchRun(name="cpu-1", created="2001-02-03", hardware={}, settings={}, **OF_CODE)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "new" / "cpu.json"
    result = BenchResult().put(CASE, RUN)
    result.write(path)
    assert BenchResult.read(path) == result
    assert json.loads(path.read_text())["schema"] == 1


def test_a_case_of_another_run_is_replaced_and_its_run_forgotten():
    other = replace(RUN, name="cpu-2")
    larger = replace(CASE, shape={"B": 1, "N": 1_024})
    result = BenchResult().put(CASE, RUN).put(larger, RUN)
    assert result.find(case_key(CASE), "cpu-1") == CASE
    assert result.find(case_key(CASE), "cpu-2") is None
    result = result.put(replace(CASE, run="cpu-2"), other)
    assert [case.run for case in result.cases] == ["cpu-2", "cpu-1"]
    result = result.put(replace(larger, run="cpu-2"), other)
    assert list(result.runs) == ["cpu-2"]


def test_verdicts_say_by_how_much():
    assert str(MISS) == "short by 0.05"
    assert str(replace(MISS, value=1.0, goal=True)) == "pass (goal)"
    assert not replace(MISS, value=float("nan")).passed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "study"}, "must hold a record of kind 'benchmark'"),
        ({"schema": 7}, "schema 1, got kind 'benchmark', schema 7"),
        ({"cases": [{}]}, r"cases\[0\] must hold suite, got"),
    ],
)
def test_foreign_files_are_refused(change, message, tmp_path):
    path = tmp_path / "cpu.json"
    BenchResult().put(CASE, RUN).write(path)
    change_record(path, **change)
    with pytest.raises(CheckpointError, match=message):
        BenchResult.read(path)
