"""Write a folder whole or not at all; for files see :mod:`diffattn.files.temporary`."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from diffattn.files.io import make_folder, sync
from diffattn.files.temporary import LOCK, clean_leftovers, open_locked


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A context with a temporary folder beside ``out``. At the end it is renamed to ``out``; if
    anything fails it is removed. The next call removes the leftovers of a killed process.
    """
    out = out.absolute()
    make_folder(out.parent)
    clean_leftovers(out.parent, out.name)
    folder = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    folder.mkdir()
    try:
        with open_locked(folder / LOCK):
            yield folder
            (folder / LOCK).unlink()
            for path in folder.iterdir():
                sync(path)
            sync(folder)
            folder.rename(out)
            sync(out.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
