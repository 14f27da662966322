"""RULER's thirteen tasks by name."""

from diffattn.lab.evaluation.long_context.ruler.aggregation import (
    CommonWordsTask,
    FrequentWordsTask,
)
from diffattn.lab.evaluation.long_context.ruler.questions import QuestionTask
from diffattn.lab.evaluation.long_context.ruler.retrieval import NeedleTask, VariableTask
from diffattn.lab.evaluation.long_context.ruler.samples import RulerTask

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
"""In the order of RULER's tables."""
THIN_TASKS: dict[str, RulerTask] = {
    "cwe": CommonWordsTask(name="cwe", example_words=20, example_repeats=(3, 1), repeats=(6, 1))
}
"""What RULER takes in place of a task where contexts are short."""
FULL_FROM = 4_096
"""Tokens from which contexts are not short."""
FILE_PARAMETERS = {"qa_1": "squad", "qa_2": "hotpotqa"}
"""Tasks that need a file, and the parameter that names it."""


def needs_background(task: RulerTask) -> bool:
    """Whether the haystack is the user's text."""
    return isinstance(task, NeedleTask) and task.haystack == "essay"
