"""RULER's thirteen tasks by name, the scores of guesses, and the summary of scores."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from diffattn.lab.evaluation.long_context.lengths import by_length_and_task, length_metric
from diffattn.lab.evaluation.long_context.ruler.aggregation import (
    CommonWordsTask,
    FrequentWordsTask,
)
from diffattn.lab.evaluation.long_context.ruler.questions import QuestionTask
from diffattn.lab.evaluation.long_context.ruler.retrieval import NeedleTask, VariableTask
from diffattn.lab.evaluation.long_context.ruler.samples import (
    RulerTask,
    Sample,
    found_any,
    found_share,
)
from diffattn.lab.evaluation.metrics import GUESSES, NAMED, guess_metrics, guess_shares
from diffattn.lab.evaluation.protocol import Summary
from diffattn.lab.inference.language_model import LanguageModel

_ALL: tuple[RulerTask, ...] = (
    NeedleTask(name="niah_single_1", haystack="noise"),
    NeedleTask(name="niah_single_2", haystack="essay"),
    NeedleTask(name="niah_single_3", haystack="essay", value_kind="uuids"),
    NeedleTask(name="niah_multikey_1", haystack="essay", num_keys=4),
    NeedleTask(name="niah_multikey_2", haystack="needle"),
    NeedleTask(name="niah_multikey_3", haystack="needle", key_kind="uuids", value_kind="uuids"),
    NeedleTask(name="niah_multivalue", haystack="essay", num_values=4),
    NeedleTask(name="niah_multiquery", haystack="essay", num_queries=4),
    VariableTask(name="vt"),
    CommonWordsTask(name="cwe"),
    FrequentWordsTask(name="fwe"),
    QuestionTask(name="qa_1"),
    QuestionTask(name="qa_2"),
)
TASKS: dict[str, RulerTask] = {task.name: task for task in _ALL}
"""Name to task, in the order of RULER's tables."""
THIN_TASKS: dict[str, RulerTask] = {
    "cwe": CommonWordsTask(name="cwe", example_words=20, example_repeats=(3, 1), repeats=(6, 1))
}
"""Name to the version of a task for short contexts, as in RULER."""
FULL_FROM = 4_096
"""Contexts with fewer tokens are short."""
FILE_PARAMETERS = {"qa_1": "squad", "qa_2": "hotpotqa"}
"""Task that needs a file to the parameter with the path."""
THRESHOLD = 0.856
"""A length is effective from this mean score on, which Llama-2-7B has at 4K."""


def needs_background(task: RulerTask) -> bool:
    """Whether the task hides needles in the background text."""
    return isinstance(task, NeedleTask) and task.haystack == "essay"


def guesses(model: LanguageModel, task: RulerTask, sample: Sample, output: str) -> dict[str, float]:
    """Scores of guesses that copy from the context and ignore the question.

    They name random values, the first different words of a list, or a random stretch of documents.
    ``guess`` names as many as the question asks for, or copies ``max_new_tokens`` tokens;
    :data:`~diffattn.lab.evaluation.metrics.NAMED` names or copies as much as ``output`` does. There
    is no guess if the question asks for all values.
    """
    wanted = sample.references
    if sample.documents is not None:
        ids, written = model.encode(sample.documents), len(model.encode(output))

        def copied(size: int) -> float:
            stretches = (model.decode(ids[i : i + size]) for i in range(0, len(ids), size))
            return fmean(found_any(text, wanted) for text in stretches)

        whole = copied(task.max_new_tokens)
        if written == task.max_new_tokens:
            return {GUESSES[0]: whole, NAMED: whole}
        return {GUESSES[0]: whole, NAMED: copied(written) if written else 0.0}
    words = sample.candidates or tuple(dict.fromkeys(sample.listed or ()))
    # A word counts as named if the score would find it in the output.
    named = round(found_share(output, words) * len(words))
    if sample.listed is None:
        return guess_shares(len(wanted), len(words), named)
    first, most = (found_share(" ".join(words[:count]), wanted) for count in (len(wanted), named))
    return {GUESSES[0]: first, NAMED: most}


def summarise(rows: Sequence[Mapping[str, Any]], left_out: Mapping[str, str]) -> Summary:
    """Scores and guesses by task and length; ``left_out`` maps tasks not run to the reason."""
    lengths = sorted({int(row["length"]) for row in rows})
    tasks = [name for name in TASKS if any(row["task"] == name for row in rows)]
    metrics, means, grid = by_length_and_task(rows, tasks, "score")
    length_name = f"effective_length_of_{len(tasks)}_tasks"
    metrics.append(length_metric(length_name, means, THRESHOLD, len(rows)))
    for task in ("cwe", "fwe"):  # a score must beat naming words without counting
        for length in lengths:
            of_list = [row for row in rows if row["length"] == length and row["task"] == task]
            metrics += guess_metrics(of_list, {"length": length, "task": task})
    axes = {"lengths": lengths, "tasks": tasks}
    kinds = (GUESSES[0], NAMED)
    tables = {
        "scores": axes | {"score": grid},
        "guesses": axes | {kind: _grid(rows, lengths, tasks, kind) for kind in kinds},
        "words_sha256": sorted({row["words"] for row in rows if "words" in row}),
        f"mean_of_{len(tasks)}_tasks": [
            {"length": length, "score": mean} for length, mean in means.items()
        ],
        "left_out": dict(left_out),
        "threshold": THRESHOLD,
        "haystack_sha256": sorted({row["haystack"] for row in rows if row.get("haystack")}),
    }
    return Summary(metrics=metrics, tables=tables)


def _grid(
    rows: Sequence[Mapping[str, Any]], lengths: Sequence[int], tasks: Sequence[str], kind: str
) -> list[list[float | None]]:
    """Mean of field ``kind`` by length and task; ``None`` if no row has it."""
    cells: dict[tuple[int, str], list[float]] = {(n, task): [] for n in lengths for task in tasks}
    for row in rows:
        if kind in row:
            cells[int(row["length"]), row["task"]].append(row[kind])
    return [
        [float(np.mean(cell)) if (cell := cells[length, task]) else None for task in tasks]
        for length in lengths
    ]
