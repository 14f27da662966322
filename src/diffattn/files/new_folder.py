"""A folder that appears whole or not at all; see :mod:`diffattn.files.temporary` for files."""

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
    """A folder beside ``out`` that takes its name at the end, and is removed if anything fails.

    The next call for the same destination removes the leftovers of a killed process.
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
    """Remove leftovers of dead processes beside ``out``; folders in use stay."""
    temporary_name = re.compile(rf"\.{re.escape(out.name)}\.\d+\.tmp")
    for entry in out.parent.iterdir():
        if not temporary_name.fullmatch(entry.name) or not entry.is_dir():
            continue
        with contextlib.suppress(OSError), (entry / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held: somebody writes there
            shutil.rmtree(entry)
