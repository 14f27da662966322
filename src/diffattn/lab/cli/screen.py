"""What the terminal shows: tables, and progress with the time left."""

import math
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

_SECONDS_BETWEEN_LINES = 20.0
# In a file or a pipe, long rows are better than wrapped ones.
_WIDTH_ELSEWHERE = 160
_WIDEST_TEXT = 100
_GAP = 3
"""Columns of space between two columns of a table."""


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows under the keys of the first row. On a narrow screen cells wrap.

    Without rows nothing is printed.
    """
    if not rows:
        return
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=_WIDTH_ELSEWHERE)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    name, *others = (key.replace("_", " ") for key in rows[0])
    lines = [[_cell(value) for value in row.values()] for row in rows]
    columns = list(zip(*lines, strict=True))[1:]
    longest = [
        max(len(word) for text in (head, *column) for word in text.split() or [""])
        for head, column in zip(others, columns, strict=True)
    ]
    # Words are kept whole if every column has room for its longest word.
    room = console.width - max(len(line[0]) for line in lines) - _GAP * len(rows[0])
    fits = sum(longest) <= room
    # Names, which users type, do not wrap if there is room. Text() reads no markup: a name may hold
    # brackets.
    table.add_column(Text(name), overflow="fold", no_wrap=room >= len(others))
    for head, column in zip(others, columns, strict=True):
        one_word = not any(" " in text or "\n" in text for text in (head, *column))
        table.add_column(Text(head), overflow="fold", no_wrap=fits and one_word)
    for line in lines:
        table.add_row(*map(Text, line))
    console.print(table)


def print_groups(groups: Mapping[str, Sequence[tuple[str, ...]]]) -> None:
    """Print titles with rows below; the last cell of a row wraps within its column."""
    console = Console()
    width = min(console.width, _WIDEST_TEXT)
    for number, (title, rows) in enumerate(groups.items()):
        *columns, _ = zip(*rows, strict=True)
        widths = [max(map(len, column)) + 2 for column in columns]
        lines = [""] * (number > 0) + textwrap.wrap(title, width)
        for *cells, text in rows:
            begin = "  " + "".join(f"{cell:<{n}}" for cell, n in zip(cells, widths, strict=True))
            indent = " " * min(len(begin), width // 2)
            lines += textwrap.wrap(
                begin + text, width, subsequent_indent=indent, break_on_hyphens=False
            )
        console.print("\n".join(lines), markup=False, highlight=False)


def print_text(sentences: Iterable[str]) -> None:
    """Print sentences, each beginning on a new line."""
    console = Console()
    width = min(console.width, _WIDEST_TEXT)
    lines = [textwrap.fill(text, width, break_on_hyphens=False) for text in sentences]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


class StderrProgress:
    """Progress on stderr: bars on a terminal, elsewhere a line every 20 seconds at most.

    ``quiet`` draws no bars, as another process of the same run draws them.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        console = Console(stderr=True)
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
            speed_estimate_period=3_600,  # in seconds: a step may take minutes
            get_time=lambda: time.monotonic(),
        )
        self.last_line = -math.inf

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.bars.stop()

    def on_message(self, line: str) -> None:
        """Print one line."""
        if self.bars.disable:
            print(line, file=sys.stderr, flush=True)
        else:
            self.bars.console.print(line, highlight=False, markup=False)

    def _add(self, name: str, total: float | None, completed: int = 0) -> Task:
        """A new bar. The first update is not timed: earlier calls may have done its steps."""
        task = self.bars.add_task(name, total=total, completed=completed, note="")
        return next(entry for entry in self.bars.tasks if entry.id == task)

    def _print(self, task: Task, line: str, end: str = "", *, always: bool = False) -> None:
        """Print a line with the time left if there are no bars, and the last line is not recent."""
        now = time.monotonic()
        if self.bars.disable and (always or now - self.last_line >= _SECONDS_BETWEEN_LINES):
            self.last_line, left = now, timedelta(seconds=task.time_remaining or 0)
            self.on_message(line + (f", about {left} left" if left else "") + end)


class RunsProgress(StderrProgress):
    """Steps of one or several runs, and the time until all are done.

    ``finished_before`` steps are those of earlier calls; ``steps_of`` gives the steps of a run by
    its name.
    """

    def __init__(
        self, total: int, finished_before: int, steps_of: Callable[[str], int], quiet: bool = False
    ) -> None:
        super().__init__(quiet=quiet)
        self.steps_of = steps_of
        self.whole = self._add("all runs", total, finished_before)
        self.runs: dict[str, Task] = {}

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Turn an interruption into ``Terminated`` with the step at which the run stopped."""
        from diffattn.lab.training.monitoring.termination import INTERRUPTED, Terminated

        super().__exit__(kind, error, trace)
        if not isinstance(error, KeyboardInterrupt | Terminated):
            return
        state = getattr(error, "state", str(error))
        if self.runs and not state:
            state = f"stopped after {self.whole.completed:,} of {self.whole.total:,} steps"
        raise Terminated(state, getattr(error, "status", INTERRUPTED)) from None

    def on_progress(self, name: str, event: dict[str, Any]) -> None:
        """Show one event of a run, by its keys: ``step`` and ``loss``, ``message``, or ``done``.

        ``total`` sets the number of steps of all runs anew. Other keys are not shown.
        """
        if "message" in event:
            self.on_message(f"{name}: {event['message']}")
        if "total" in event:
            self.bars.update(self.whole.id, total=event["total"])
        step = event.get("step", self.steps_of(name) if event.get("done") else None)
        if step is None:
            return
        whole, is_first, is_new = self.whole, not self.runs, name not in self.runs
        if is_new:
            self.runs[name] = self._add(name, self.steps_of(name))
        run = self.runs[name]
        advance = step - run.completed
        if is_new and not is_first:  # steps of an earlier call: not timed
            whole.completed += advance
        elif is_new or advance:
            self.bars.update(whole.id, advance=advance)
        else:
            return
        if whole.completed > (whole.total or 0):  # a learning-rate sweep may add runs
            whole.total = whole.completed
        loss = "" if event.get("loss") is None else f"loss {event['loss']:.3f}"
        note = f"{step}/{run.total} steps  {loss}"
        self.bars.update(run.id, completed=step, note=note, visible=step < (run.total or 0))
        counts = f"{whole.completed}/{whole.total} steps"
        self.bars.update(whole.id, note=counts)
        line = f"{counts} ({whole.percentage:.0f}%)"
        self._print(whole, line, f"; {name} {loss}".rstrip(), always=whole.finished)


class ItemProgress(StderrProgress):
    """Items done, items in all and the time left, for ``parts`` evaluations one after the other.

    A terminal shows a bar, and a line when an evaluation ends. Elsewhere there is a line at its
    begin and end, and at most one every 20 seconds in between.
    """

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.numbers: dict[str, int] = {}
        self.name, self.title = "", ""

    def on_start(self, name: str) -> None:
        """Show that the items of evaluation ``name`` are being prepared."""
        for before in self.bars.task_ids:  # of an evaluation that could not run
            self.bars.remove_task(before)
        number = self.numbers.setdefault(name, len(self.numbers) + 1)
        self.name, self.title = name, f"{number} of {self.parts}: {name}"
        self.task = self._add(f"{self.title}, preparing", None)
        self._print(self.task, f"{self.title}: preparing", always=True)

    def on_progress(self, name: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` items of evaluation ``name`` are done."""
        if name != self.name:
            self.on_start(name)
        is_new = self.task.total is None
        note = f"{done:,}/{total:,} items"
        self.bars.update(
            self.task.id, description=self.title, completed=done, total=total, note=note
        )
        if done < total:
            self._print(self.task, f"{self.title}: {note}", always=is_new)
            return
        elapsed = timedelta(seconds=round(self.task.elapsed or 0))
        self.on_message(f"{self.title}: {total:,} items, {elapsed}")
        self.bars.remove_task(self.task.id)  # many bars would not fit the screen
        self.name = ""


class ByteProgress(StderrProgress):
    """Bytes done, and the time left if the total number of bytes is known."""

    def __init__(self, activity: str) -> None:
        super().__init__()
        self.task = self._add(activity, None)
        self.last_line = time.monotonic()  # a short activity needs no line

    def on_progress(self, done: int, total: int | None, num_tokens: int | None = None) -> None:
        """Show ``done`` of ``total`` bytes that were written, or with ``num_tokens`` packed."""
        note = f"{done:,}/{total:,} bytes" if num_tokens is None else f"{num_tokens:,} tokens"
        self.bars.update(self.task.id, total=total, completed=done, note=note)
        read = "" if num_tokens is None or not total else f", {done / total:.0%} read"
        self._print(self.task, f"{self.task.description}: {note}{read}")
