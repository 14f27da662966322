"""The sources of text that a user can name, and their files."""

import os
import sysconfig
from pathlib import Path

from diffattn.errors import ConfigError
from diffattn.lab.data import files

INSTALLED = ("stdlib", "python", "packages")
# Tests hold data that nobody wrote to be read; encodings and pydoc_data are tables.
_STDLIB_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "encodings", "pydoc_data", "site-packages", "dist-packages"}
)
# Files written when Python is built or installed; they differ between machines of one version.
_STDLIB_BUILD_PREFIXES = (
    "__pycache__",
    "config-",
    "_sysconfigdata",
    "sitecustomize",
    "usercustomize",
)


def hub_parts(source: str) -> tuple[str, str | None, str | None]:
    """Name, revision and configuration in ``"hub:NAME[@REVISION][:CONFIG]"``."""
    named, _, config = source.removeprefix("hub:").partition(":")
    name, _, revision = (named, "", "") if os.path.isdir(named) else named.partition("@")
    if not name:
        raise ConfigError(f"data source: must be 'hub:NAME[@REVISION][:CONFIG]', got {source!r}.")
    return name, revision or None, config or None


def require_source(source: str) -> Path:
    """The file or folder that a source names, which must be there."""
    path = Path(os.path.expanduser(source))
    if not source or not os.path.exists(path):  # also for a name that no file can have
        raise ConfigError(
            f"data source: must be a file or folder that is there, 'stdlib', 'python', "
            f"'packages' or 'hub:NAME', got {source!r}.{files.near_path(path, *INSTALLED)}"
        )
    return path


def source_files(source: str) -> dict[str, Path] | None:
    """File name to path of a source's files; ``None`` for a dataset on the hub.

    For sources see :func:`diffattn.lab.data.corpora.load_corpus`. A folder after ``hub:`` is local.
    """
    if source in INSTALLED:
        of_packages = source == "packages"
        root = Path(sysconfig.get_path("purelib" if of_packages else "stdlib"))
        left_out = is_hidden if of_packages else _outside_stdlib_corpus
        names = [n for n in files.relative_files(root, left_out) if n.endswith(".py")]
        if source == "python":
            prose = (*sorted(root.glob("idlelib/*.txt")), root / "LICENSE.txt")
            others = [path for path in (root / "pydoc_data/topics.py", *prose) if path.is_file()]
            names += [path.relative_to(root).as_posix() for path in others]
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


def is_hidden(name: str) -> bool:
    """Whether a file or folder is hidden: its name begins with a dot."""
    return name.startswith(".")


def _outside_stdlib_corpus(name: str) -> bool:
    return name in _STDLIB_SKIPPED_FOLDERS or name.startswith(_STDLIB_BUILD_PREFIXES)
