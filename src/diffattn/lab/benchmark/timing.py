"""Interleaved timing: every contender in every round, in rotating order, after a warm-up."""

import gc
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import torch

from diffattn.errors import DiffAttnError
from diffattn.lab.records.results import Spread

_SHORTEST_SAMPLE = 5e-3  # seconds; in a longer sample the clock's own cost does not matter
_MOST_ROUNDS = 50
_FLUSHED_BYTES = 512 * 2**20  # several times the L2 cache
_HOST_RUNS = 15
_WAITED_CYCLES = 4_000_000  # GPU clock cycles: about 2 ms


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """A timed step ``run``, which gets the result of ``prepare``, which is not timed."""

    run: Callable[[Any], object]
    prepare: Callable[[], Any] | None = None


class CpuTimer:
    """Processor time of this process, of one thread: other load on the machine does not count."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self.clock = clock

    def sample(self, timed: Timed, repeats: int) -> float:
        """Seconds of one run, averaged over ``repeats`` runs in a row."""
        prepared = timed.prepare() if timed.prepare else None
        began = self.clock()
        for _ in range(repeats):
            timed.run(prepared)
        return (self.clock() - began) / repeats

    def repeats(self, seconds: float, timed: Timed) -> int:
        """Number of runs in a row for one sample of 5 ms, if a run takes ``seconds``."""
        if timed.prepare:  # a run uses up its result
            return 1
        return max(1, math.ceil(_SHORTEST_SAMPLE / max(seconds, 1e-7)))


class CudaTimer:
    """Time on the device, by CUDA events around one run; the L2 cache is flushed before it.

    Launches are queued while the device waits 2 ms, so the time of Python and the driver does not
    count, unless queueing takes longer.
    """

    def __init__(self) -> None:
        self.flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.int8, device="cuda")

    def sample(self, timed: Timed, repeats: int) -> float:
        """Seconds of one run."""
        prepared = timed.prepare() if timed.prepare else None
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flushed.zero_()
        torch.cuda._sleep(_WAITED_CYCLES)
        begin.record()
        timed.run(prepared)
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def repeats(self, seconds: float, timed: Timed) -> int:
        """One run, since repeated runs would find their inputs in the cache."""
        return 1


Timer = CpuTimer | CudaTimer


def host_time(timed: Timed, clock: Callable[[], float] = time.perf_counter) -> float | None:
    """Median seconds until a run is queued on an idle device; ``None`` if it fails."""
    samples = []
    try:
        for _ in range(_HOST_RUNS):
            prepared = timed.prepare() if timed.prepare else None
            torch.cuda.synchronize()
            began = clock()
            timed.run(prepared)
            samples.append(clock() - began)
        torch.cuda.synchronize()
    except RuntimeError:  # the row keeps its time on the device
        return None
    return median(samples)


def timer_of(device: str) -> Timer:
    """The clock of a device."""
    return CudaTimer() if device == "cuda" else CpuTimer()


def interleave(
    timed: Mapping[str, Timed],
    timer: Timer,
    *,
    rounds: int,
    seconds: float,
    on_failure: Callable[[str, Exception], None],
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, list[float]]:
    """Time all contenders in rounds, each once per round.

    Each round starts with the next contender, so that none always follows the same one. Slow drift
    (clock frequency, other load) affects all contenders alike and cancels in ratios of a round.

    Args:
        rounds: Fewest rounds.
        seconds: After this time, or after 50 rounds, no further round starts.
        on_failure: Called with the name and the error of a contender that raised, or during whose
            run the clock did not move. It is left out of the result.
    """
    samples: dict[str, list[float]] = {name: [] for name in timed}

    def sample(name: str, repeats: int | None = None) -> float | None:
        try:
            run_seconds = timer.sample(timed[name], repeats or 1)
            if repeats and not run_seconds:  # a warm-up may be shorter than the clock's step
                raise DiffAttnError("the clock did not move in a run")
            return run_seconds
        except Exception as error:
            del samples[name]
            on_failure(name, error)
            return None

    # The warm-up also gives the number of runs per sample.
    warm_up = {name: sample(name) for name in timed}
    repeats = {name: timer.repeats(s, timed[name]) for name, s in warm_up.items() if s is not None}
    gc.collect()
    gc.disable()
    try:
        began, done, names = clock(), 0, list(timed)
        while done < rounds or (done < _MOST_ROUNDS and clock() - began < seconds):
            turn = done % max(1, len(names))
            for name in names[turn:] + names[:turn]:
                run_seconds = sample(name, repeats[name]) if name in samples else None
                if run_seconds is not None:
                    samples[name].append(run_seconds)
            done += 1
    finally:
        gc.enable()
    return samples


def spread(values: list[float]) -> Spread:
    """Median, quartiles and extremes of values, one per round."""
    quarters = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return Spread(
        median=median(values),
        low=quarters[0],
        high=quarters[2],
        minimum=min(values),
        maximum=max(values),
        rounds=len(values),
    )


def ratios(values: list[float], baseline: list[float]) -> Spread:
    """Spread of the ratios of value to baseline in each round."""
    return spread([a / b for a, b in zip(values, baseline, strict=True)])


def matmul_peak(dtype: torch.dtype, device: str, timer: Timer) -> float:
    """Rate of the fastest plain square matrix product, in floating-point operations per second."""
    sizes = (4_096, 8_192) if device == "cuda" else (512, 1_024, 2_048)
    best = 0.0
    for size in sizes:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        timed = Timed(run=lambda _, a=a, b=b, out=out: torch.mm(a, b, out=out))  # type: ignore[misc]
        repeats = timer.repeats(timer.sample(timed, 1), timed)
        fastest = min(timer.sample(timed, repeats) for _ in range(3))
        if fastest > 0:  # 0: the product was shorter than the clock's resolution
            best = max(best, 2 * size**3 / fastest)
    return best
