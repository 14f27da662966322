"""The sources of text that a user can name, their files, and the pin by which a packing knows them.

Files are pinned by their hashes, a dataset on the hub by its commit.
"""

import os
import sysconfig
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError, first_line
from diffattn.lab.data import files

Pin = dict[str, Any]
"""``{"files": {name: {"bytes": ..., "sha256": ...}}}`` or ``{"revision": commit}``."""
INSTALLED = ("stdlib", "python", "packages")
# Tests hold data that nobody wrote to be read; encodings and pydoc_data are tables.
_STDLIB_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "encodings", "pydoc_data", "site-packages", "dist-packages"}
)
# Files written when Python is built or installed; they differ between machines of one version.
_BUILD_PREFIXES = ("__pycache__", "config-", "_sysconfigdata", "sitecustomize", "usercustomize")


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
    return name in _STDLIB_SKIPPED_FOLDERS or name.startswith(_BUILD_PREFIXES)


def is_json_lines(path: Path) -> bool:
    """Whether the file name ends with ``.jsonl``, in upper or lower case."""
    return path.suffix.lower() == ".jsonl"


def pin(source: str) -> Pin:
    """Hash every file of a source, or ask the hub for the commit of a dataset."""
    paths = source_files(source)
    if paths is None:
        return {"revision": _commit(source)}
    for path in () if source.startswith("hub:") else paths.values():
        # Checked first, since hashing all files takes long.
        files.require_regular(path, one_text=not is_json_lines(path))
    return {"files": {name: files.fingerprint(path) for name, path in paths.items()}}


def stamp(source: str) -> dict[str, tuple[int, int]]:
    """Size and modification time of a source's files; empty for a hub dataset."""
    stats = {name: path.stat() for name, path in (source_files(source) or {}).items()}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def difference(before: Pin, now: Pin) -> str | None:
    """The first file that differs, in words; ``None`` if none does. Revisions are not compared."""
    known, present = before.get("files", {}), now.get("files", {})
    for name in sorted(known.keys() | present.keys()):
        if name not in known:
            return f"{name!r} is new"
        if known[name] != present.get(name):
            return f"{name!r} {'has changed' if name in present else 'is missing'}"
    return None


def _commit(source: str) -> str:
    from huggingface_hub import HfApi

    name, revision, _ = hub_parts(source)
    try:
        return str(HfApi().dataset_info(name, revision=revision).sha)
    # A wrong name or revision, no access, no connection: the library has an error for each.
    except Exception as error:
        raise ConfigError(
            f"hub_dataset: {source.removeprefix('hub:')!r} must be a dataset that the hub knows, "
            f"got: {first_line(error)}."
        ) from error
