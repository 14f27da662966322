"""A search among options: check each, time the right ones side by side, take the fastest."""

import contextlib
import multiprocessing
import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from diffattn.lab.benchmark.checking import error_line
from diffattn.lab.benchmark.timing import spread
from diffattn.lab.records.results import Spread


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionResult:
    """The result of one option."""

    seconds: Spread | None = None
    """Seconds of one run; ``None`` if the option was refused."""
    refused: str | None = None
    """Why it was not timed."""


Option = TypeVar("Option")
OnFailure = Callable[[str, Exception], None]


def search(
    options: Mapping[str, Option],
    *,
    check: Callable[[Mapping[str, Option]], Mapping[str, str | None]],
    time: Callable[[Mapping[str, Option], OnFailure], Mapping[str, Sequence[float]]],
    why: Callable[[Option, Exception], str],
) -> dict[str, OptionResult]:
    """Time the options that are right, and return the results of all by name.

    Args:
        check: Given all of them, why each cannot be taken, ``None`` if it can. What it raises ends
            the search.
        time: Seconds of every round, by name; called once, with the options that passed and with
            what is to be told of each that raises.
        why: Why an option that raised in ``time`` cannot be taken. What it raises ends the search.
    """
    refusals = check(options)
    refused = {name: refusals[name] for name in options}
    right = {name: option for name, option in options.items() if refused[name] is None}

    def refuse(name: str, error: Exception) -> None:
        refused[name] = why(options[name], error)

    samples = time(right, refuse) if right else {}
    return {
        name: OptionResult(
            seconds=spread(list(samples[name])) if name in samples else None, refused=why
        )
        for name, why in refused.items()
    }


def best(results: Mapping[str, OptionResult], seed: str | None) -> str | None:
    """The fastest option by its median; ``None`` if every option was refused.

    The seed, which there was before, stays unless another one's median is below the seed's lower
    quartile: within what rounds differ by, nothing says that the other is faster.
    """
    seconds = {
        name: result.seconds for name, result in results.items() if result.seconds is not None
    }
    if not seconds:
        return None
    fastest = min(seconds, key=lambda name: seconds[name].median)
    if seed in seconds and not seconds[fastest].median < seconds[seed].low:
        return seed
    return fastest


@dataclass(frozen=True, kw_only=True, slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection

    def stop(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()

    def answer(self) -> tuple[str | None, bool]:
        """Why the option is refused, and whether this process can check another."""
        try:
            refused, usable = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return f"its check ended the process, exit status {self.process.exitcode}", False
        return refused, usable


class Checkers:
    """Processes that check options side by side, so that compilers use every core.

    What ends a process or takes too long is refused; another process goes on with the rest. Where
    no process has ever been of use, this one checks.

    Args:
        check: Why an option cannot be taken, ``None`` if it can; it is imported by every process.
            Where it raises, the option is refused and the process replaced.
        num: Processes at once. 0: this process checks, and what ``check`` raises ends it all.
        seconds: Time for one option, and for the start of a process.
    """

    def __init__(self, check: Callable[[Any], str | None], num: int, seconds: float) -> None:
        self.check, self.num, self.seconds = check, num, seconds
        self.idle: list[_Worker] = []
        self.useful = False

    def __call__(self, options: Mapping[str, Any]) -> dict[str, str | None]:
        """Why each option cannot be taken, ``None`` where it can."""
        if not self.num:
            return {name: self.check(option) for name, option in options.items()}
        left, busy = list(options.items()), dict[Connection, tuple[_Worker, str, float]]()
        refused: dict[str, str | None] = {}
        try:
            while left or busy:
                while left and len(busy) < self.num:
                    name, option = left.pop(0)
                    worker = self._waiting() or self._start()
                    with contextlib.suppress(BrokenPipeError):  # it has ended: its answer says so
                        worker.pipe.send(option)
                    busy[worker.pipe] = worker, name, clock.monotonic() + self.seconds
                soonest = min(until for *_, until in busy.values())
                ready = wait(list(busy), max(0.0, soonest - clock.monotonic()))
                for pipe, (worker, name, until) in list(busy.items()):
                    if pipe in ready:
                        refused[name], usable = worker.answer()
                    elif clock.monotonic() >= until:
                        refused[name], usable = f"not checked within {self.seconds:g} s", False
                    else:
                        continue
                    del busy[pipe]
                    if usable:
                        self.useful = True
                        self.idle.append(worker)
                    else:
                        worker.stop()
        finally:
            for worker, *_ in busy.values():
                worker.stop()
        if options and not self.useful:  # none could start, or the device takes one process only
            self.num = 0
            return self(options)
        return refused

    def close(self) -> None:
        """End the processes."""
        while self.idle:
            self.idle.pop().stop()

    def _waiting(self) -> _Worker | None:
        while self.idle:
            worker = self.idle.pop()
            if worker.process.is_alive():
                return worker
            worker.stop()
        return None

    def _start(self) -> _Worker:
        # Not forked: a process with a CUDA context cannot be.
        context = multiprocessing.get_context("spawn")
        parent_end, child_end = context.Pipe()
        process = context.Process(target=_work, args=(self.check, child_end), daemon=True)
        process.start()
        child_end.close()
        return _Worker(process=process, pipe=parent_end)


def _work(check: Callable[[Any], str | None], pipe: Connection) -> None:
    """Check one option after another, until the other end is closed or a check raises."""
    while True:
        try:
            option = pipe.recv()
        except EOFError:
            return
        try:
            answer = check(option)
        except Exception as error:
            pipe.send((error_line(error), False))
            return
        pipe.send((answer, True))
