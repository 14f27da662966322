"""Progress with time left: bars on a terminal, sparse lines elsewhere. Always on stderr."""

import math
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

_SECONDS_BETWEEN_LINES = 20.0


class StderrBars:
    """Bars on a terminal, lines elsewhere. Always on stderr."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bars: Progress | None = None
        self.last_line = -math.inf

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bars is not None:
            self.bars.stop()

    def _start(self, *columns: ProgressColumn) -> None:
        """Show bars if a terminal reads along."""
        if self.console.is_terminal:
            name, left = TextColumn("{task.description}", markup=False), TimeRemainingColumn()
            self.bars = Progress(name, BarColumn(), *columns, left, console=self.console)
            self.bars.start()

    def on_message(self, line: str) -> None:
        """Show one line."""
        if self.bars is not None:
            self.bars.console.print(line, highlight=False, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)


class RunsProgress(StderrBars):
    """Steps of one or several runs, and the time until all are done.

    Args:
        total_steps: Steps of all runs together.
        done_steps: Steps that earlier calls have finished already.
        steps_of: Name of a run to its steps.
        quiet: Draw no bars: another process of the same run does.
    """

    def __init__(
        self,
        total_steps: int,
        done_steps: int,
        steps_of: Callable[[str], int],
        *,
        quiet: bool = False,
    ) -> None:
        super().__init__()
        self.quiet = quiet
        self.total = total_steps
        self.steps_of = steps_of
        self.finished_before = done_steps
        self.steps: dict[str, int] = {}
        self.resumed_at: dict[str, int] = {}
        self.began: float | None = None
        self.shown = -1
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "RunsProgress":
        steps = TextColumn("{task.completed:.0f}/{task.total:.0f} steps")
        if self.quiet:
            return self
        self._start(steps, TextColumn("{task.fields[note]}"))
        if self.bars is not None:
            self.tasks["all"] = self.bars.add_task(
                "all runs", total=self.total, completed=self.finished_before, note=""
            )
        return self

    def on_progress(self, name: str, event: dict[str, Any]) -> None:
        """Take one event of a run: ``step`` and ``loss``, ``message``, ``done`` or ``error``.

        Or ``total``: the steps of all runs, where the first of them decided how many there are.
        """
        if "message" in event:
            self.on_message(f"{name}: {event['message']}")
        if "total" in event:
            self.total = event["total"]
            if self.bars is not None:
                self.bars.update(self.tasks["all"], total=self.total)
        if "step" in event:
            # The first steps of a run are not timed: they come with its start-up.
            self.began = time.monotonic() if self.began is None else self.began
            self.resumed_at.setdefault(name, event["step"])
            self.steps[name] = event["step"]
        elif event.get("done"):
            self.resumed_at.setdefault(name, self.steps_of(name))
            self.steps[name] = self.steps_of(name)
        if name in self.steps:
            self._draw(name, event.get("loss"))

    def _draw(self, name: str, loss: float | None) -> None:
        done = self.finished_before + sum(self.steps.values())
        self.total = max(self.total, done)  # a sweep of learning rates may grow
        note = "" if loss is None else f"loss {loss:.3f}"
        if self.bars is not None:
            if name not in self.tasks:
                self.tasks[name] = self.bars.add_task(name, total=self.steps_of(name), note=note)
            self.bars.update(self.tasks[name], completed=self.steps[name], note=note)
            self.bars.update(self.tasks["all"], completed=done)
            if self.steps[name] >= self.steps_of(name):
                self.bars.update(self.tasks[name], visible=False)
            return
        now = time.monotonic()
        is_new = done > self.shown
        if not is_new or (now - self.last_line < _SECONDS_BETWEEN_LINES and done < self.total):
            return
        self.last_line, self.shown = now, done
        left = f", {self._time_left(done, now)}" if done < self.total else ""
        line = f"{done}/{self.total} steps ({done / self.total:.0%}){left}; {name} {note}"
        print(line.rstrip(), file=sys.stderr, flush=True)

    def _time_left(self, done: int, now: float) -> str:
        measured = done - self.finished_before - sum(self.resumed_at.values())
        if self.began is None or measured <= 0:
            return "time left unknown"
        return f"about {duration((now - self.began) / measured * (self.total - done))} left"


class _Items(TextColumn):
    """``12/60 items``; nothing as long as their number is not known."""

    def render(self, task: Task) -> Text:
        known = "" if task.total is None else f"{task.completed:,.0f}/{task.total:,.0f} items"
        return Text(known)


class ItemProgress(StderrBars):
    """Items done, items in all and the time left, for each of several evaluations in turn.

    On a terminal a bar, and a line when one ends. Elsewhere a line when one begins and when it
    ends, and sparse lines in between.

    Args:
        parts: Evaluations in all.
    """

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.tasks: dict[str, TaskID] = {}
        self.order: dict[str, int] = {}
        self.began: dict[str, tuple[float, int]] = {}

    def __enter__(self) -> "ItemProgress":
        self._start(_Items(""))
        return self

    def on_start(self, name: str) -> None:
        """Show that the items of evaluation ``name`` are being prepared."""
        title = self._title(name)
        if self.bars is not None:
            for before in self.tasks.values():  # those that could not run
                self.bars.remove_task(before)
            self.tasks.clear()
            self.tasks[name] = self.bars.add_task(f"{title}, preparing", total=None)
        else:
            self.on_message(f"{title}: preparing")
            self.last_line = time.monotonic()

    def on_progress(self, name: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` items of evaluation ``name`` are done."""
        now = time.monotonic()
        is_new = name not in self.began
        began, before = self.began.setdefault(name, (now, done))  # what was done costs nothing
        title = self._title(name)
        if self.bars is not None:
            if name not in self.tasks:
                self.tasks[name] = self.bars.add_task(title, total=total)
            self.bars.update(self.tasks[name], description=title, completed=done, total=total)
            if done >= total:  # a line: bars of many evaluations would not fit the screen
                self.bars.remove_task(self.tasks.pop(name))
                self.on_message(f"{title}: {total:,} items, {duration(now - began)}")
            return
        ended = done >= total
        if not (ended or is_new or now - self.last_line >= _SECONDS_BETWEEN_LINES):
            return
        self.last_line = now
        left = ""
        if not ended and done > before:
            left = f", about {duration((now - began) / (done - before) * (total - done))} left"
        self.on_message(f"{title}: {done:,}/{total:,} items{left}")

    def _title(self, name: str) -> str:
        """``"2 of 4: base/needle"``: counted in the order in which they were first named."""
        number = self.order.setdefault(name, len(self.order) + 1)
        return f"{number} of {self.parts}: {name}"


class ByteProgress(StderrBars):
    """Bytes done, and the time until all are where their number is known.

    Args:
        title: What is done, as in ``"writing"``.
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title
        self.task: TaskID | None = None
        self.began: tuple[float, int] | None = None

    def __enter__(self) -> "ByteProgress":
        self._start(TextColumn("{task.fields[note]}"))
        self.last_line = time.monotonic()  # what is soon done needs no line
        return self

    def on_progress(self, done: int, total: int | None, num_tokens: int | None = None) -> None:
        """Show that ``done`` of ``total`` bytes are done, or read and made so many tokens."""
        now, read = time.monotonic(), num_tokens is not None
        note = f"{num_tokens:,} tokens" if read else f"{done:,}/{total:,} bytes"
        if self.bars is not None:
            if self.task is None:
                self.task = self.bars.add_task(self.title, total=total, note=note)
            self.bars.update(self.task, completed=done, note=note)
            return
        # What an interrupted call had packed is read before the first batch, and not timed.
        began, before = self.began = self.began or (now, done)
        if now - self.last_line < _SECONDS_BETWEEN_LINES:
            return
        self.last_line = now
        if total and before < done <= total:
            note += f", {done / total:.0%} read" if read else ""
            note += f", about {duration((now - began) / (done - before) * (total - done))} left"
        self.on_message(f"{self.title}: {note}")


def duration(seconds: float) -> str:
    """``"1 h 05 min"``, ``"3 min 20 s"`` or ``"12 s"``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
