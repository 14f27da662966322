"""Many-shot in-context learning: accuracy over the number of demonstrations."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from diffattn.lab.evaluation.icl.data import ICL_DATASETS, OVERLAP_CHOICE, Example
from diffattn.lab.evaluation.icl.demonstrations import (
    DemonstrationReader,
    IclProtocol,
    IclTask,
    balanced_rounds,
    kept_per_model,
    skipped_classes,
)
from diffattn.lab.evaluation.metrics import score_metric
from diffattn.lab.evaluation.protocol import Item, Summary, prompt_facts, split_long_batches
from diffattn.lab.inference.label_trie import LabelReading, LabelTrie
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.records.evaluations import Metric
from diffattn.models.config.known_names import check_known

DECODINGS = ("greedy_trie", "loglik")
PROMPT_CHOICES = {
    **OVERLAP_CHOICE,
    "labels": "greedy over the trie of label tokens with a hard mask, every label ended by a line "
    "break; beside it the label of the highest log-probability, line break included",
    "length filter": "texts above the 99th percentile of the training texts in characters, not "
    "tokens, are left out, so that every model is asked the same items",
    "encoding": "every demonstration is encoded as it follows a separator, and the pieces joined",
    "text": "line breaks and repeated spaces within a text become one space",
}


class Ready(NamedTuple):
    """A data set as one model reads it, and demonstrations in their order."""

    task: IclTask
    order: list[Example]
    readers: dict[Any, DemonstrationReader]


@dataclass(frozen=True, kw_only=True)
class LabelProtocol(IclProtocol):
    """A protocol that asks which of the labels follows."""

    test_items: int = 100
    """As in the paper's random format; 250 make the intervals a third narrower."""
    decoding: str = "greedy_trie"
    """``greedy_trie`` or ``loglik``: which is the headline. Both are recorded."""
    seed: int = 43

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known(self.name, "decoding", self.decoding, DECODINGS)
        self.require_at_least(1, "test_items")

    @abstractmethod
    def ready(self, model: LanguageModel) -> Ready:
        """What all items share, kept for a model."""

    @abstractmethod
    def groups(self, ready: Ready) -> Sequence[int]:
        """Numbers of the demonstrations that some items follow."""

    @abstractmethod
    def demonstrations(
        self, model: LanguageModel, ready: Ready, group: int
    ) -> tuple[DemonstrationReader, dict[str, Any]]:
        """Demonstrations of a group, and its fields of a row, ``shots`` among them."""

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """One batch per group, whose demonstrations all its items follow."""
        ready = self.ready(model)
        items = [
            [Item(id=f"{n}-{i}", payload=(n, i), cluster=str(i)) for i in ready.task.test]
            for n in self.groups(ready)
        ]
        return split_long_batches(items, 50)

    def material(self, model: LanguageModel, items: Sequence[Item]) -> Any:
        """The examples."""
        task = self.ready(model).task
        return task.train, task.test

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Both predictions of every item, all labels in one pass."""
        ready = self.ready(model)
        (group,) = {item.payload[0] for item in items}
        reader, facts = self.demonstrations(model, ready, group)
        before = reader.prefix(model, facts["shots"])
        shown, task = reader.text(model, facts["shots"]), ready.task
        chosen = [item.payload[1] for item in items]
        questions = [task.questions[i] for i in chosen]
        readings = model.read_labels(task.trie, questions, before=before)
        return [
            facts
            | _row(task.trie, task.test[i], reading)
            | {"prompt_tokens": before.length + len(question)}
            | {"prompt": prompt_facts(shown + model.decode(question))}
            for i, question, reading in zip(chosen, questions, readings, strict=True)
        ]

    def order_that_fits(
        self, model: LanguageModel, wanted: Sequence[int], hint: str = ""
    ) -> tuple[IclTask, list[Example], list[list[int]], list[int]]:
        """Task, all training examples in order, tokens of the wanted ones, and numbers that fit."""
        task = IclTask(model, self.dataset, self.data, self.test_items, self.seed, self.columns)
        order = balanced_rounds(task.train, self.seed)
        pieces = task.encode(model, order[: wanted[-1]])
        fit = task.how_many_fit(model, pieces)
        return task, order, pieces, self.numbers_that_fit(model, wanted, fit, hint)


@dataclass(frozen=True, kw_only=True)
class ManyShot(LabelProtocol):
    """Text classification from n labelled examples in the prompt, n up to the context length.

    Source: arXiv:2410.05258v2, section 3.4 and Fig. 6; arXiv:2405.00200.
    """

    name = "many_shot"
    choices = PROMPT_CHOICES | {
        "demonstrations": "balanced rounds: every class once per round, without replacement; an "
        "exhausted class is skipped; the first n of one list, so prompts are nested",
        "numbers": "those of the paper's figure; those that do not fit the model are not asked",
        "test items": "drawn once, the same for every n and model",
    }
    quick = {"data": "generated", "shots": (6, 12, 30), "test_items": 12}

    shots: tuple[int, ...] | None = None
    """Numbers of demonstrations. Default: those of Fig. 6."""
    stable_from: int | None = None
    """A second mean over the numbers from here on. Default: where the paper's line begins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "shots")

    @property
    def grid(self) -> tuple[int, ...]:
        """The numbers of demonstrations that are wanted, ascending."""
        wanted = ICL_DATASETS[self.dataset].shots if self.shots is None else self.shots
        return tuple(sorted(set(wanted)))

    @kept_per_model
    def ready(self, model: LanguageModel) -> Ready:
        """See :meth:`LabelProtocol.ready`; all numbers have one reader."""
        task, order, pieces, shots = self.order_that_fits(model, self.grid)
        return Ready(task, order, dict.fromkeys(shots, DemonstrationReader(pieces, shots)))

    def groups(self, ready: Ready) -> Sequence[int]:
        """The numbers of demonstrations that fit."""
        return list(ready.readers)

    def demonstrations(
        self, model: LanguageModel, ready: Ready, group: int
    ) -> tuple[DemonstrationReader, dict[str, Any]]:
        """The first so many."""
        facts = {"shots": group, "classes_skipped": skipped_classes(ready.order, group)}
        return ready.readers[group], facts

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """Accuracy per number, over all numbers, and over those from ``stable_from`` on."""
        metrics: list[Metric] = []
        curve = []
        start = self.stable_from or ICL_DATASETS[self.dataset].stable_from
        asked = [n for n in self.grid if any(row["shots"] == n for row in rows)]
        for decoding in DECODINGS:
            name, chosen = f"accuracy_{decoding}", decoding == self.decoding
            metrics += score_metric(name, rows, {}, headline=chosen)
            late = [row for row in rows if row["shots"] >= start]
            metrics += score_metric(name, late, {"shots_from": start}, headline=chosen)
            for n in asked:
                of_number = [row for row in rows if row["shots"] == n]
                metrics += score_metric(name, of_number, {"shots": n})
        for n in asked:
            of_number = [row for row in rows if row["shots"] == n]
            accuracies = {m.name: m for m in metrics if m.where == {"shots": n}}
            curve.append(
                {"shots": n, "classes_skipped": of_number[0]["classes_skipped"]}
                | {"most_prompt_tokens": max(row["prompt_tokens"] for row in of_number)}
                | {
                    name: {"value": m.value, "low": m.low, "high": m.high, "n": m.n}
                    for name, m in accuracies.items()
                }
            )
        tables = {
            "curve": curve,
            "shots_not_asked": [n for n in self.grid if n not in asked],
            "most_frequent_answer": most_frequent_answer(rows),
        }
        return Summary(metrics=metrics, tables=tables)


def _row(trie: LabelTrie, example: Example, reading: LabelReading) -> dict[str, Any]:
    gold = trie.labels.index(example.label)
    return {
        "text": example.text,
        "expected": example.label,
        "labels": len(trie.labels),
        "greedy_trie": trie.labels[reading.greedy],
        "loglik": trie.labels[reading.likeliest],
        "scores": {
            "accuracy_greedy_trie": float(reading.greedy == gold),
            "accuracy_loglik": float(reading.likeliest == gold),
            "expected_logprob": reading.logprobs[gold],
        },
    }


def most_frequent_answer(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The accuracy of always giving the same label, whichever does best."""
    answers = Counter(str(row["expected"]) for row in rows).most_common(1)
    return {"label": answers[0][0], "share": answers[0][1] / len(rows)}
