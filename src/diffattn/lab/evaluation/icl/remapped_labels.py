"""In-context learning of labels without meaning: classes are renamed to random numbers."""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.icl.data import OVERLAP_CHOICE, Example, IclData, load_icl_data
from diffattn.lab.evaluation.icl.demonstrations import (
    IclProtocol,
    balanced_rounds,
    kept_per_model,
    most_within,
)
from diffattn.lab.evaluation.metrics import GUESSES, guess_metrics, rows_with, score_metric
from diffattn.lab.evaluation.protocol import Item, Summary, prompt_facts
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.scoring import LabelTrie
from diffattn.lab.records.evaluations import Metric

_INSTRUCTION = (
    "Use the provided mapping from the text to label to assign a label to the text. "
    'Only output "label: {label}" and nothing else. '
)
_SHOTS = {
    "trec": (400, 800, 1_600, 3_300, 6_600),
    "trec_fine": (400, 800, 1_600, 3_200, 6_400),
    "banking77": (360, 720, 1_450, 2_900, 5_900),
    "clinic150": (440, 880, 1_750, 3_525, 7_050),
    "clinic151": (440, 880, 1_750, 3_525, 7_050),
}
_NEW_TOKENS = 20


class RemappedLabels(IclProtocol):
    """Classification from demonstrations with random numbers as labels, new for every question."""

    name = "remapped_labels"
    choices = {
        **OVERLAP_CHOICE,
        "demonstrations": "balanced rounds, drawn per question from a hash of its text and the "
        "seed; unlike the reference, an exhausted class is drawn again in rounds of its own",
        "test items": "balanced rounds over the test set, the same for every number and model",
        "score": "exact match of the line after 'label:', after decoding freely; beside it the "
        "number that greedy decoding writes if only the numbers can be written",
        "guess": "one of the classes; and the number that most demonstrations have, of several the "
        "one shown last",
        "sets": "TREC, TREC-fine, Banking-77, Clinic-150; the reference's NLU has no files here, "
        "and its Clinic test is the validation part (here: test)",
        "chat": "completion, no chat template",
    }
    quick = {"data": "generated", "shots": (12,), "test_items": 8}
    quick_short = {"shots": (5,)}

    shots: tuple[int, ...] | None = None  # default: the reference's, for 8K to 128K tokens
    test_items: int = 500
    seed: int = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "shots", "test_items")

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.shots or _SHOTS[self.dataset])))

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        _, _, test, shots = self._ready(model)
        return [[Item(id=f"{n}-{i}", payload=(n, i), cluster=str(i))] for n in shots for i in test]

    def material(self, model: LanguageModel, items: Sequence[Item]) -> Any:
        return self._ready(model)[0]

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        data, trie, test, _ = self._ready(model)
        (item,) = items
        count, i = item.payload
        prompt, number = self.prompt(data, test[i], count)
        tokens = model.encode_prompt(prompt)
        prefix, last = model.read(tokens[:-1]), [tokens[-1:]]
        (free,) = model.generate(last, max_new_tokens=_NEW_TOKENS, stop=("\n",), before=prefix)
        (reading,) = model.read_labels(trie, last, before=prefix)
        answer = free.text.rpartition("label:")[2].strip()
        at = trie.labels.index(number)
        row = {
            "shots": count,
            "text": test[i].text,
            "expected": number,
            "output": free.text,
            "among_numbers": trie.labels[reading.greedy],
            "prompt_tokens": len(tokens),
            "prompt": prompt_facts(prompt),
            GUESSES[0]: 1 / len(trie.labels),
            GUESSES[1]: float(number == most_shown(prompt)),
            "scores": {
                "exact_match": float(answer == number),
                "accuracy_among_numbers": float(reading.greedy == at),
                "expected_logprob": reading.logprobs[at],
            },
        }
        return [row]

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        metrics: list[Metric] = []
        asked = [n for n in self.grid if rows_with(rows, shots=n)]
        for n in asked:
            of_number = rows_with(rows, shots=n)
            metrics += score_metric("exact_match", of_number, {"shots": n}, headline=True)
            metrics += score_metric("accuracy_among_numbers", of_number, {"shots": n})
            metrics += guess_metrics(of_number, {"shots": n})
        cut = [n for n in self.grid if n not in asked]
        return Summary(metrics=metrics, tables={"shots_not_asked": cut})

    def prompt(self, data: IclData, example: Example, count: int) -> tuple[str, str]:
        seed = _hashed(f"{self.seed}\n{example.text}")
        generator = random.Random(f"numbers-{seed}")
        numbers = generator.sample(range(len(data.labels)), len(data.labels))
        renamed = {label: str(number) for label, number in zip(data.labels, numbers, strict=True)}
        context = "\n\n".join(
            f"{shown.text}\nlabel: {renamed[shown.label]}"
            for shown in self._demonstrations(data, example, count)
        )
        return f"{_INSTRUCTION}\n\n{context}\n\n{example.text}\nlabel:", renamed[example.label]

    def _demonstrations(self, data: IclData, example: Example, count: int) -> list[Example]:
        """The first ``count`` demonstrations of a question; new rounds begin if all are used."""
        seed, chosen = _hashed(f"{self.seed}\n{example.text}"), list[Example]()
        while len(chosen) < count:
            again = _hashed(f"{seed}-{len(chosen)}")
            chosen += balanced_rounds(data.train, again, count - len(chosen))
        return chosen

    @kept_per_model
    def _ready(
        self, model: LanguageModel
    ) -> tuple[IclData, LabelTrie, dict[int, Example], list[int]]:
        """Data, numbers, test items by index, and the numbers of demonstrations that fit."""
        data = load_icl_data(self.dataset, self.data, self.columns)
        if len(data.test) < self.test_items:
            raise ConfigError(
                f"{self.name}: test_items must be at most {len(data.test)}, got {self.test_items}."
            )
        place = {id(example): i for i, example in enumerate(data.test)}  # texts may occur twice
        chosen = balanced_rounds(data.test, self.seed, self.test_items)
        test = dict(sorted((place[id(example)], example) for example in chosen))
        trie = LabelTrie(model, [str(i) for i in range(len(data.labels))], "x\nlabel:")
        number = max(trie.labels, key=lambda label: len(model.encode(f"x\nlabel: {label}")))
        size = {
            example: len(model.encode_after("\n\n", f"{example.text}\nlabel: {number}\n\n"))
            for example in dict.fromkeys([*data.train, *test.values()])
        }
        rest = len(model.encode_prompt(_INSTRUCTION + "\n\n")) + max(_NEW_TOKENS, trie.longest)
        fit = max(self.grid)
        for example in test.values():
            shown = self._demonstrations(data, example, fit)
            fit = most_within((size[x] for x in shown), model.max_length - rest - size[example])
        return data, trie, test, self.numbers_that_fit(model, self.grid, fit)


def most_shown(prompt: str) -> str:
    """The most frequent number of a prompt's demonstrations; of several the one shown last."""
    shown = re.findall(r"^label: (\d+)$", prompt, re.MULTILINE)
    counts = Counter(reversed(shown))  # ties keep this order
    return counts.most_common(1)[0][0]


def _hashed(text: str) -> int:
    """A hash of the text below 2**63, the same on every system."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
