"""Many-shot in-context learning: accuracy over the number of demonstrations."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffattn.lab.evaluation.icl.data import ICL_DATASETS, OVERLAP_CHOICE, Example
from diffattn.lab.evaluation.icl.demonstrations import (
    DemonstrationReader,
    IclProtocol,
    IclTask,
    kept_per_model,
    skipped_classes,
)
from diffattn.lab.evaluation.metrics import metric, score_metric
from diffattn.lab.evaluation.protocol import Item, Summary, prompt_facts, split_long_batches
from diffattn.lab.inference.label_trie import LabelReading, LabelTrie
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import Prefix
from diffattn.lab.records.evaluations import Metric
from diffattn.lab.stats.proportions import share_interval
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

    def task(self, model: LanguageModel) -> IclTask:
        """The data set as the model reads it."""
        return IclTask(model, self.dataset, self.data, self.test_items, self.seed, self.columns)


@dataclass(kw_only=True, slots=True)
class _Ready:
    task: IclTask
    order: list[Example]
    tokens: dict[int, int]
    """Tokens of the demonstrations, by their number."""
    reader: DemonstrationReader


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

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """One batch per number of demonstrations, which all its items follow."""
        ready = self._ready(model)
        items = [
            [Item(id=f"{n}-{i}", payload=(n, i), cluster=str(i)) for i in ready.task.test]
            for n in ready.tokens
        ]
        return split_long_batches(items, 50)

    def material(self, model: LanguageModel, items: Sequence[Item]) -> Any:
        """The examples."""
        task = self._ready(model).task
        return task.train, task.test

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Both predictions of every item, all labels in one pass."""
        ready = self._ready(model)
        (count,) = {item.payload[0] for item in items}
        prefix = ready.reader.prefix(model, count)
        facts = {"shots": count, "classes_skipped": skipped_classes(ready.order, count)}
        chosen = [item.payload[1] for item in items]
        return label_rows(model, ready.task, chosen, prefix, facts, ready.reader.text(model, count))

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """Accuracy per number, over all numbers, and over those from ``stable_from`` on."""
        metrics, curve = [], []
        start = self.stable_from or ICL_DATASETS[self.dataset].stable_from
        asked = [n for n in self.grid if any(row["shots"] == n for row in rows)]
        for decoding in DECODINGS:
            name, chosen = f"accuracy_{decoding}", decoding == self.decoding
            metrics.append(mean_accuracy(name, rows, {}, headline=chosen))
            late = [row for row in rows if row["shots"] >= start]
            if late:
                where = {"shots_from": start}
                metrics.append(mean_accuracy(name, late, where, headline=chosen))
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

    @kept_per_model
    def _ready(self, model: LanguageModel) -> _Ready:
        task = self.task(model)
        order = task.rounds(self.seed)
        pieces = task.encode(model, order[: self.grid[-1]])
        fit = task.how_many_fit(model, pieces)
        shots = self.numbers_that_fit(model, self.grid, fit)
        tokens = {n: sum(map(len, pieces[:n])) for n in shots}
        reader = DemonstrationReader(pieces, shots)
        return _Ready(task=task, order=order, tokens=tokens, reader=reader)


def label_rows(
    model: LanguageModel,
    task: IclTask,
    chosen: list[int],
    before: Prefix,
    facts: dict[str, Any],
    shown: str,
) -> list[dict[str, Any]]:
    """Rows of chosen test items after demonstrations, whose text is ``shown``."""
    questions = [task.questions[i] for i in chosen]
    readings = model.read_labels(task.trie, questions, before=before)
    return [
        facts
        | _row(task.trie, task.test[i], reading)
        | {"prompt_tokens": before.length + len(question)}
        | {"prompt": prompt_facts(shown + model.decode(question))}
        for i, question, reading in zip(chosen, questions, readings, strict=True)
    ]


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


def mean_accuracy(
    name: str, rows: Sequence[Mapping[str, Any]], where: dict[str, Any], *, headline: bool
) -> Metric:
    """Mean over rows that ask the same test items again and again."""
    interval = share_interval(
        [row["scores"][name] for row in rows], [str(row["cluster"]) for row in rows]
    )
    return metric(name, interval, where=where, headline=headline)
