"""One compressed table of all runs of a study, in place of their folders.

``pandas.read_json("published/text/runs.jsonl.gz", lines=True)`` reads it: one row per run, with its
name and one column per file of its folder. The column of a ``.jsonl`` file holds a list of rows.
"""

import gzip
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError

TABLE = "runs.jsonl.gz"
RUNS = "runs"


def pack_runs(runs: Path, table: Path) -> None:
    """Write the table of every run folder below ``runs``; refuse files of another layout."""
    lines = []
    for folder in sorted({path.parent for path in runs.rglob("*.json")}):
        files = {path.name: _parse(path) for path in sorted(folder.glob("*.json*"))}
        lines.append(json.dumps({"name": folder.relative_to(runs).as_posix()} | files))
    table.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n", mtime=0))


def unpack_runs(table: Path, runs: Path) -> None:
    """Write the run folders of a table, with the same bytes as before :func:`pack_runs`."""
    try:
        lines = gzip.decompress(table.read_bytes()).splitlines()
    except (OSError, EOFError) as error:
        raise CheckpointError(f"{table}: must be a gzip file, got a damaged one.") from error
    for line in lines:
        files = json.loads(line)
        folder = runs / files.pop("name")
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(_format(name, content), encoding="utf-8")


def runs_folder(study: Path) -> Path:
    """The run folders of a study, or a temporary copy unpacked from its table."""
    table = study / TABLE
    if (study / RUNS).exists() or not table.exists():
        return study / RUNS
    return Path(_unpacked(table).name)


def results_folder(evaluation: Path) -> Path:
    """The result folders of an evaluation, or a temporary copy unpacked from its table."""
    table = evaluation / TABLE
    return Path(_unpacked(table).name) if table.exists() else evaluation


@cache  # which keeps the folder until the process ends
def _unpacked(table: Path) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="diffattn-runs-")
    try:
        unpack_runs(table, Path(folder.name))
    except CheckpointError:
        folder.cleanup()
        raise
    return folder


def _parse(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    is_rows = path.suffix == ".jsonl"
    content = [json.loads(row) for row in text.splitlines()] if is_rows else json.loads(text)
    if _format(path.name, content) != text:
        raise CheckpointError(f"{path}: must be as our writer formats it, got another layout.")
    return content


def _format(name: str, content: Any) -> str:
    if name.endswith(".jsonl"):
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content)
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
