"""Retrieval from a JSON object of random keys and values."""

import json
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.lengths import LengthProtocol, most_that_fits
from diffattn.lab.evaluation.metrics import guess_metrics, guess_shares, rows_with, score_metric
from diffattn.lab.evaluation.protocol import Item, Summary, prompt_facts
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.records.evaluations import Metric

_INSTRUCTION = "Extract the value corresponding to the specified key in the JSON object below."


@dataclass(frozen=True, kw_only=True, slots=True)
class _Object:
    """A JSON object and the questions about it."""

    pairs: int  # number of key-value pairs
    context: str  # instruction, object and worked examples as text
    asked: tuple[tuple[str, str, int], ...]  # key, value and index of the pair for each question
    unseen: tuple[str, ...]  # values that no worked example shows

    def prompts(self) -> list[str]:
        return [f"{self.context}Key: {key}\nCorresponding value:" for key, _, _ in self.asked]


class KeyValues(LengthProtocol):
    """The value of a key: exact match of a UUID in a JSON object of UUIDs."""

    name = "key_values"
    choices = {
        "prompt": "instruction, object, two worked examples from the same object, key; "
        "completion (HELMET puts the instruction behind the object)",
        "length": "BOS, prompt and generation budget; every object filled to its own largest "
        "number of pairs (HELMET: one number of pairs per length, such as 440 for 32K)",
        "questions": "5 about each object, which share its reading; intervals count objects "
        "(HELMET: one object per question)",
        "position": "the queried pairs lie evenly over the object, question by question and "
        "object by object; examples are other pairs, at random",
        "score": "the value is in the output up to the line end; teacher-forced log-probability "
        "beside it",
        "guess": "expected recall of naming any value that no worked example has shown, and of "
        "naming as many as the output does",
    }
    quick = {"num_pairs": (8,), "samples": 4, "questions": 2}
    quick_short = {"num_pairs": (4,)}

    lengths: tuple[int, ...] | None = None
    """Cells by tokens, generation included. Default: those of 4K, 8K, ... 128K that fit."""
    num_pairs: tuple[int, ...] | None = None
    """Cells by number of pairs in the object, in place of ``lengths``."""
    samples: int = 100  # questions per cell
    questions: int = 5  # per object; a divisor of ``samples``
    examples: int = 2  # worked ones before the key
    seed: int = 1234

    def __post_init__(self) -> None:
        if self.lengths is not None and self.num_pairs is not None:
            raise ConfigError(
                "key_values: one of lengths and num_pairs must be null, got both: "
                f"{self.lengths}, {self.num_pairs}. With --quick, num_pairs is set."
            )
        self.require_at_least(1, "lengths", "samples", "questions")
        self.require_at_least(0, "examples")
        if self.samples % self.questions:
            raise ConfigError(
                f"key_values: samples must be a multiple of questions={self.questions}, "
                f"got {self.samples}."
            )
        self.require_at_least(self.questions + self.examples, "num_pairs")

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """One object per batch, with its questions: their prompts differ only in the key."""
        for cell in self._cells(model):
            limit = model.max_length if self.num_pairs else cell
            least = cell if self.num_pairs else self.questions + self.examples
            needed = self._tokens(model, self._object(cell, 0, least))
            if needed > limit:
                room = model.label if self.num_pairs else f"a length of {cell} tokens"
                raise ConfigError(
                    f"key_values: {room} is too short for {least} pairs; with this tokenizer they "
                    f"need at least {needed} tokens, got {limit}."
                )
        return [
            [
                Item(
                    id=f"{cell}-{number * self.questions + question}",
                    payload=(cell, number, question),
                    cluster=f"{cell}-object{number}",
                )
                for question in range(self.questions)
            ]
            for cell in self._cells(model)
            for number in range(self.samples // self.questions)
        ]

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        cell, number, _ = items[0].payload
        sample = self._fit(model, cell, number)
        chosen = [item.payload[2] for item in items]
        texts = [sample.prompts()[i] for i in chosen]
        values = [sample.asked[i][1] for i in chosen]
        budget = self._budget(model, sample)
        done = model.complete(texts, values, max_new_tokens=budget, stop=("\n",))
        return [
            {
                "pairs": sample.pairs,
                **({} if self.num_pairs else {"length": cell}),
                "position": sample.asked[i][2],
                "depth": round(100 * sample.asked[i][2] / sample.pairs),
                "expected": value,
                "output": completion.text,
                "prompt_tokens": completion.prompt_tokens,
                "prompt": prompt_facts(completion.prompt),
                **guess_shares(1, len(sample.unseen), _num_named(completion.text, sample.unseen)),
                "scores": {
                    "recall": float(_num_named(completion.text, [value])),
                    "logprob_per_token": completion.logprob_per_token,
                },
            }
            for i, value, completion in zip(chosen, values, done, strict=True)
        ]

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        name = "pairs" if self.num_pairs else "length"
        cells = sorted({int(row[name]) for row in rows})
        groups: list[tuple[dict[str, Any], list[Mapping[str, Any]]]] = [({}, list(rows))]
        for cell in cells:
            of_cell = rows_with(rows, **{name: cell})
            groups.append(({name: cell}, of_cell))
            for depth in range(0, 100, 20):
                part = [row for row in of_cell if depth <= min(row["depth"], 99) < depth + 20]
                groups.append(({name: cell, "depth": depth}, part))
        metrics: list[Metric] = []
        for where, group in groups:
            metrics += score_metric("recall", group, where, headline="depth" not in where)
            metrics += guess_metrics(group, where) if "depth" not in where else []
        return Summary(metrics=metrics)

    def _cells(self, model: LanguageModel) -> tuple[int, ...]:
        return self.num_pairs or self.lengths_that_fit(model)

    def _fit(self, model: LanguageModel, cell: int, number: int) -> _Object:
        """The object with the wanted number of pairs, or with as many as fit the length."""
        if self.num_pairs:
            return self._object(cell, number, cell)
        least = self.questions + self.examples

        def count(pairs: int) -> int:
            return self._tokens(model, self._object(cell, number, pairs), first_only=True)

        pairs = most_that_fits(count, cell, least=least, most=cell) or least
        fitting = self._object(cell, number, pairs)
        # Keys differ by a few tokens, and the longest prompt must fit.
        while pairs > least and self._tokens(model, fitting) > cell:
            pairs -= 1
            fitting = self._object(cell, number, pairs)
        return fitting

    def _tokens(self, model: LanguageModel, sample: _Object, *, first_only: bool = False) -> int:
        prompts = sample.prompts()[:1] if first_only else sample.prompts()
        return max(len(model.encode_prompt(p)) for p in prompts) + self._budget(model, sample)

    def _budget(self, model: LanguageModel, sample: _Object) -> int:
        # A value, quotes, and the line end that stops the answer.
        return max(len(model.encode(f" {value}")) for _, value, _ in sample.asked) + 4

    def _object(self, cell: int, number: int, pairs: int) -> _Object:
        draw = random.Random(f"{self.seed}-{cell}-{number}")
        # Pairs are drawn one by one, so a larger object begins with the pairs of a smaller one.
        entries = [(_uuid(draw), _uuid(draw)) for _ in range(pairs)]
        objects = self.samples // self.questions
        places = [
            int(pairs * (question + (number + 0.5) / objects) / self.questions)
            for question in range(self.questions)
        ]
        others = [i for i in range(pairs) if i not in set(places)]
        shown = random.Random(f"{self.seed}-{cell}-{number}-examples").sample(others, self.examples)
        body = json.dumps(dict(entries), indent=1)
        examples = "".join(
            f"Key: {key}\nCorresponding value: {value}\n\n"
            for key, value in (entries[i] for i in shown)
        )
        return _Object(
            pairs=pairs,
            context=f"{_INSTRUCTION}\n\nJSON data:\n{body}\n\n{examples}",
            asked=tuple((*entries[i], i) for i in places),
            unseen=tuple(value for i, (_, value) in enumerate(entries) if i not in set(shown)),
        )


def _num_named(output: str, values: Sequence[str]) -> int:
    written = output.lower()
    return sum(value in written for value in values)


def _uuid(draw: random.Random) -> str:
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))
