"""Logs beside ``metrics.jsonl`` that go back with a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from diffattn.files.io import recover_jsonl, write_jsonl


def rewind(
    path: Path, step: int, *, stays: Callable[[dict[str, Any]], bool] = lambda row: False
) -> list[dict[str, Any]]:
    """Remove the rows after a step: a run that goes on from there writes them again.

    Args:
        path: A log whose rows name their ``step``; it need not exist.
        step: Steps done.
        stays: Rows that are kept all the same.

    Returns:
        The rows that are left.
    """
    rows, faults = recover_jsonl(path)
    left = [row for row in rows if row["step"] <= step or stays(row)]
    if len(left) < len(rows) or faults:
        write_jsonl(path, left)
    return left
