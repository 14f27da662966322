"""The seven tasks of Tables 1 and 8, asked as lm-evaluation-harness asks them."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.errors import ConfigError, first_line
from diffattn.lab.data.files import normalise_line_ends
from diffattn.lab.evaluation.lm_tasks.documents import (
    FIELDS,
    TASKS,
    LocalDocuments,
    generated_documents,
    read_task,
)
from diffattn.lab.evaluation.metrics import Row, metric, task_metric
from diffattn.lab.evaluation.protocol import Item, Protocol, Summary, prompt_facts, split_batches
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ItemError
from diffattn.lab.inference.scoring import Continuation, Score
from diffattn.lab.stats.intervals import mean_of_shares, wilson_interval

_METRICS = ("acc", "acc_norm", "acc_bytes")
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


@dataclass(frozen=True, slots=True)
class _Asked:
    """Payload of an item."""

    task: str
    document: int
    weight: float  # so that the weighted mean over items is the mean over tasks
    question: Question
    examples_from: str | None  # split of the few-shot examples; None: 0-shot


class LmTasks(Protocol):
    """Accuracy by the log-likelihood of each choice.

    Source: arXiv:2410.05258v2, Tables 1 and 8; EleutherAI/lm-evaluation-harness.
    """

    name = "lm_tasks"
    choices = {
        "metric": "headline acc, and acc_norm for hellaswag, as in the paper's baseline rows; "
        "acc, acc_norm and acc_bytes are always stored",
        "acc_norm": "divides by characters, as the harness does; for winogrande, whose choices "
        "share one text, it equals acc",
        "prompts": "those of the installed lm-eval; the paper's baselines come from an older one",
        "examples": "drawn by the harness with seed 1234, which the paper does not state; from "
        "the training split, else from the evaluated one without the question",
        "BOS": "begins every sequence where the tokenizer puts it by its own settings, as in the "
        "harness; --bos and --no-bos say otherwise; an empty context is BOS, else EOS",
        "truncation": "from the left to max_length inputs, as the harness does, and counted",
        "boolq": "title and passage as in SuperGLUE",
        "average": "unweighted mean of the tasks; interval within tasks",
    }
    quick = {"limit": 4, "data": "generated"}

    tasks: tuple[str, ...] = TASKS
    num_fewshot: int = 0  # solved examples before each question
    data: str = "hub"
    """A folder with ``TASK.jsonl`` (and ``TASK_train.jsonl``), ``"hub"``, or ``"generated"`` for
    made-up documents."""
    columns: dict[str, str] = field(default_factory=dict)
    """``FIELD`` or ``TASK.FIELD`` to its name in the local files."""
    limit: int | None = None  # first documents of each task; default: all
    seed: int = 1234  # of the few-shot examples and of made-up documents

    def __post_init__(self) -> None:
        self.require_names("tasks", TASKS)
        names = dict.fromkeys(name for task in self.tasks for name in FIELDS[task])
        of_tasks = [f"{task}.{name}" for task in self.tasks for name in FIELDS[task]]
        self.require_columns([*names, *of_tasks], fixed=("hub", "generated"))
        self.require_at_least(0, "num_fewshot", "seed")
        self.require_at_least(1, "limit")

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """Batches of documents, task by task. All files are read before the first is asked."""
        local: dict[str, LocalDocuments | None] = {}
        for task in self.tasks:
            if self.data == "hub":
                local[task] = None
            elif self.data == "generated":
                local[task] = generated_documents(task, self.limit or 100, self.seed)
            else:
                local[task] = read_task(Path(self.data).expanduser(), task, self.columns)
        read = {
            task: harness_questions(
                task, documents, num_fewshot=self.num_fewshot, limit=self.limit, seed=self.seed
            )
            for task, documents in local.items()
        }
        total = sum(len(questions) for questions, _ in read.values())
        batches: list[list[Item]] = []
        for task, (questions, examples_from) in read.items():
            weight = total / (len(read) * len(questions))
            source = examples_from if self.num_fewshot else None
            items = [
                Item(id=f"{task}-{i}", payload=_Asked(task, i, weight, question, source))
                for i, question in enumerate(questions)
            ]
            batches += split_batches([items], 16)
        return batches

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        asked: list[_Asked] = [item.payload for item in items]
        for entry in asked:
            if not all(entry.question.choices):
                raise ItemError(
                    f"lm_tasks: {entry.task} document {entry.document}: choices must not be empty, "
                    f"got {list(entry.question.choices)}."
                )
        model = model.as_its_tokenizer_begins()
        pairs = [continuation(model, *pair) for entry in asked for pair in entry.question.pairs]
        scores = model.score([pair for pair, _ in pairs])
        answered = zip(scores, (cut for _, cut in pairs), strict=True)
        rows = []
        for entry in asked:
            scored, cuts = zip(*islice(answered, len(entry.question.pairs)), strict=True)
            rows.append({"bos": model.bos is not None} | self._row(entry, scored, max(cuts)))
        return rows

    def _row(self, asked: _Asked, scores: Sequence[Score], cut: int) -> dict[str, Any]:
        question = asked.question
        logprobs = np.array([score.logprob for score in scores])
        sizes = {
            "acc": np.ones(len(logprobs)),
            "acc_norm": np.array([len(text) for text in question.choices], float),
            "acc_bytes": np.array([len(text.encode()) for text in question.choices], float),
        }
        chosen = {name: int(np.argmax(logprobs / sizes[name])) for name in _METRICS}
        right = {name: float(choice == question.gold) for name, choice in chosen.items()}
        share = np.exp(logprobs - np.logaddexp.reduce(logprobs))[question.gold]
        scored = {f"{asked.task} {name}": right[name] for name in ("acc", "acc_norm")}
        scored[f"{asked.task} share of the gold choice"] = float(share)
        if len(self.tasks) > 1:
            scored["average"] = right[task_metric(asked.task)]
        return {
            "task": asked.task,
            "document": asked.document,
            "prompt": prompt_facts(question.text()),
            "gold": question.gold,
            "logprobs": logprobs.tolist(),
            "tokens": [len(score.token_logprobs) for score in scores],
            "greedy": [score.is_greedy for score in scores],
            "cut_tokens": cut,
            "chosen": chosen,
            **right,
            **({"examples_from": asked.examples_from} if asked.examples_from else {}),
            "scores": scored,
            **({"weights": {"average": asked.weight}} if "average" in scored else {}),
        }

    def summarise(self, rows: Sequence[Row]) -> Summary:
        metrics, columns, counts = [], [], {}
        for task in self.tasks:
            of_task = [row for row in rows if row["task"] == task]
            if not of_task:
                continue
            counts[task] = {
                "documents": len(of_task),
                "cut_contexts": sum(row["cut_tokens"] > 0 for row in of_task),
            }
            for name in _METRICS:
                interval = wilson_interval(sum(int(row[name]) for row in of_task), len(of_task))
                headline = name == task_metric(task)
                metrics.append(metric(name, interval, where={"task": task}, headline=headline))
            columns.append([float(row[task_metric(task)]) for row in of_task])
        if len(columns) > 1:
            metrics.append(metric("average", mean_of_shares(columns), headline=True))
        return Summary(metrics=metrics, tables={"documents": counts, "bos": rows[0]["bos"]})


def harness_questions(
    task: str,
    documents: LocalDocuments | None = None,
    *,
    num_fewshot: int = 0,
    limit: int | None = None,
    seed: int = 1234,
) -> tuple[list[Question], str]:
    """The first ``limit`` questions of a task, of the hub's dataset or of local documents, and the
    split of their few-shot examples: ``"training"``, or ``"evaluated"`` without the question
    itself."""
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
