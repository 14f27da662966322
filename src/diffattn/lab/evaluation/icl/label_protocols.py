"""Accuracy of labels by the number of demonstrations, and over orders of the same ones."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np

from diffattn.errors import check_known
from diffattn.lab.evaluation.icl.data import ICL_DATASETS, OVERLAP_CHOICE, Example
from diffattn.lab.evaluation.icl.demonstrations import (
    DemonstrationReader,
    IclProtocol,
    IclTask,
    alternating_order,
    balanced_rounds,
    kept_per_model,
    most_within,
    skipped_classes,
)
from diffattn.lab.evaluation.metrics import rows_with, score_metric
from diffattn.lab.evaluation.protocol import Item, Summary, prompt_facts, split_batches
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.records.evaluations import Metric
from diffattn.lab.stats.intervals import expected_range

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
    """Everything that the items of one model share."""

    task: IclTask
    order: list[Example]
    groups: Sequence[int]  # of items with the same demonstrations: numbers of shots, or orders
    readers: dict[int, DemonstrationReader]  # by group


Demonstrations = tuple[DemonstrationReader, dict[str, Any]]


class LabelProtocol(IclProtocol):
    """A protocol that asks which label follows the question."""

    test_items: int = 100  # as in the paper's random format
    decoding: str = "greedy_trie"  # of the headline metrics; the other is ``loglik``
    seed: int = 43

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known(self.name, "decoding", self.decoding, DECODINGS)
        self.require_at_least(1, "test_items")

    @abstractmethod
    def ready(self, model: LanguageModel) -> Ready:
        """The data that all items of a model share, cached per model."""

    @abstractmethod
    def demonstrations(self, model: LanguageModel, ready: Ready, group: int) -> Demonstrations:
        """Demonstrations of a group, and the fields that its rows share, with ``shots``."""

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        ready = self.ready(model)
        items = [
            [Item(id=f"{n}-{i}", payload=(n, i), cluster=str(i)) for i in ready.task.test]
            for n in ready.groups
        ]
        return split_batches(items, 50)

    def material(self, model: LanguageModel, items: Sequence[Item]) -> Any:
        task = self.ready(model).task
        return task.train, task.test

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Both predictions for every item; one pass takes several items and all labels."""
        ready = self.ready(model)
        task, labels = ready.task, ready.task.trie.labels
        reader, facts = self.demonstrations(model, ready, items[0].payload[0])
        before = reader.prefix(model, facts["shots"])
        shown = model.decode(
            [token for piece in reader.pieces[: facts["shots"]] for token in piece]
        )
        chosen = [item.payload[1] for item in items]
        questions = [task.questions[i] for i in chosen]
        readings = model.read_labels(task.trie, questions, before=before)
        rows = []
        for i, question, reading in zip(chosen, questions, readings, strict=True):
            gold = labels.index(task.test[i].label)
            row = {
                "text": task.test[i].text,
                "expected": labels[gold],
                "labels": len(labels),
                "greedy_trie": labels[reading.greedy],
                "loglik": labels[reading.likeliest],
                "scores": {
                    "accuracy_greedy_trie": float(reading.greedy == gold),
                    "accuracy_loglik": float(reading.likeliest == gold),
                    "expected_logprob": reading.logprobs[gold],
                },
                "prompt_tokens": before.length + len(question),
                "prompt": prompt_facts(shown + model.decode(question)),
            }
            rows.append(facts | row)
        return rows

    def order_that_fits(
        self, model: LanguageModel, wanted: Sequence[int]
    ) -> tuple[IclTask, list[Example], list[list[int]], list[int]]:
        """Task, all training examples in order, tokens of demonstrations, numbers that fit."""
        task = IclTask(model, self, self.test_items, self.seed)
        order = balanced_rounds(task.train, self.seed)
        pieces = task.encode(model, order[: wanted[-1]])
        room = max(map(len, task.questions.values())) + task.trie.longest
        fit = most_within(map(len, pieces), model.max_length - room)
        return task, order, pieces, self.numbers_that_fit(model, wanted, fit)


class ManyShot(LabelProtocol):
    """Text classification from n labelled examples in the prompt, n up to the context length."""

    name = "many_shot"
    choices = PROMPT_CHOICES | {
        "demonstrations": "balanced rounds: every class once per round, without replacement; an "
        "exhausted class is skipped; the first n of one list, so prompts are nested",
        "numbers": "those of the paper's figure; those that do not fit the model are not asked",
        "test items": "drawn once, the same for every n and model",
    }
    quick = {"data": "generated", "shots": (6, 12, 30), "test_items": 12}

    shots: tuple[int, ...] | None = None  # default: the numbers of Fig. 6
    stable_from: int | None = None  # fewest shots in the second mean; default: as in Fig. 6

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "shots")

    @property
    def grid(self) -> tuple[int, ...]:
        """The wanted numbers of demonstrations, ascending."""
        wanted = ICL_DATASETS[self.dataset].shots if self.shots is None else self.shots
        return tuple(sorted(set(wanted)))

    @kept_per_model
    def ready(self, model: LanguageModel) -> Ready:
        task, order, pieces, shots = self.order_that_fits(model, self.grid)
        return Ready(task, order, shots, dict.fromkeys(shots, DemonstrationReader(pieces, shots)))

    def demonstrations(self, model: LanguageModel, ready: Ready, group: int) -> Demonstrations:
        facts = {"shots": group, "classes_skipped": skipped_classes(ready.order, group)}
        return ready.readers[group], facts

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        metrics: list[Metric] = []
        start = self.stable_from or ICL_DATASETS[self.dataset].stable_from
        late = [row for row in rows if row["shots"] >= start]
        by_number = {n: rows_with(rows, shots=n) for n in self.grid}
        asked = [n for n in self.grid if by_number[n]]
        for decoding in DECODINGS:
            name, chosen = f"accuracy_{decoding}", decoding == self.decoding
            metrics += score_metric(name, rows, {}, headline=chosen)
            metrics += score_metric(name, late, {"shots_from": start}, headline=chosen)
            for n in asked:
                metrics += score_metric(name, by_number[n], {"shots": n})
        metrics.append(most_frequent_answer(rows))
        tables = {"shots_not_asked": [n for n in self.grid if n not in asked]}
        return Summary(metrics=metrics, tables=tables)


def most_frequent_answer(rows: Sequence[Mapping[str, Any]]) -> Metric:
    """The accuracy of the best label to give always."""
    ((_, most),) = Counter(str(row["expected"]) for row in rows).most_common(1)
    return Metric(name="most_frequent_answer", value=most / len(rows), n=len(rows))


ORDERS = {
    "random": lambda examples, seed: Random(f"random-{seed}").sample(examples, len(examples)),
    "alternating": alternating_order,
}
_REPEATS = 2_000


class OrderRobustness(LabelProtocol):
    """The same demonstrations in several orders: best minus worst accuracy."""

    name = "order_robustness"
    choices = PROMPT_CHOICES | {
        "number": "the paper does not tell it; per_class times the classes, or by default the "
        "largest number of Fig. 6 that fits the model",
        "demonstrations": "the first of the balanced rounds of many_shot; orders permute them all",
        "alternating": "one of every class in turn, in an order of the classes drawn per seed; "
        "an exhausted class is skipped",
        "range by chance": "of independent binomial draws; and of the measured answers with each "
        "test item's right answers shuffled over the orders, which keeps the items' difficulty",
    }
    quick = {"data": "generated", "per_class": 2, "orders": 3, "test_items": 12}
    quick_short = {"per_class": 1}

    format: str = "random"  # or ``alternating``
    per_class: int | None = None  # default: as many as fit; see ``choices``
    orders: int = 10  # the paper has 10; in ``alternating`` 30, with 30 test items

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known(self.name, "format", self.format, ORDERS)
        self.require_at_least(1, "per_class")
        self.require_at_least(2, "orders")

    @kept_per_model
    def ready(self, model: LanguageModel) -> Ready:
        known = ICL_DATASETS[self.dataset]
        wanted = known.shots if self.per_class is None else (self.per_class * known.num_classes,)
        task, order, _, usable = self.order_that_fits(model, wanted)
        return Ready(task, order[: usable[-1]], range(self.orders), {})

    def demonstrations(self, model: LanguageModel, ready: Ready, group: int) -> Demonstrations:
        if group not in ready.readers:  # memory holds the cache of one order at a time
            pieces = ready.task.encode(model, ORDERS[self.format](ready.order, self.seed + group))
            ready.readers.clear()
            ready.readers[group] = DemonstrationReader(pieces, [len(pieces)])
        return ready.readers[group], {"order": group, "shots": len(ready.order)}

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        metrics = [most_frequent_answer(rows)]
        tables: dict[str, Any] = {"shots": rows[0]["shots"]}
        for decoding in DECODINGS:
            name, chosen = f"accuracy_{decoding}", decoding == self.decoding
            wheres = [{"order": n} for n in sorted({row["order"] for row in rows})]
            each = [x for w in wheres for x in score_metric(name, rows_with(rows, **w), w)]
            metrics += score_metric(name, rows, {}, headline=chosen)
            metrics += each
            ranges, facts = _ranges(_grid(rows, name), decoding, headline=chosen)
            metrics += ranges
            tables[name] = {"by_order": [m.value for m in each]} | facts
        return Summary(metrics=metrics, tables=tables)


def _grid(rows: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """Scores ``[orders, test items]`` of the items that were scored in every order."""
    orders = sorted({row["order"] for row in rows})
    by_item: dict[str, dict[int, float]] = {}
    for row in rows:
        by_item.setdefault(str(row["cluster"]), {})[row["order"]] = row["scores"][name]
    whole = [scores for scores in by_item.values() if len(scores) == len(orders)]
    return np.array([[scores[order] for scores in whole] for order in orders])


def _ranges(
    scores: np.ndarray, decoding: str, *, headline: bool
) -> tuple[list[Metric], dict[str, float]]:
    """The range over the orders with its interval, and the ranges expected by chance."""
    num_orders, n = scores.shape
    if n == 0:
        return [], {}
    generator = np.random.default_rng(0)
    means = scores.mean(1)
    margin = float(np.ptp(means))
    drawn = generator.integers(0, n, size=(_REPEATS, n))
    spread = np.ptp(scores[:, drawn].mean(2), axis=0)
    shuffled = np.array(
        [np.ptp(generator.permuted(scores, axis=0).mean(1)) for _ in range(_REPEATS)]
    )
    low, high = np.quantile(spread, [0.025, 0.975])
    facts = {
        "standard_deviation": float(means.std(ddof=1)),
        "best": float(means.max()),
        "worst": float(means.min()),
        "margin_expected_binomial": expected_range(float(means.mean()), n, num_orders),
        "margin_expected_dealt": float(shuffled.mean()),
        # The measured margin counts, so p is never 0. 1e-12 is for other orders of summation.
        "margin_p_value": (1 + int((shuffled >= margin - 1e-12).sum())) / (1 + _REPEATS),
    }
    interval: dict[str, Any] = {"method": "none: no answer changed with the order"}
    if np.ptp(scores, axis=0).any():
        ends = {"low": min(margin, float(low)), "high": max(margin, float(high))}
        interval = ends | {"method": "bootstrap over test items"}
    values = facts | {"margin": margin}
    metrics = [
        Metric(
            name=f"{name}_{decoding}",
            value=values[name],
            n=count,
            headline=headline,
            higher_is_better=better,
            **(interval if name == "margin" else {}),
        )
        for name, count, better in (
            ("margin", n, False),
            ("margin_expected_binomial", n, None),
            ("margin_expected_dealt", n, None),
            ("standard_deviation", num_orders, False),
        )
    ]
    return metrics, facts
