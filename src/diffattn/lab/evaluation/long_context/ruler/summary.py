"""RULER's scores by task and length, beside what guesses would score."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diffattn.lab.evaluation.long_context.lengths import by_length_and_task, length_metric
from diffattn.lab.evaluation.long_context.ruler.tasks import TASKS
from diffattn.lab.evaluation.metrics import GUESSES, NAMED, guess_metrics
from diffattn.lab.evaluation.protocol import Summary

THRESHOLD = 0.856
"""Mean score of Llama-2-7B at 4K: from here on RULER calls a length effective."""


def summarise(rows: Sequence[Mapping[str, Any]], left_out: Mapping[str, str]) -> Summary:
    """Metrics and tables of scored rows.

    Args:
        rows: With ``length``, ``task`` and ``scores``.
        left_out: Tasks that were not run, and why.
    """
    lengths = sorted({int(row["length"]) for row in rows})
    tasks = [name for name in TASKS if any(row["task"] == name for row in rows)]
    name = f"mean_of_{len(tasks)}_tasks"
    metrics, means, grid = by_length_and_task(rows, tasks, "score", "score")
    length_name = f"effective_length_of_{len(tasks)}_tasks"
    metrics.append(length_metric(length_name, means, THRESHOLD, len(rows)))
    for task in ("cwe", "fwe"):  # what a list's score has to beat: words named without counting
        for length in lengths:
            of_list = [row for row in rows if row["length"] == length and row["task"] == task]
            metrics += guess_metrics(of_list, {"length": length, "task": task})
    hashes = sorted({row["haystack"] for row in rows if row.get("haystack")})
    tables = {
        "scores": {"lengths": lengths, "tasks": tasks, "score": grid},
        "guesses": {
            "lengths": lengths,
            "tasks": tasks,
            **{kind: _grid(rows, lengths, tasks, kind) for kind in (GUESSES[0], NAMED)},
        },
        "words_sha256": sorted({row["words"] for row in rows if "words" in row}),
        name: [{"length": length, "score": mean} for length, mean in means.items()],
        "left_out": dict(left_out),
        "threshold": THRESHOLD,
        "haystack_sha256": hashes,
    }
    return Summary(metrics=metrics, tables=tables)


def _grid(
    rows: Sequence[Mapping[str, Any]], lengths: Sequence[int], tasks: Sequence[str], kind: str
) -> list[list[float | None]]:
    """Mean by length and task; ``None`` where nothing can be counted."""
    cells: dict[tuple[int, str], list[float]] = {(n, task): [] for n in lengths for task in tasks}
    for row in rows:
        if kind in row:
            cells[int(row["length"]), row["task"]].append(row[kind])
    return [
        [float(np.mean(cell)) if (cell := cells[length, task]) else None for task in tasks]
        for length in lengths
    ]
