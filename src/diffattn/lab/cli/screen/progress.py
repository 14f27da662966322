"""Progress with the time left, on stderr: bars on a terminal, a line now and then elsewhere."""

import math
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 20.0


class StderrBars:
    """Progress on stderr: bars on a terminal, elsewhere a line every 20 seconds at most."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bars: Progress | None = None
        self.last_line = -math.inf

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self.bars is not None:
            self.bars.stop()

    def _start(self, *columns: TextColumn) -> None:
        if self.console.is_terminal:
            name, left = TextColumn("{task.description}", markup=False), TimeRemainingColumn()
            self.bars = Progress(name, BarColumn(), *columns, left, console=self.console)
            self.bars.start()

    def _is_due(self, now: float, *, always: bool = False) -> bool:
        if not always and now - self.last_line < _SECONDS_BETWEEN_LINES:
            return False
        self.last_line = now
        return True

    def on_message(self, line: str) -> None:
        """Print one line."""
        if self.bars is not None:
            self.bars.console.print(line, highlight=False, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)


class RunsProgress(StderrBars):
    """Steps of one or several runs, and the time until all are done.

    ``finished_before`` steps are those of earlier calls; ``steps_of`` gives the steps of a run by
    its name. ``quiet`` draws no bars, as another process of the same run draws them.
    """

    def __init__(
        self,
        total: int,
        finished_before: int,
        steps_of: Callable[[str], int],
        *,
        quiet: bool = False,
    ) -> None:
        super().__init__()
        self.total, self.finished_before, self.steps_of = total, finished_before, steps_of
        self.quiet = quiet
        self.steps: dict[str, int] = {}
        self.resumed_at: dict[str, int] = {}
        self.began: float | None = None
        self.shown = -1
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "RunsProgress":
        if not self.quiet:
            steps = TextColumn("{task.completed:.0f}/{task.total:.0f} steps")
            self._start(steps, TextColumn("{task.fields[note]}"))
        if self.bars is not None:
            self.tasks["all"] = self.bars.add_task(
                "all runs", total=self.total, completed=self.finished_before, note=""
            )
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Turn an interruption into ``Terminated`` with the step at which the run stopped."""
        from diffattn.lab.training.monitoring.termination import INTERRUPTED, Terminated

        super().__exit__(kind, error, trace)
        if not isinstance(error, KeyboardInterrupt | Terminated):
            return
        state = getattr(error, "state", str(error))
        if self.steps and not state:
            state = f"stopped after {self._done():,} of {self.total:,} steps"
        raise Terminated(state, getattr(error, "status", INTERRUPTED)) from None

    def on_progress(self, name: str, event: dict[str, Any]) -> None:
        """Show one event of a run, by its keys: ``step`` and ``loss``, ``message``, or ``done``.

        ``total`` sets the number of steps of all runs anew. Other keys are not shown.
        """
        if "message" in event:
            self.on_message(f"{name}: {event['message']}")
        if "total" in event:
            self.total = event["total"]
            if self.bars is not None:
                self.bars.update(self.tasks["all"], total=self.total)
        if "step" in event:
            # Time counts from the first event, so that the start-up of a run does not count.
            self.began = time.monotonic() if self.began is None else self.began
        step = event.get("step", self.steps_of(name) if event.get("done") else None)
        if step is not None:
            self.resumed_at.setdefault(name, step)
            self.steps[name] = step
        if name in self.steps:
            self._draw(name, event.get("loss"))

    def _done(self) -> int:
        return self.finished_before + sum(self.steps.values())

    def _draw(self, name: str, loss: float | None) -> None:
        done = self._done()
        self.total = max(self.total, done)  # a learning-rate sweep may add runs
        note = "" if loss is None else f"loss {loss:.3f}"
        if self.bars is not None:
            total = self.steps_of(name)
            if name not in self.tasks:
                self.tasks[name] = self.bars.add_task(name, total=total, note=note)
            is_done = self.steps[name] >= total
            self.bars.update(
                self.tasks[name], completed=self.steps[name], note=note, visible=not is_done
            )
            self.bars.update(self.tasks["all"], completed=done)
            return
        now = time.monotonic()
        if done <= self.shown or not self._is_due(now, always=done >= self.total):
            return
        self.shown = done
        measured = done - self.finished_before - sum(self.resumed_at.values())
        if done >= self.total:
            left = ""
        elif self.began is None or measured <= 0:
            left = ", time left unknown"
        else:
            seconds = (now - self.began) / measured * (self.total - done)
            left = f", about {duration(seconds)} left"
        line = f"{done}/{self.total} steps ({done / self.total:.0%}){left}; {name} {note}"
        self.on_message(line.rstrip())


class ItemProgress(StderrBars):
    """Items done, items in all and the time left, for ``parts`` evaluations one after the other.

    A terminal shows a bar, and a line when an evaluation ends. Elsewhere there is a line at its
    begin and end, and at most one every 20 seconds in between.
    """

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.tasks: dict[str, TaskID] = {}
        self.order: dict[str, int] = {}
        self.began: dict[str, tuple[float, int]] = {}

    def __enter__(self) -> "ItemProgress":
        self._start(TextColumn("{task.fields[note]}"))
        return self

    def on_start(self, name: str) -> None:
        """Show that the items of evaluation ``name`` are being prepared."""
        title = self._title(name)
        if self.bars is not None:
            for before in self.tasks.values():  # bars of evaluations that could not run
                self.bars.remove_task(before)
            self.tasks = {name: self.bars.add_task(f"{title}, preparing", total=None, note="")}
        else:
            self.on_message(f"{title}: preparing")
            self.last_line = time.monotonic()

    def on_progress(self, name: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` items of evaluation ``name`` are done."""
        now, title = time.monotonic(), self._title(name)
        is_new = name not in self.began
        began, before = self.began.setdefault(name, (now, done))  # items of earlier calls
        if self.bars is not None:
            if name not in self.tasks:
                self.tasks[name] = self.bars.add_task(title, total=total, note="")
            note = f"{done:,}/{total:,} items"
            self.bars.update(
                self.tasks[name], description=title, completed=done, total=total, note=note
            )
            if done >= total:  # a line instead of a bar: many bars would not fit the screen
                self.bars.remove_task(self.tasks.pop(name))
                self.on_message(f"{title}: {total:,} items, {duration(now - began)}")
        elif self._is_due(now, always=done >= total or is_new):
            left = ""
            if before < done < total:
                left = f", about {duration((now - began) / (done - before) * (total - done))} left"
            self.on_message(f"{title}: {done:,}/{total:,} items{left}")

    def _title(self, name: str) -> str:
        """For example ``"2 of 4: base/needle"``, numbered in the order in which they begin."""
        number = self.order.setdefault(name, len(self.order) + 1)
        return f"{number} of {self.parts}: {name}"


class ByteProgress(StderrBars):
    """Bytes done, and the time left if the total number of bytes is known."""

    def __init__(self, activity: str) -> None:
        super().__init__()
        self.title = activity
        self.task: TaskID | None = None
        self.began: tuple[float, int] | None = None

    def __enter__(self) -> "ByteProgress":
        self._start(TextColumn("{task.fields[note]}"))
        self.last_line = time.monotonic()  # a short activity needs no line
        return self

    def on_progress(self, done: int, total: int | None, num_tokens: int | None = None) -> None:
        """Show ``done`` of ``total`` bytes that were written, or with ``num_tokens`` packed."""
        now, is_read = time.monotonic(), num_tokens is not None
        note = f"{num_tokens:,} tokens" if is_read else f"{done:,}/{total:,} bytes"
        if self.bars is not None:
            if self.task is None:
                self.task = self.bars.add_task(self.title, total=total, note=note)
            self.bars.update(self.task, completed=done, note=note)
            return
        # Bytes of an interrupted earlier call come first and are not timed.
        began, before = self.began = self.began or (now, done)
        if self._is_due(now):
            if total and before < done <= total:
                note += f", {done / total:.0%} read" if is_read else ""
                left = (now - began) / (done - before) * (total - done)
                note += f", about {duration(left)} left"
            self.on_message(f"{self.title}: {note}")


def duration(seconds: float) -> str:
    """A duration in words: ``"1 h 05 min"``, ``"3 min 20 s"`` or ``"12 s"``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
