"""Progress over the items of one evaluation after the other. Always on stderr."""

import math
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from diffattn.cli.progress import duration

_SECONDS_BETWEEN_LINES = 20.0


class ItemProgress:
    """Items done, items in all and the time left, for each of several evaluations in turn.

    A bar each on a terminal. Elsewhere a line when one ends, and sparse lines in between.

    Args:
        parts: Evaluations in all.
    """

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.console = Console(stderr=True)
        self.bars: Progress | None = None
        self.tasks: dict[str, TaskID] = {}
        self.began: dict[str, tuple[float, int]] = {}
        self.last_line = -math.inf

    def __enter__(self) -> "ItemProgress":
        if self.console.is_terminal:
            self.bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f} items"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bars is not None:
            self.bars.stop()

    def say(self, line: str) -> None:
        """Show one line."""
        if self.bars is not None:
            self.bars.console.print(line, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def tell(self, name: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` items of evaluation ``name`` are done."""
        now = time.monotonic()
        is_new = name not in self.began
        began, before = self.began.setdefault(name, (now, done))  # what was done costs nothing
        title = f"{len(self.began)} of {self.parts}: {name}"
        if self.bars is not None:
            if is_new:
                self.tasks[name] = self.bars.add_task(title, total=total)
            self.bars.update(self.tasks[name], completed=done, total=total)
            return
        ended = done >= total
        if not (ended or is_new or now - self.last_line >= _SECONDS_BETWEEN_LINES):
            return
        self.last_line = now
        left = ""
        if not ended and done > before:
            left = f", about {duration((now - began) / (done - before) * (total - done))} left"
        self.say(f"{title}: {done:,}/{total:,} items{left}")
