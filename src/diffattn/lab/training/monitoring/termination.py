"""SIGTERM, which a scheduler sends before it takes a machine away."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STATUS = 128 + signal.SIGTERM
"""Exit status of a command that SIGTERM ended, as a shell counts: 143."""


class Terminated(SystemExit):
    """The process was asked to end, and has saved its work.

    Args:
        line: Printed by the command line.
    """

    def __init__(self, line: str) -> None:
        super().__init__(STATUS)
        self.line = line


def in_main_thread() -> bool:
    """Whether signals can be handled here."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise :class:`Terminated` on SIGTERM, in a process that only waits for others.

    A second signal ends it at once.
    """
    if not in_main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated("terminated. What was finished is kept: run the same command again.")

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
