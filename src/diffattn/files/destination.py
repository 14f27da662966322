"""Where results may be written, checked before any work is done and anything is replaced."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from diffattn.errors import ConfigError

_LONGEST_NAME = 200
"""Bytes. File systems take 255; a file is first written under a name of some more."""
_KINDS = {
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFREG: "a file",
    stat.S_IFSOCK: "a socket",
}


def file_kind(mode: int) -> str:
    """Name the kind of a file of this mode (``os.stat(path).st_mode``)."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


def require_file_destination(path: Path) -> None:
    """Refuse a path that a file cannot be written to; an existing file may be replaced.

    Raises:
        ConfigError: Something else lies there, such as a folder or a device, or nothing can.
    """
    _require(Path(path), "a file")


def require_folder_destination(path: Path) -> None:
    """Refuse a path that is no folder to write in and cannot become one.

    Raises:
        ConfigError: Something else lies there, such as a file or a device, or nothing can.
    """
    _require(Path(path), "a folder")


def require_replaceable(
    path: Path, begins: str, kind: str, way_out: str = "Name another file, or delete this one."
) -> None:
    """Refuse a path where another file lies than one of the kind that will be written.

    Args:
        path: A file to write; nothing may be there, or an empty file.
        begins: How every file of that kind does.
        kind: Such a file in words, with its article.
        way_out: What the caller may do.

    Raises:
        ConfigError: Another file lies there, or no file can be written.
    """
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
    """Refuse a path to write to that is one of some folders or lies within one.

    Raises:
        ConfigError: It does.
    """
    where = Path(path).resolve()
    for folder in folders:
        if where.is_relative_to(Path(folder).resolve()):
            raise ConfigError(
                f"{path}: must lie outside of {folder}, whose records stay as they are, got a "
                "path within it."
            )


def is_folder_name(name: str) -> bool:
    """Whether ``name`` is that of one visible entry of a folder, and never leads elsewhere."""
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:  # half a character
        return False
    is_one = not name.startswith(".") and "/" not in name and "\0" not in name
    return is_one and 0 < size <= _LONGEST_NAME


def _require(path: Path, wanted: str) -> None:
    fault = _fault(path, wanted)
    if fault:
        where = str(path) if str(path).isprintable() else repr(str(path))
        raise ConfigError(f"{where}: must be {wanted}, got {fault}.")


def _fault(path: Path, wanted: str) -> str | None:
    try:
        present = _kind(path)
        if present not in (None, wanted):
            return present
        # A file is replaced through its folder.
        folder = path.absolute() if present != "a file" else path.absolute().parent
        while (present := _kind(folder)) is None:
            if len(os.fsencode(folder.name)) > _LONGEST_NAME:
                return f"a name of more than {_LONGEST_NAME} bytes"
            if folder.name == "..":
                return "a way back from a folder that is not there"
            folder = folder.parent
    except (OSError, ValueError) as error:  # too long a path, a loop of links; a NUL
        return getattr(error, "strerror", None) or str(error)
    if present != "a folder":
        return f"a path through {present}, {str(folder)!r}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"a place in {str(folder)!r}, where nothing may be written"
    return None


def _kind(path: Path) -> str | None:
    """Name the kind of entry at a path, links followed; ``None`` if there is none."""
    try:
        return file_kind(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return "a link to nothing" if path.is_symlink() else None
