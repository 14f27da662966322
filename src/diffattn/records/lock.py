"""One writer per folder."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from diffattn.errors import CheckpointError
from diffattn.records.io import make_folder


class BusyError(CheckpointError):
    """Another process is at work in a folder."""


@contextlib.contextmanager
def sole_writer(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder, so that no second process writes into it meanwhile.

    The hold ends with the process, however it ends, and leaves no file.

    Args:
        folder: The folder; made if missing.
        wait: Whether to wait until no other process holds it.

    Raises:
        CheckpointError: It is a file.
        BusyError: Another process holds the folder, and it is not waited for.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder}: must be a folder, got a file. Choose another --out.")
    make_folder(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        _hold(handle, folder, wait)
        yield
    finally:
        os.close(handle)


def _hold(handle: int, folder: Path, wait: bool) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        raise BusyError(
            f"{folder}: one process at a time may write here, got another one at work."
        ) from error
    except OSError:
        pass  # some network file systems have no locks
