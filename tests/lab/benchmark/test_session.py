"""A whole call: checks first, what fails has no number, what is measured is not measured again."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.io import read_json, write_json
from diffattn.lab.benchmark import contenders, measure, session
from diffattn.lab.benchmark.config import BenchConfig, Case
from diffattn.lab.benchmark.session import describe_run, run_bench
from diffattn.lab.records.results import BenchResult
from diffattn.ops.attention import diff_attention


class Steps:
    """A timer by which every run takes as long as the one before and a bit."""

    def __init__(self):
        self.now = 0.0

    def sample(self, timed, repeats):
        timed.run(timed.prepare() if timed.prepare else None)
        self.now += 1e-3
        return 1.0 + self.now

    def repeats(self, seconds, timed):
        return 1


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch):
    monkeypatch.setattr(session, "matmul_peak", lambda dtype, device, timer: 1e9)
    monkeypatch.setattr(measure, "peak_memory", lambda *_: {"peak_bytes": 10, "held_bytes": 5})


SMALL = BenchConfig(suite="ops", scale="quick", lengths=(16,), seconds=0, rounds=3)
FEW = replace(SMALL, lengths=(16, 24), only=("composed",))


def call(config, path, **options):
    lines, done = [], []
    result, cases = run_bench(
        config, path, on_message=lines.append, on_progress=done.append, timer=Steps(), **options
    )
    return result, cases, lines, done


def test_every_case_is_checked_timed_and_written(tmp_path):
    path = tmp_path / "new" / "cpu.json"
    result, cases, lines, done = call(SMALL, path)
    assert BenchResult.read(path) == result
    assert [c.mode for c in cases] == ["forward", "forward_backward"]
    assert len(lines) == 2
    assert done == [0, 1, 2]
    for case in cases:
        assert case.rows[0].role == "T"
        assert case.rows[0].backend == "sdpa (flash)"
        for row in case.rows:
            if row.status == "not run":  # kernels of another device
                assert row.reason
                continue
            assert row.status == "ok", row
            assert row.check["error"] <= row.check["budget"]
            assert row.seconds.rounds == row.ratio_t.rounds == 3
            assert row.flops_per_second == row.flops / row.seconds.median
            assert row.share_of_peak == row.flops_per_second / 1e9
            assert (row.peak_bytes == 10) == (case.mode == "forward_backward")
        two_calls = case.row("flash_diff_attn_1").ratio_two_calls
        assert (two_calls.median, two_calls.minimum) == (1, 1)
        assert case.row("composed").ratio_tc is None  # no softmax attention of that technique
    run = result.runs[cases[0].run]
    assert run.settings == {"only": [], "rounds": 3, "seconds": 0}
    assert set(run.versions) >= {"python", "torch", "transformers", "triton"}
    assert run.hardware["threads"] == 1


@pytest.mark.parametrize("there", [False, True])
def test_a_record_that_cannot_be_written_is_met_before_a_case(there, tmp_path, monkeypatch):
    out = tmp_path / "cpu.json"
    if there:
        BenchResult().write(out)
    before = out.read_bytes() if there else None

    def refuse(*_):
        raise OSError("read-only")

    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(session, "measure", lambda *_, **__: pytest.fail("it was measured"))
    with pytest.raises(OSError, match="read-only"):
        call(BenchConfig(suite="ops", scale="quick", lengths=(64,)), out)
    assert (out.read_bytes() if out.exists() else None) == before


def test_what_is_there_is_skipped_and_said_so_unless_it_is_of_other_settings_or_code(
    tmp_path, monkeypatch
):
    path = tmp_path / "cpu.json"
    first, *_ = call(FEW, path)
    again, cases, lines, _ = call(FEW, path)
    assert again == first
    assert (len(cases), ["already in" in line for line in lines]) == (4, [True] * 4)
    name = describe_run(FEW.device, FEW.settings()).name
    for config, options in ((FEW, {"fresh": True}), (replace(FEW, rounds=4), {})):
        _, _, lines, _ = call(config, path, **options)
        assert not any("already" in line for line in lines)
        assert len(BenchResult.read(path).cases) == 4
    monkeypatch.setattr(session, "source_hash", lambda: "0" * 16)
    assert describe_run(FEW.device, FEW.settings()).name != name


@pytest.mark.parametrize("there", [False, True])
def test_a_call_that_ends_in_its_first_case_changes_nothing(there, tmp_path, monkeypatch):
    path = tmp_path / "cpu.json"
    if there:
        call(FEW, path)
    before = path.read_bytes() if there else None

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "measure", interrupt)
    with pytest.raises(KeyboardInterrupt):
        call(FEW, path, fresh=True)
    assert (path.read_bytes() if path.exists() else None) == before


def test_an_interrupted_call_keeps_the_finished_cases(tmp_path, monkeypatch):
    path = tmp_path / "cpu.json"
    real, seen = session.measure, []

    def stop_at_third(case, *args, **more):
        seen.append(case)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return real(case, *args, **more)

    monkeypatch.setattr(session, "measure", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        call(FEW, path)
    assert len(BenchResult.read(path).cases) == 2
    monkeypatch.setattr(session, "measure", real)
    _, _, lines, _ = call(FEW, path)
    assert ["already" in line for line in lines] == [True, True, False, False]


def measure_small(mode):
    shape = {"B": 1, "H": 2, "d": 8, "N": 20}
    case = Case(suite="ops", device="cpu", dtype="float32", mode=mode, shape=shape)
    return measure.measure(case, SMALL, run="cpu-1", timer=Steps(), matmul_rate=None)


def one_case(monkeypatch, broken):
    """Measure one case in which the backend ``composed`` misbehaves."""

    def replaced(*args, backend):
        return broken(*args) if backend == "composed" else diff_attention(*args, backend=backend)

    monkeypatch.setattr(contenders, "diff_attention", replaced)
    return measure_small("forward")


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda *a: 1.01 * diff_attention(*a), "output: error "),
        (lambda *a: diff_attention(*a) / 0, "output (not finite): error not finite"),
    ],
)
def test_a_wrong_contender_gets_no_number(broken, reason, monkeypatch):
    case = one_case(monkeypatch, broken)
    row = case.row("composed")
    assert (row.status, row.seconds, row.ratio_t, row.backend) == ("failed", None, None, None)
    assert row.reason.startswith(reason)
    assert row.flops_per_second is None
    assert all(other.status != "failed" for other in case.rows if other is not row)


class OutOfResources(Exception):
    """As triton's: neither a RuntimeError nor any other that PyTorch raises."""


@pytest.mark.parametrize(
    ("error", "status"), [(OutOfResources, "failed"), (torch.OutOfMemoryError, "not run")]
)
@pytest.mark.parametrize("survived", [0, 1, 3])
def test_whatever_a_contender_raises_ends_it_alone(monkeypatch, error, status, survived):
    """In its check, its first run or in the midst of the rounds."""
    calls = []

    def dies(*args):
        calls.append(1)
        if len(calls) > survived:
            raise error("out of resource:\nshared memory")
        return diff_attention(*args)

    case = one_case(monkeypatch, dies)
    row = case.row("composed")
    assert (row.status, row.seconds, row.backend) == (status, None, None)
    assert row.reason == f"{error.__name__}: out of resource: shared memory"
    others = [other for other in case.rows if other.status != "not run" and other is not row]
    assert len(others) > 2
    assert all(other.seconds.rounds == 3 for other in others)


def test_memory_that_cannot_be_measured_leaves_the_times(monkeypatch):
    def measured(case, contender):
        if contender.name == "composed":
            raise AssertionError("no descriptor")
        return {"peak_bytes": 10, "held_bytes": 5}

    monkeypatch.setattr(measure, "peak_memory", measured)
    measured_case = measure_small("forward_backward")
    row = measured_case.row("composed")
    assert (row.status, row.peak_bytes) == ("ok", None)
    assert row.seconds.rounds == 3
    assert row.reason == "memory not measured: AssertionError: no descriptor"
    assert measured_case.row("chunked").peak_bytes == 10


def test_backward_alone_is_timed_without_its_forward():
    case = measure_small("backward")
    assert all(row.seconds for row in case.rows if row.status == "ok")


def test_foreign_files_are_left_alone(tmp_path):
    path = tmp_path / "cpu.json"
    write_json(path, {"thesis": 1})
    with pytest.raises(CheckpointError, match="must hold a record of kind 'benchmark'"):
        call(SMALL, path)
    assert read_json(path) == {"thesis": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": (0,)}, "length must be 1 or more"),
        ({"seconds": float("nan")}, "seconds must be a finite number from 0"),
        ({"dtypes": ("float16",)}, "float32 or bfloat16 on a CPU"),
    ],
)
def test_settings_that_cannot_be(change, message):
    with pytest.raises(ConfigError, match=message):
        session.plan(replace(SMALL, **change))
