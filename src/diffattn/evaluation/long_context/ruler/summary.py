"""RULER's numbers: by task and length, mean over tasks, effective length."""

from collections.abc import Mapping, Sequence
from typing import Any

from diffattn.evaluation.long_context.lengths import effective_length, mean_over_tasks
from diffattn.evaluation.long_context.ruler.tasks import TASKS
from diffattn.evaluation.metrics import metric
from diffattn.evaluation.protocol import Summary
from diffattn.records.evaluations import Metric
from diffattn.stats.proportions import share_interval

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
    metrics, means = [], {}
    grid: list[list[float | None]] = []
    for length in lengths:
        scores = {
            task: [
                float(row["scores"]["score"])
                for row in rows
                if row["length"] == length and row["task"] == task
            ]
            for task in tasks
        }
        run = {task: of_task for task, of_task in scores.items() if of_task}
        over_tasks = mean_over_tasks(list(run.values()))
        # A mean over fewer tasks than elsewhere carries its own number of tasks.
        own_name = f"mean_of_{len(run)}_tasks"
        metrics.append(metric(own_name, over_tasks, where={"length": length}, headline=True))
        metrics += [
            metric("score", share_interval(of_task), where={"length": length, "task": task})
            for task, of_task in run.items()
        ]
        if len(run) == len(tasks):
            means[length] = over_tasks.mean
        grid.append(
            [sum(of_task) / len(of_task) if of_task else None for of_task in scores.values()]
        )
    metrics.append(
        Metric(
            name=f"effective_length_of_{len(tasks)}_tasks",
            value=float(effective_length(means, THRESHOLD)),
            n=len(rows),
            unit="tokens",
            headline=True,
        )
    )
    hashes = sorted({row["haystack"] for row in rows if row.get("haystack")})
    tables = {
        "scores": {"lengths": lengths, "tasks": tasks, "score": grid},
        name: [{"length": length, "score": mean} for length, mean in means.items()],
        "left_out": dict(left_out),
        "threshold": THRESHOLD,
        "haystack_sha256": hashes,
    }
    return Summary(metrics=metrics, tables=tables)
