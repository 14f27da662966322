"""The tables of docs/records/caches.md, from its record.

PYTHONPATH=src python -m tools.caches.page docs/records/caches.json
"""

import sys
from pathlib import Path
from typing import Any

from diffattn.files.io import read_json
from diffattn.lab.catalog.models import type_name


def tables(record: dict[str, Any], task: str) -> str:
    """Changes from the whole cache; policies against their controls; all types against softmax."""
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
    keys = ("random", "window", "softmax", "softmax_random")
    heads = ("minus random", "minus window", "change minus softmax's", "gain minus softmax's")
    lines += ["", _row("type", "cache", *heads), _row("---", "---", *["---:"] * 4)]
    for name, by_cache in rows.items():
        for cache, row in by_cache.items():
            if name == "softmax" and not cache.startswith("signed"):
                continue  # for it, absolute is signed
            if cache.startswith(("signed", "absolute", "random", "2 bits")):
                cells = (_shown(row.get(key)) for key in keys)
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
    facts = read_json(Path(sys.argv[1]))
    print("\n\n".join(tables(facts, name) for name in facts["compared"]))
