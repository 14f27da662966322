"""Interleaving, repeats and ratios, on a fake clock: no test here measures time."""

import pytest
import torch

from diffattn.lab.benchmark.timing import (
    CpuTimer,
    CudaTimer,
    Timed,
    host_time,
    interleave,
    matmul_peak,
    ratios,
    spread,
)
from diffattn.lab.records.results import Spread

FAILS = {"on_failure": lambda name, error: pytest.fail(str(error))}


class Clock:
    """Time that only work moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def work(self, seconds, log=None, name=None):
        def run(_):
            self.now += seconds
            if log is not None:
                log.append(name)

        return run


def test_every_contender_runs_in_every_round_and_starts_in_turn():
    clock, log = Clock(), []
    timed = {name: Timed(run=clock.work(0.01, log, name)) for name in "abc"}
    samples = interleave(timed, CpuTimer(clock), rounds=3, seconds=0, clock=clock, **FAILS)
    assert "".join(log) == "abc" + "abc" + "bca" + "cab"  # the first is the warm-up
    assert {name: len(values) for name, values in samples.items()} == {"a": 3, "b": 3, "c": 3}


def test_rounds_follow_the_budget_between_their_limits():
    clock = Clock()
    timed = {"a": Timed(run=clock.work(1.0))}
    for seconds, rounds in ((0, 3), (7.5, 8), (1e9, 50)):
        samples = interleave(
            timed, CpuTimer(clock), rounds=3, seconds=seconds, clock=clock, **FAILS
        )
        assert len(samples["a"]) == rounds


def test_short_runs_are_repeated_and_averaged():
    clock = Clock()
    timer, timed = CpuTimer(clock), Timed(run=clock.work(0.001))
    assert (timer.repeats(0.001, timed), timer.repeats(1.0, timed)) == (5, 1)
    assert timer.sample(timed, 5) == pytest.approx(0.001)


def test_a_clock_that_does_not_move_in_a_round_has_measured_nothing():
    clock, failed = Clock(), {}
    timed = {"still": Timed(run=clock.work(0.0)), "moves": Timed(run=clock.work(0.01))}
    samples = interleave(
        timed, CpuTimer(clock), rounds=2, seconds=0, clock=clock, on_failure=failed.setdefault
    )
    assert samples == {"moves": pytest.approx([0.01, 0.01])}
    assert "clock did not move" in str(failed["still"])


def test_preparation_is_not_timed_and_not_shared():
    clock, made = Clock(), []

    def prepare():
        clock.now += 100
        made.append(object())
        return made[-1]

    timed = Timed(prepare=prepare, run=clock.work(0.001))
    timer = CpuTimer(clock)
    assert timer.repeats(0.001, timed) == 1
    assert timer.sample(timed, 1) == pytest.approx(0.001)
    assert len(made) == 1


def test_a_gpu_is_kept_waiting_while_its_launches_are_queued(monkeypatch):
    log = []

    class Event:
        def __init__(self, enable_timing):
            self.name = ("begin", "end")[sum(x == "event" for x in log)]
            log.append("event")

        def record(self):
            log.append(self.name)

        def elapsed_time(self, other):
            assert log[-1] == "synchronize"
            return 3.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: log.append("wait"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("synchronize"))
    timer = object.__new__(CudaTimer)
    timer.flushed = type("Flushed", (), {"zero_": lambda self: log.append("flush")})()
    timed = Timed(prepare=lambda: log.append("prepare"), run=lambda _: log.append("run"))
    assert timer.sample(timed, 1) == pytest.approx(3e-3)
    assert [x for x in log if x != "event"] == [
        "prepare", "flush", "wait", "begin", "run", "end", "synchronize",
    ]  # fmt: skip


def test_a_contender_that_fails_in_a_round_is_left_out_of_all():
    clock, failed, runs = Clock(), [], []

    def fails(_):
        runs.append(1)
        if len(runs) == 3:
            raise TypeError("no descriptor")

    timed = {"a": Timed(run=clock.work(0.01)), "b": Timed(run=fails), "c": Timed(run=clock.work(1))}
    options = {"rounds": 4, "seconds": 0, "clock": clock}
    samples = interleave(
        timed, CpuTimer(clock), on_failure=lambda name, error: failed.append((name, str(error))),
        **options,
    )  # fmt: skip
    assert {name: len(values) for name, values in samples.items()} == {"a": 4, "c": 4}
    assert failed == [("b", "no descriptor")]


def test_spread_and_ratios_by_round():
    summary = spread([4.0, 1.0, 3.0, 2.0, 5.0])
    assert summary == Spread(minimum=1, low=2, median=3, high=4, maximum=5, rounds=5)
    assert spread([2.0]).high == 2.0
    # A machine that slows down meets both alike.
    drifting = [1.0, 2.0, 4.0]
    assert ratios([2 * x for x in drifting], drifting).maximum == 2.0


def test_matmul_peak_counts_two_operations_per_multiply_add(monkeypatch):
    class Fixed:
        def repeats(self, seconds, timed):
            return 1

        def sample(self, timed, repeats):
            timed.run(None)
            return 0.5

    monkeypatch.setattr(torch, "mm", lambda a, b, out: out)
    assert matmul_peak(torch.float32, "cpu", Fixed()) == 2 * 2_048**3 / 0.5


def test_the_hosts_time_is_the_median_until_a_run_is_queued(monkeypatch):
    now, waits = [0.0], []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))

    def run(prepared):
        now[0] += prepared

    timed = Timed(prepare=iter([9.0, *[2.0] * 14]).__next__, run=run)
    assert host_time(timed, lambda: now[0]) == 2.0
    assert len(waits) == 16

    def broken(prepared):
        raise RuntimeError("out of memory")

    assert host_time(Timed(run=broken)) is None
