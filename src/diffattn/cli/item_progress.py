"""Progress over the items of one evaluation after the other. Always on stderr."""

import time

from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from diffattn.cli.progress import StderrBars, duration

_SECONDS_BETWEEN_LINES = 20.0


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
        if self.console.is_terminal:
            self.bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                _Items(""),
                TimeRemainingColumn(),
                console=self.console,
            )
            self.bars.start()
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
