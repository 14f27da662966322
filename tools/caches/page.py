"""The tables of docs/records/caches.md, from its record.

PYTHONPATH=src python -m tools.caches.page docs/records/caches.json
"""

import sys
from pathlib import Path
from typing import Any

from diffattn.files.io import read_json
from diffattn.lab.catalog.models import type_name


def tables(record: dict[str, Any], task: str = "recall") -> str:
    """Changes from the whole cache, then what the signed policy gains on its controls."""
    rows = record["compared"][task]
    whole = {
        name: sum(by_cache["whole"]) / len(by_cache["whole"])
        for name, by_cache in record["values"][task].items()
    }
    lines = [_row("cache", *map(type_name, rows)), _row("---", *["---:"] * len(rows))]
    lines.append(_row("whole", *(f"{value:.3f}" for value in whole.values())))
    first = next(iter(rows.values()))
    lines += [
        _row(cache, *(_shown(rows[name][cache]["change"]) for name in rows))
        for cache in first
        if cache != "whole"
    ]
    heads = ("type", "policy", "minus random", "minus window", "change minus softmax's")
    lines += ["", _row(*heads), _row("---", "---", *["---:"] * 3)]
    for name, by_cache in rows.items():
        for cache, row in by_cache.items():
            if "random" in row and not (name == "softmax" and cache.startswith("absolute")):
                cells = (_shown(row.get(key)) for key in ("random", "window", "softmax"))
                lines.append(_row(type_name(name), cache, *cells))
    return "\n".join(lines)


def _shown(interval: dict[str, float] | None) -> str:
    if interval is None:
        return "—"
    mean, low, high = (
        f"{interval[key]:.3f}".replace("-0.000", "0.000").replace("-", "−")
        for key in ("mean", "low", "high")
    )
    return mean if low == high else f"{mean} ({low} to {high})"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(tables(read_json(Path(sys.argv[1]))))
