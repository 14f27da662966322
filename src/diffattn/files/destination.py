"""Check where results will be written, before any work is done or file replaced."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from diffattn.errors import ConfigError

_LONGEST_NAME = 200
"""Longest name of a file, in bytes. File systems take 255; temporary names are longer than it."""
_KINDS = {
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFREG: "a file",
    stat.S_IFSOCK: "a socket",
}


def file_kind(mode: int) -> str:
    """The kind of a file in words, from its mode (``os.stat(path).st_mode``)."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


def require_file_destination(path: Path) -> None:
    """Raise a ConfigError if no file can be written to a path; an existing file may be replaced."""
    _require(Path(path), "a file")


def require_folder_destination(path: Path) -> None:
    """Raise a ConfigError unless a path is a writable folder or can become one."""
    _require(Path(path), "a folder")


def require_replaceable(
    path: Path, begins: str, kind: str, way_out: str = "Name another file, or delete this one."
) -> None:
    """Raise a ConfigError if no file can be written, or if one is there that does not begin as all
    of the ``kind`` (such as ``"a report"``) do."""
    path = Path(path)
    require_file_destination(path)
    if not path.exists() or not path.stat().st_size:
        return
    beginning = begins.encode()
    with path.open("rb") as file:
        if file.read(len(beginning)) != beginning:
            raise ConfigError(
                f"{path}: must be a new file or {kind}, got another file, or one that an older "
                f"version wrote. {way_out}"
            )


def require_outside(path: Path, folders: Iterable[Path]) -> None:
    """Raise a ConfigError if a path is one of some folders, or inside one of them."""
    where = Path(path).resolve()
    for folder in folders:
        if where.is_relative_to(Path(folder).resolve()):
            raise ConfigError(
                f"{path}: must lie outside of {folder}, whose records stay as they are, got a "
                "path within it."
            )


def is_folder_name(name: str) -> bool:
    """Whether ``name`` can be a visible entry of a folder: no path, not hidden, not too long."""
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:  # a lone surrogate
        return False
    is_one = not name.startswith(".") and "/" not in name and "\0" not in name
    return is_one and 0 < size <= _LONGEST_NAME


def _require(path: Path, wanted: str) -> None:
    if fault := _fault(path, wanted):
        where = str(path) if str(path).isprintable() else repr(str(path))
        raise ConfigError(f"{where}: must be {wanted}, got {fault}.")


def _fault(path: Path, wanted: str) -> str | None:
    try:
        present = _kind(path)
        if present not in (None, wanted):
            return present
        # Replacing a file needs write access to its folder.
        folder = path.absolute() if present != "a file" else path.absolute().parent
        while (present := _kind(folder)) is None:
            if len(os.fsencode(folder.name)) > _LONGEST_NAME:
                return f"a name of more than {_LONGEST_NAME} bytes"
            if folder.name == "..":
                return "'..' after a folder that does not exist"
            folder = folder.parent
    except (OSError, ValueError) as error:  # path too long, loop of links, or a NUL character
        return getattr(error, "strerror", None) or str(error)
    if present != "a folder":
        return f"a path through {present}, {str(folder)!r}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"a path in {str(folder)!r}, a folder that is not writable"
    return None


def _kind(path: Path) -> str | None:
    """The kind of entry at a path in words, links followed; ``None`` if there is none."""
    try:
        return file_kind(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return "a link to nothing" if path.is_symlink() else None
