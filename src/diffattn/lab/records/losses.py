"""Losses of a user's runs, from a table in CSV or JSON."""

import csv
import json
import math
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError, short

AXES = ("parameters", "tokens")
_MAX_BYTES = 1 << 24


def read_losses(path: Path) -> tuple[str, dict[str, list[tuple[float, float]]]]:
    """Read one row per run: ``name``, ``parameters`` or ``tokens``, and ``loss``.

    Args:
        path: CSV whose first line names the columns, or a JSON list of objects. Other columns are
            ignored.

    Returns:
        ``"parameters"`` or ``"tokens"``. And name -> pairs of parameters or tokens and the loss,
        in the order of the file.
    """
    rows = _rows(Path(path))
    axes = [axis for axis in AXES if any(row.get(axis) not in (None, "") for row in rows)]
    if len(axes) != 1:
        raise ConfigError(
            f"{path}: must have a column parameters or a column tokens, got "
            f"{'both' if axes else 'neither'}."
        )
    groups: dict[str, list[tuple[float, float]]] = {}
    for index, row in enumerate(rows, start=1):
        name = row.get("name")
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"{path}: row {index}: name must be text, got {short(name)}.")
        x, loss = (_number(path, index, column, row.get(column)) for column in (axes[0], "loss"))
        if x <= 0:
            raise ConfigError(f"{path}: row {index}: {axes[0]} must be positive, got {x:g}.")
        groups.setdefault(name.strip(), []).append((x, loss))
    return axes[0], groups


def _rows(path: Path) -> list[dict[str, Any]]:
    if path.stat().st_size > _MAX_BYTES:
        raise ConfigError(f"{path}: must be a table of at most {_MAX_BYTES:,} bytes, got more.")
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            rows = json.loads(text)
        else:
            rows = list(csv.DictReader(text.splitlines(), skipinitialspace=True))
    except (ValueError, RecursionError, csv.Error) as error:
        raise ConfigError(
            f"{path}: must be CSV or JSON in UTF-8, got {short(str(error))}."
        ) from None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(
            f"{path}: must be a table with columns name, parameters or tokens, loss and one row or "
            "more, got another content."
        )
    return rows


def _number(path: Path, index: int, column: str, value: Any) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number) or abs(number) > 1e100:
        raise ConfigError(f"{path}: row {index}: {column} must be a number, got {short(value)}.")
    return number
