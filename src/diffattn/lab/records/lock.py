"""One writer per folder."""

import contextlib
import fcntl
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from diffattn.errors import CheckpointError
from diffattn.files.destination import require_folder_destination
from diffattn.files.io import clean_leftovers, make_folder

LOCK = ".lock"
"""Name of the lock file in a folder. A killed process leaves it behind."""


class BusyError(CheckpointError):
    """Another process is at work in a folder."""


@contextlib.contextmanager
def sole_writer(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder, so that no second process writes into it.

    The lock is on a file, because network file systems pass file locks on to other machines. It
    ends with the process. A killed process leaves an empty ``.lock``, which the next process
    takes. Temporary files of earlier processes are removed. Without file locks there is a warning.
    A missing folder is made, and removed again if nothing was written.

    If another process holds the folder, this one waits with ``wait``, else raises ``BusyError``.
    """
    folder = Path(folder)
    require_folder_destination(folder)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    handle = _locked(folder, wait)
    try:
        clean_leftovers(folder)
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder may have been removed
            (folder / LOCK).unlink()
        os.close(handle)
        with contextlib.suppress(OSError):  # stops at a folder that is not empty
            for path in missing:
                path.rmdir()


def _locked(folder: Path, wait: bool) -> int:
    path = folder / LOCK
    while True:
        make_folder(folder)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue  # the previous process has just removed the folder that it had made
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            os.close(handle)
            raise BusyError(
                f"{folder}: must be written by one process at a time, got another one at work."
            ) from error
        except OSError as error:
            warnings.warn(
                f"{folder}: its file system has no locks ({error.strerror}), so that a second "
                "process in it would not be noticed.",
                stacklevel=4,
            )
            return handle
        # The previous process may have removed the file: then our lock is on no file in the folder.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)
