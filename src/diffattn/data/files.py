"""Reading text files and folders the same way on every system, and saying what is wrong."""

import difflib
import os
from collections.abc import Callable
from pathlib import Path

from diffattn.errors import ConfigError


def relative_files(root: Path, excluded: Callable[[str], bool]) -> list[str]:
    """Posix paths of the files below ``root``, sorted the same way on every system."""

    def fail(error: OSError) -> None:
        raise ConfigError(f"{error.filename}: must be readable, got: {error.strerror}.") from error

    files = []
    for folder, subfolders, names in os.walk(root, onerror=fail):
        subfolders[:] = [name for name in subfolders if not excluded(name)]
        paths = (Path(folder, name) for name in names if not excluded(name))
        files += [path.relative_to(root).as_posix() for path in paths if path.is_file()]
    return sorted(files)


def read_text(path: Path) -> str | None:
    """Exact text of a file; None if it is not UTF-8, or has a zero byte and so is no text."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: must be readable, got: {error.strerror}.") from error
    try:
        return None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None


def require_path(path: Path) -> None:
    """Raise unless the path exists, with a near miss if there is one."""
    if not path.exists():
        raise ConfigError(f"{path}: file or folder must exist, got none.{near_path(path)}")


def near_path(path: Path, *others: str) -> str:
    """Suggest a neighbour of a missing path, or one of ``others``."""
    folder = path.parent
    readable = folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)
    # Compared by last component: a long shared folder would make every neighbour look alike.
    neighbours = os.listdir(folder) if readable else []
    close = difflib.get_close_matches(path.name, [*others, *neighbours], n=1)
    if not close:
        return ""
    return f" Did you mean {close[0] if close[0] in others else str(folder / close[0])!r}?"


def unicode_name(name: str) -> str:
    """Name of a file as valid Unicode: on Linux it may hold any bytes, which are spelled out."""
    return name.encode("utf-8", "backslashreplace").decode()
