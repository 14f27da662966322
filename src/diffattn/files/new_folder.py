"""Write a folder whole or not at all; for files see :mod:`diffattn.files.temporary`."""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from diffattn.files.io import make_folder, sync

_LOCK = ".lock"


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A context with a temporary folder beside ``out``. At the end it is renamed to ``out``; if
    anything fails it is removed. The next call removes the leftovers of a killed process.
    """
    out = out.absolute()
    make_folder(out.parent)
    remove_leftovers(out)
    folder = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    folder.mkdir()
    try:
        with (folder / _LOCK).open("w") as lock:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
            (folder / _LOCK).unlink()
            for path in folder.iterdir():
                sync(path)
            sync(folder)
            folder.rename(out)
            sync(out.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(out: Path) -> None:
    """Remove temporary folders of dead processes beside ``out``. Locked folders are in use."""
    temporary_name = re.compile(rf"\.{re.escape(out.name)}\.\d+\.tmp")
    for entry in out.parent.iterdir():
        if not temporary_name.fullmatch(entry.name) or not entry.is_dir():
            continue
        with contextlib.suppress(OSError), (entry / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while a process writes there
            shutil.rmtree(entry)
