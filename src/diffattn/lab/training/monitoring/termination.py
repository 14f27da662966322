"""Runs that are asked to end: by SIGTERM, which a scheduler sends, or by Ctrl-C."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STATUS, INTERRUPTED = 128 + signal.SIGTERM, 128 + signal.SIGINT
"""Exit status of a command that SIGTERM or Ctrl-C ended, as a shell counts: 143 and 130."""


class Terminated(SystemExit):
    """The process was asked to end, and has saved its work.

    Args:
        state: The saved state in words, for the command line; empty if it is not known.
        status: Exit status of the process.
    """

    def __init__(self, state: str = "", status: int = STATUS) -> None:
        super().__init__(status)
        self.state, self.status = state, status


def in_main_thread() -> bool:
    """Whether signals can be handled here."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise :class:`Terminated` on SIGTERM in a process that only waits; a second one kills."""
    if not in_main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
