"""Sources of text that a user can name, and their files."""

import os
import sysconfig
from pathlib import Path

from diffattn.errors import ConfigError
from diffattn.lab.data import files

INSTALLED = ("stdlib", "python", "packages")
# Test data is not prose or code anyone wrote to be read; encodings and pydoc_data are tables.
_STDLIB_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "encodings", "pydoc_data", "site-packages", "dist-packages"}
)
# Written when an interpreter is built or installed, so they differ between equal versions.
_STDLIB_BUILD_PREFIXES = (
    "__pycache__",
    "config-",
    "_sysconfigdata",
    "sitecustomize",
    "usercustomize",
)


def stdlib_folder() -> Path:
    """The folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def packages_folder() -> Path:
    """The folder of the packages that are installed for the running interpreter."""
    return Path(sysconfig.get_path("purelib"))


def hub_parts(source: str) -> tuple[str, str | None, str | None]:
    """Name, revision and configuration in ``"hub:NAME[@REVISION][:CONFIG]"``.

    Raises:
        ConfigError: There is no name.
    """
    named, _, config = source.removeprefix("hub:").partition(":")
    name, _, revision = (named, "", "") if os.path.isdir(named) else named.partition("@")
    if not name:
        raise ConfigError(f"data source: must be 'hub:NAME[@REVISION][:CONFIG]', got {source!r}.")
    return name, revision or None, config or None


def require_source(source: str) -> Path:
    """The file or folder that a source names.

    Raises:
        ConfigError: There is none.
    """
    path = Path(os.path.expanduser(source))
    if not source or not os.path.exists(path):  # also for a name that no file can have
        raise ConfigError(
            f"data source: must be a file or folder that is there, 'stdlib', 'python', "
            f"'packages' or 'hub:NAME', got {source!r}.{files.near_path(path, *INSTALLED)}"
        )
    return path


def source_files(source: str) -> dict[str, Path] | None:
    """The files of a source, by name; ``None`` for a dataset on the hub.

    Args:
        source: See :func:`load_corpus`.

    Raises:
        ConfigError: It is missing or cannot be listed.
    """
    if source == "packages":
        root, names = packages_folder(), package_files()
    elif source in INSTALLED:
        root = stdlib_folder()
        names = standard_library_files()
        if source == "python":
            names += [n for n in ("pydoc_data/topics.py",) if (root / n).is_file()]
            names += prose_files()
    elif source.startswith("hub:"):
        root = Path(hub_parts(source)[0])
        if not root.is_dir():
            return None
        names = files.relative_files(root, is_hidden)
    else:
        root = require_source(source)
        files.require_path(root)
        if not root.is_dir():
            return {files.unicode_name(root.name): root}
        names = files.relative_files(root, is_hidden)
    return {files.unicode_name(name): root / name for name in names}


def standard_library_files() -> list[str]:
    """Names of the sources of the default corpus, below ``stdlib_folder``."""
    names = files.relative_files(stdlib_folder(), _outside_stdlib_corpus)
    return [name for name in names if name.endswith(".py")]


def package_files() -> list[str]:
    """Names of the Python files of installed packages, below ``packages_folder``."""
    names = files.relative_files(packages_folder(), is_hidden)
    return [name for name in names if name.endswith(".py")]


def prose_files() -> list[str]:
    """Names of the text files that every Python carries, below ``stdlib_folder``."""
    root = stdlib_folder()
    paths = (*sorted(root.glob("idlelib/*.txt")), root / "LICENSE.txt")
    return [path.relative_to(root).as_posix() for path in paths if path.is_file()]


def is_hidden(name: str) -> bool:
    """Whether a file or folder is hidden by its name."""
    return name.startswith(".")


def _outside_stdlib_corpus(name: str) -> bool:
    return name in _STDLIB_SKIPPED_FOLDERS or name.startswith(_STDLIB_BUILD_PREFIXES)
