"""Retrieval from a JSON object of random keys and values."""

import json
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffattn.errors import ConfigError
from diffattn.evaluation.decoding import generate
from diffattn.evaluation.language_model import LanguageModel
from diffattn.evaluation.protocol import Item, Protocol, Summary
from diffattn.evaluation.scoring import Continuation, score
from diffattn.records.evaluations import Metric
from diffattn.stats.proportions import wilson_interval

_INSTRUCTION = "Extract the value corresponding to the specified key in the JSON object below."


@dataclass(frozen=True, kw_only=True)
class KeyValues(Protocol):
    """Which value belongs to this key? Exact match of a UUID in a JSON object of UUIDs.

    Source: N. Liu et al., arXiv:2307.03172, section 3.1; HELMET, arXiv:2410.02694.
    """

    name = "key_values"
    version = 1
    source = "arXiv:2307.03172, section 3.1; arXiv:2410.02694 (JSON-KV)"
    summary = "the value of one key in a JSON object of random UUIDs"
    choices = {
        "prompt": "completion after 'Corresponding value:', no demonstrations",
        "score": "the value is in the output; teacher-forced log-probability beside it",
        "position": "the queried pair lies evenly over the object, sample by sample",
    }
    quick = {"num_pairs": (4,), "samples": 4}

    num_pairs: tuple[int, ...] = (50, 100, 200)
    """Pairs in the object; one cell each."""
    samples: int = 100
    """Objects per cell."""
    seed: int = 1234

    def __post_init__(self) -> None:
        if not self.num_pairs or min(self.num_pairs) < 1 or self.samples < 1:
            raise ConfigError(
                "key_values: num_pairs and samples must be 1 or more, "
                f"got {self.num_pairs}, {self.samples}."
            )

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """One object per batch: its items share no prefix worth keeping."""
        return [
            [Item(id=f"{pairs}-{sample}", payload=(pairs, sample))]
            for pairs in self.num_pairs
            for sample in range(self.samples)
        ]

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Generate, and score the value with its first half given nothing."""
        asked = [self._prompt(*item.payload) for item in items]
        prompts = [model.encode_prompt(prompt) for prompt, _, _ in asked]
        room = max(len(model.encode(value)) for _, value, _ in asked) + 4
        answers = generate(model, prompts, max_new_tokens=room, stop=("\n",))
        pairs = [model.encode_pair(prompt, f' "{value}"') for prompt, value, _ in asked]
        scores = score(model, [Continuation(tuple(c), tuple(t)) for c, t in pairs])
        return [
            {
                "pairs": item.payload[0],
                "position": position,
                "expected": value,
                "output": answer.text,
                "prompt_tokens": len(prompt),
                "scores": {
                    "recall": float(value in answer.text),
                    "logprob_per_token": one.logprob / len(one.token_logprobs),
                },
            }
            for item, (_, value, position), prompt, answer, one in zip(
                items, asked, prompts, answers, scores, strict=True
            )
        ]

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """Recall per number of pairs, and over all."""
        cells: list[tuple[dict[str, Any], list[Mapping[str, Any]]]] = [({}, list(rows))]
        cells += [
            ({"pairs": pairs}, [row for row in rows if row["pairs"] == pairs])
            for pairs in self.num_pairs
        ]
        metrics = []
        for where, own in cells:
            if not own:
                continue
            interval = wilson_interval(sum(int(row["scores"]["recall"]) for row in own), len(own))
            metrics.append(
                Metric(
                    name="recall", value=interval.mean, low=interval.low, high=interval.high,
                    n=interval.n, method=interval.method, where=where, headline=not where,
                )
            )  # fmt: skip
        return Summary(metrics=metrics)

    def _prompt(self, pairs: int, sample: int) -> tuple[str, str, int]:
        """The prompt, the value asked for, and its position in the object."""
        generator = random.Random(f"{self.seed}-{pairs}-{sample}")
        numbers = [generator.getrandbits(128) for _ in range(2 * pairs)]
        names = [str(uuid.UUID(int=number, version=4)) for number in numbers]
        entries = dict(zip(names[:pairs], names[pairs:], strict=True))
        position = sample * pairs // self.samples
        key = names[position]
        body = json.dumps(entries, indent=1)
        prompt = f'{_INSTRUCTION}\n\n{body}\n\nKey: "{key}"\nCorresponding value:'
        return prompt, entries[key], position
