"""Temporary files and folders are locked while written, so that leftovers can be recognised."""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

LOCK = ".lock"
"""The file in a temporary folder that is locked instead of the folder."""


@contextlib.contextmanager
def temporary_file(path: Path) -> Iterator[IO[str]]:
    """A context with a new text file, which the caller renames to ``path``; else it is removed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    clean_leftovers(path.parent, path.name)
    try:
        with open_locked(temporary) as file:
            yield file
    finally:
        temporary.unlink(missing_ok=True)


def clean_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove temporary files and folders of dead processes for ``name``; default: all files."""
    temporary_name = re.compile(
        rf"\.{'.+' if name is None else re.escape(name)}\.\d+\.tmp", re.DOTALL
    )
    for entry in folder.iterdir():
        is_folder = name is not None and entry.is_dir()
        if not temporary_name.fullmatch(entry.name) or not (is_folder or entry.is_file()):
            continue
        locked = entry / LOCK if is_folder else entry
        # OSError: a process has the lock and writes, or the file system has no locks.
        with contextlib.suppress(OSError), locked.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_folder:
                shutil.rmtree(entry)
            elif _still_has_name(file, entry):
                entry.unlink()


def open_locked(path: Path) -> IO[str]:
    """A new text file, locked where the file system has locks."""
    while True:
        file = path.open("w", encoding="utf-8")
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if _still_has_name(file, path):
            return file
        file.close()  # another process removed it as a leftover before it was locked


def _still_has_name(file: IO[str] | IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
