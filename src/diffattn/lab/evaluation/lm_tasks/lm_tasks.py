"""The seven tasks of Tables 1 and 8, asked as lm-evaluation-harness asks them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.lab.evaluation.lm_tasks.documents import (
    FIELDS,
    TASKS,
    LocalDocuments,
    generated_documents,
    read_task,
)
from diffattn.lab.evaluation.lm_tasks.harness import Question, continuation, harness_questions
from diffattn.lab.evaluation.metrics import Row, metric, task_metric
from diffattn.lab.evaluation.protocol import Item, Protocol, Summary, prompt_facts, split_batches
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ItemError
from diffattn.lab.inference.scoring import Score
from diffattn.lab.stats.intervals import mean_of_shares, wilson_interval

_METRICS = ("acc", "acc_norm", "acc_bytes")


@dataclass(frozen=True, slots=True)
class _Asked:
    """Payload of an item."""

    task: str
    document: int
    weight: float
    """Weight of the item. The weighted mean over items is the unweighted mean over tasks."""
    question: Question
    examples_from: str | None  # split of the few-shot examples; None: 0-shot


@dataclass(frozen=True, kw_only=True)
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
    num_fewshot: int = 0
    """Number of solved examples before each question."""
    data: str = "hub"
    """A folder with ``TASK.jsonl`` (and ``TASK_train.jsonl``), ``"hub"``, or ``"generated"`` for
    made-up documents."""
    columns: dict[str, str] = field(default_factory=dict)
    """``FIELD`` or ``TASK.FIELD`` to its name in the local files."""
    limit: int | None = None
    """Number of documents of each task, from the first on. Default: all."""
    seed: int = 1234
    """Seed of the few-shot examples and of made-up documents."""

    def __post_init__(self) -> None:
        self.require_names("tasks", TASKS)
        names = dict.fromkeys(name for task in self.tasks for name in FIELDS[task])
        self.require_columns([*names, *(f"{t}.{name}" for t in self.tasks for name in FIELDS[t])])
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
        """Score every choice of every document; shared prefixes are read once."""
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
        """All metrics of each task, and the mean over tasks of the metrics in the paper's table."""
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
