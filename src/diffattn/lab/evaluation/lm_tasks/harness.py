"""Questions of lm-evaluation-harness, from datasets of the hub or local documents."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError, first_line
from diffattn.lab.data.files import normalise_line_ends
from diffattn.lab.evaluation.lm_tasks.documents import LocalDocuments
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ItemError
from diffattn.lab.inference.scoring import Continuation

_FOLDERS = ("arc", "super_glue", "hellaswag", "openbookqa", "piqa", "winogrande")
"""Folders of the harness's tasks that we load, since reading its whole index takes seconds."""


@dataclass(frozen=True, slots=True)
class Question:
    """One document as the harness asks it: the most likely continuation is the answer."""

    pairs: tuple[tuple[str, str], ...]  # context and continuation of each choice
    choices: tuple[str, ...]
    """Continuations without the space before them; normalised scores divide by their length."""
    gold: int  # index of the right choice

    def text(self) -> str:
        """All text that the model reads: each different context, then the choices."""
        contexts = dict.fromkeys(context for context, _ in self.pairs)
        return "\n".join([*contexts, *(f"[{i}] {text}" for i, text in enumerate(self.choices))])


def harness_questions(
    task: str,
    documents: LocalDocuments | None = None,
    *,
    num_fewshot: int = 0,
    limit: int | None = None,
    seed: int = 1234,
) -> tuple[list[Question], str]:
    """Questions of a multiple-choice task, and the split of their few-shot examples.

    ``documents`` are by default the task's dataset on the hub; ``limit`` takes the first ones. The
    split is ``"training"``, or ``"evaluated"``, which then leaves out the question itself.
    """
    try:
        import lm_eval.tasks  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "lm_tasks: needs the package 'lm-eval', got none installed. "
            "Run: pip install 'diffattn[eval]'"
        ) from error
    with _quiet():
        built = harness_task(task, documents, num_fewshot=num_fewshot, seed=seed)
        source = "training" if built.has_training_docs() else "evaluated"
        have = len(built.sampler.df)
        if num_fewshot and have < num_fewshot + 1:
            raise ConfigError(
                f"{task}: {num_fewshot}-shot needs {num_fewshot + 1} documents to draw from, "
                f"got {have}."
            )
        return [
            _question(built, document, num_fewshot)
            for _, document in built.doc_iterator(limit=limit)
        ], source


def harness_task(
    task: str, documents: LocalDocuments | None = None, *, num_fewshot: int = 0, seed: int = 1234
) -> Any:
    """The harness's task object, with local documents if given; see :func:`harness_questions`."""
    from lm_eval import tasks

    root = Path(tasks.__file__).parent
    paths = [root / name for name in _FOLDERS]
    manager = tasks.TaskManager(include_defaults=False, include_path=paths)
    changes: dict[str, Any] = {"task": task}
    if num_fewshot:  # with a 0 here, the harness's own loop would accept no other number
        changes["num_fewshot"] = num_fewshot
    if documents is not None:
        changes |= _local_changes(documents, has_test=task.startswith(("arc", "openbook")))
    try:  # the harness loads a task with changes as a member of a group
        (built,) = manager.load({"group": "diffattn", "task": [changes]})["tasks"].values()
    except (OSError, ValueError, RuntimeError) as error:
        if documents is not None:
            raise
        raise ConfigError(
            f"{task}: its dataset must be on the hub or in the hub's cache, "
            f"got: {first_line(error)}. Name a folder of local files: data=FOLDER."
        ) from error
    built.set_fewshot_seed(seed=seed)
    return built


def continuation(model: LanguageModel, context: str, text: str) -> tuple[Continuation, int]:
    """Tokens of ``text`` after ``context``, and the number of tokens cut off the context.

    A context that is too long loses its beginning; the last token of ``text`` is only predicted. If
    a token spans both texts, the context has the tokens that it has alone, as in the harness.
    """
    given, target = model.encode_pair(context, text, special=True)
    alone = model.encode_prompt(context.rstrip(), special=True)
    given = alone or given  # an empty context is BOS or EOS
    if not context and given == target[:1]:  # the text itself may spell out this token
        target = target[1:]
    if not target:
        raise ItemError(f"harness: a continuation must have a token or more, got none of {text!r}.")
    if len(target) > model.max_length:
        raise ItemError(
            f"harness: a continuation must fit the model's {model.max_length} tokens, "
            f"got {len(target)}."
        )
    cut = max(0, len(given) + len(target) - (model.max_length + 1))
    return Continuation(tuple(given[cut:]), tuple(target)), cut


def _question(task: Any, document: Any, num_fewshot: int) -> Question:
    context = task.fewshot_context(document, num_fewshot=num_fewshot)
    requests = task.construct_requests(doc=document, ctx=context, metadata=(task.task_name, 0, 1))
    pairs = tuple(
        (normalise_line_ends(str(given)), normalise_line_ends(str(text)))  # hub text is raw
        for given, text in (request.args for request in requests)
    )
    gold = (task.doc_to_text if task.multiple_input else task.doc_to_target)(document)
    delimiter = task.config.target_delimiter
    return Question(pairs, tuple(text.removeprefix(delimiter) for _, text in pairs), int(gold))


def _local_changes(documents: LocalDocuments, has_test: bool) -> dict[str, Any]:
    """Changes of a task's configuration that replace its dataset by local documents."""
    import datasets

    evaluated = "test" if has_test else "validation"
    splits = {evaluated: datasets.Dataset.from_list(documents.evaluated)}
    if documents.training is not None:
        splits["train"] = datasets.Dataset.from_list(documents.training)

    changes: dict[str, Any] = {
        "custom_dataset": lambda **ignored: splits,
        "dataset_path": "local",
        "training_split": "train" if "train" in splits else None,
        "validation_split": None if has_test else evaluated,
    }
    if has_test and documents.training is None:
        changes["fewshot_split"] = evaluated  # otherwise a question could be its own example
    return changes


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the harness's warnings about its defaults, and progress bars of ``datasets``."""
    import datasets

    logger = logging.getLogger("lm_eval")
    level, bars = logger.level, not datasets.are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            datasets.enable_progress_bars()
