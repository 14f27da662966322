"""Pin the source of a corpus: files by their hashes, a dataset on the hub by its commit.

A packing records the pin, and continues only with the same source.
"""

from typing import Any

from diffattn.errors import ConfigError, first_line
from diffattn.lab.data import files
from diffattn.lab.data.corpora import is_json_lines
from diffattn.lab.data.source_files import hub_parts, source_files

Pin = dict[str, Any]
"""``{"files": {name: {"bytes": ..., "sha256": ...}}}`` or ``{"revision": commit}``."""


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
