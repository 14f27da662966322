"""``manifest.json``: sizes and hashes of all files of a folder, to detect any change."""

from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.files.checksum import file_hash
from diffattn.files.io import read_record, sync, write_json

MANIFEST = "manifest.json"
_KIND, _SCHEMA = "manifest", 1


def write_manifest(folder: Path) -> None:
    """Hash the files of a folder, wait until all are on the disk, then write the manifest.

    It leaves out hidden files and ``README.md``, the model card, which users edit.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.name == MANIFEST or path.name.startswith("."):
            continue
        sync(path)
        if path.is_file() and path.name != "README.md":
            name = path.relative_to(folder).as_posix()
            files[name] = {"bytes": path.stat().st_size, "sha256": file_hash(path)}
    sync(folder)
    sync(folder.parent)
    write_json(folder / MANIFEST, {"kind": _KIND, "schema": _SCHEMA, "files": files})


def verify_manifest(folder: Path) -> None:
    """Raise a CheckpointError unless the files that a manifest names are as it recorded them."""

    def files(value: dict[str, Any]) -> list[tuple[str, int, str]]:
        return [(name, facts["bytes"], facts["sha256"]) for name, facts in value["files"].items()]

    for name, size, content in read_record(folder / MANIFEST, _KIND, _SCHEMA, files):
        file = folder / name
        if not file.is_file():
            got = "no file"
        elif file.stat().st_size != size:
            got = f"{file.stat().st_size} bytes where {size} were written"
        elif file_hash(file) != content:
            got = "other content"
        else:
            continue
        advice = f"If it was changed on purpose, delete {folder / MANIFEST}."
        raise CheckpointError(f"{file}: must be as {MANIFEST} recorded it, got {got}. {advice}")
