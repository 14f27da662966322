"""One writer per folder."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from diffattn.errors import CheckpointError


@contextlib.contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold an existing folder, so that no second process writes into it meanwhile.

    The hold ends with the process, however it ends, and leaves no file.

    Raises:
        CheckpointError: Another process holds the folder.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Other errors: some network file systems have no locks.
        with contextlib.suppress(OSError):
            _hold(handle, folder)
        yield
    finally:
        os.close(handle)


def _hold(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise CheckpointError(
            f"{folder}: one process at a time may write here, got another one at work."
        ) from error
