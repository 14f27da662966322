"""Runs that are asked to end: by SIGTERM, which a scheduler sends, or by Ctrl-C."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STATUS, INTERRUPTED = 128 + signal.SIGTERM, 128 + signal.SIGINT
"""Exit status of a command that SIGTERM or Ctrl-C ended, as a shell counts: 143 and 130."""


class Terminated(SystemExit):
    """The process was asked to end, and has saved its work: ``state`` in words, if it is known."""

    def __init__(self, state: str = "", status: int = STATUS) -> None:
        super().__init__(status)
        self.state, self.status = state, status


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise :class:`Terminated` on SIGTERM in a process that only waits; a second one kills."""
    if threading.current_thread() is not threading.main_thread():  # it cannot handle signals
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
