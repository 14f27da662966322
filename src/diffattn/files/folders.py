"""Folders that are written whole or not at all, and a manifest that shows any change in one."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.files import io

MANIFEST = "manifest.json"
"""The file with sizes and hashes of all files of a folder."""
_KIND, _SCHEMA = "manifest", 1


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A context with a temporary folder beside ``out``. At the end it is renamed to ``out``; if
    anything fails it is removed. The next call removes the leftovers of a killed process.
    """
    out = out.absolute()
    io.make_folder(out.parent)
    io.clean_leftovers(out.parent, out.name)
    folder = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    folder.mkdir()
    try:
        with io.open_locked(folder / io.LOCK):
            yield folder
            (folder / io.LOCK).unlink()
            for path in folder.iterdir():
                io.sync(path)
            io.sync(folder)
            folder.rename(out)
            io.sync(out.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_manifest(folder: Path) -> None:
    """Hash the files of a folder, wait until all are on the disk, then write the manifest. It
    leaves out hidden files and the model card, which users edit."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.name == MANIFEST or path.name.startswith("."):
            continue
        io.sync(path)
        if path.is_file() and path.name != "README.md":
            name = path.relative_to(folder).as_posix()
            files[name] = {"bytes": path.stat().st_size, "sha256": io.file_hash(path)}
    io.sync(folder)
    io.sync(folder.parent)
    io.write_json(folder / MANIFEST, {"kind": _KIND, "schema": _SCHEMA, "files": files})


def verify_manifest(folder: Path) -> None:
    """Raise a CheckpointError unless the files that a manifest names are as it recorded them."""

    def files(value: dict[str, Any]) -> list[tuple[str, int, str]]:
        return [(name, facts["bytes"], facts["sha256"]) for name, facts in value["files"].items()]

    for name, size, content in io.read_record(folder / MANIFEST, _KIND, _SCHEMA, files):
        file = folder / name
        if not file.is_file():
            got = "no file"
        elif file.stat().st_size != size:
            got = f"{file.stat().st_size} bytes where {size} were written"
        elif io.file_hash(file) != content:
            got = "other content"
        else:
            continue
        advice = f"If it was changed on purpose, delete {folder / MANIFEST}."
        raise CheckpointError(f"{file}: must be as {MANIFEST} recorded it, got {got}. {advice}")
