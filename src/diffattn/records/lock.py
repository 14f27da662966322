"""One writer per folder."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from diffattn.errors import CheckpointError
from diffattn.records.destination import require_folder_destination
from diffattn.records.io import make_folder
from diffattn.records.temporary import clean_leftovers


class BusyError(CheckpointError):
    """Another process is at work in a folder."""


@contextlib.contextmanager
def sole_writer(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder, so that no second process writes into it meanwhile.

    The hold ends with the process, however it ends, and leaves no file. Temporary files that a
    process before has left are removed.

    Args:
        folder: The folder; made if missing, with its parents; removed again if nothing was written.
        wait: Whether to wait until no other process holds it.

    Raises:
        ConfigError: Something else lies there.
        BusyError: Another process holds the folder, and it is not waited for.
    """
    folder = Path(folder)
    require_folder_destination(folder)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    handle = _held(folder, wait)
    try:
        clean_leftovers(folder)
        yield
    finally:
        with contextlib.suppress(OSError):  # the first that is not empty
            for path in missing:
                path.rmdir()
        os.close(handle)


def _held(folder: Path, wait: bool) -> int:
    """A handle of the folder, locked."""
    while True:
        make_folder(folder)
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            os.close(handle)
            raise BusyError(
                f"{folder}: must be written by one process at a time, got another one at work."
            ) from error
        except OSError:
            return handle  # some network file systems have no locks
        # The process before may have removed the folder that it held.
        if folder.exists() and os.path.samestat(os.fstat(handle), folder.stat()):
            return handle
        os.close(handle)
