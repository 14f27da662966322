"""Contextual hallucination: generate summaries or answers and score them against the document."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffattn.errors import ConfigError, check_known
from diffattn.lab.evaluation.hallucination import answer_metrics
from diffattn.lab.evaluation.hallucination.data import TASKS, Example, Task, load_examples
from diffattn.lab.evaluation.metrics import Row, metric
from diffattn.lab.evaluation.protocol import Item, Protocol, Summary, prompt_facts, used_of
from diffattn.lab.inference.decoding import Generation
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ItemError
from diffattn.lab.records.evaluations import JUDGED_PROTOCOL, text_read
from diffattn.lab.stats.intervals import cluster_mean, share_interval
from diffattn.probes.attention_rows import attention_rows


def cut(
    model: LanguageModel, document: str, render: Callable[[str], str], *, limit: int, where: str
) -> tuple[int, int]:
    """How many characters of a document to keep at its beginning and at its end.

    The prompt ``render(document)`` may have ``limit`` tokens, BOS included. ``where="end"`` drops
    words (pieces between single spaces) from the end. ``"middle"`` drops words from the middle and
    keeps half of the free tokens at either end.

    Source: ``step01_extract_attns.py`` of voidism/Lookback-Lens; ``pred.py`` of THUDM/LongBench.
    """

    def size(text: str) -> int:
        return len(model.encode_prompt(render(text)))

    if size(document) <= limit:
        return len(document), 0
    room = limit - (bare := size(""))
    if room < 0:
        raise ItemError(f"The prompt without its document must fit {limit} tokens, got {bare}.")
    borders = [0, *(i for i, character in enumerate(document) if character == " ")]
    if where == "end":
        return _last_that_fits(borders, lambda end: size(document[:end]) <= limit), 0
    backwards = [len(document), *reversed(borders)]

    def longest(candidates: list[int], part: Callable[[int], str], room: int) -> int:
        return _last_that_fits(candidates, lambda at: len(model.encode(part(at))) <= room)

    # Half of the room at either end, or less if tokens merge differently in the whole prompt.
    while True:
        head = longest(borders, lambda end: document[:end], room // 2)
        left = room - len(model.encode(document[:head]))
        tail = longest(backwards, lambda start: document[start:], left)
        excess = 1 if tail < head else size(document[:head] + document[tail:]) - limit
        if excess <= 0 or room == 0:
            return head, len(document) - tail
        room = max(0, room - excess)


def _last_that_fits(candidates: list[int], fits: Callable[[int], bool]) -> int:
    """The last candidate that fits, by bisection; the first one always fits."""
    low, high = 0, len(candidates)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(candidates[middle]) else (low, middle)
    return candidates[low]


_BATCH = 8
MAPS = ("a1", "difference", "absolute")
_ROWS = 16  # number of tokens whose rows of the maps are in memory together
_HEADLINES = {"span_match", "word_f1", "rougeL", "entities_found", "numbers_found", "empty"}
LEAD = 3
"""Number of the document's first sentences that are scored, as a control that copies them."""
_NO_DIRECTION = {"novel_bigrams", *(f"lookback_{name}" for name in MAPS)}
"""Scores of which neither high nor low is better: a faithful text may be copied or reworded."""


class Hallucination(Protocol):
    """Summaries or answers to the prompt of one dataset, scored without a judge.

    ``diffattn judge`` adds the paper's score, the share of outputs that a judge model finds free of
    hallucination. Source: arXiv:2410.05258v2, section 3.5; arXiv:2407.07071; arXiv:2308.14508.
    """

    name = JUDGED_PROTOCOL
    choices = {
        "rows": "the first 100 in file order; the paper names none",
        "cut": "XSum, CNN/DM: words off the end until prompt and cue fit 2,033 of the model's own "
        "tokens (the reference counts another tokenizer's); the instruction is never cut",
        "long contexts": "LongBench tasks: the middle of the context goes, half of the token "
        "budget stays at either end, whole words; prompt and answer together take 4,096 tokens",
        "stop": "XSum, CNN/DM: the reference's five strings; LongBench tasks: none, as there",
        "decoding": "greedy, no chat template",
        "empty output": "scores 0 against references; has no share of entities, numbers, bigrams",
        "found": "looked up in the part of the document that the model has read",
        "entities": "runs of capitalised words, first words of sentences left out; no tagger",
        "references": "best of several",
        "lead": "beside summaries the scores of the first three sentences of what was read, copied",
        "span_match": "the reference as a substring, as the source does: 'no' stands in 'know'",
        "lookback": "context ends before the answer's cue, BOS included, as in the reference code; "
        "rows of the steps that wrote a token, stop string included; of the signed difference "
        "context / (|context| + |new|), which has no pole",
    }
    quick = {
        "data": "generated",
        "samples": 6,
        "prompt_tokens": 768,
        "max_new_tokens": 24,
        "rouge": False,
    }

    dataset: str = "xsum"  # a name in ``TASKS``
    data: str | None = None
    """File, folder with ``<dataset>.jsonl``, ``"hub"``, ``"hub:NAME[:CONFIG[:SPLIT]]"``, or
    ``"generated"``. Required, as nothing is bundled and nothing is downloaded unasked."""
    columns: dict[str, str] = field(default_factory=dict)
    """``document``, ``question`` and ``references`` to their names in the rows. Default: the
    columns of the dataset, or of LongBench."""
    samples: int = 100
    prompt_tokens: int | None = None
    """Most tokens of the prompt. Default: 2,033 for XSum and CNN/DM, else 4,096 - new tokens."""
    max_new_tokens: int | None = None  # default: the dataset's limit
    stop: tuple[str, ...] | None = None  # default: the dataset's stop strings
    rouge: bool = True  # of summaries, by the package ``rouge_score``
    lookback: bool = True  # ratios; reads every output a second time, for its maps
    seed: int = 1234  # of the made-up articles; all else is deterministic

    def __post_init__(self) -> None:
        check_known(self.name, "dataset", self.dataset, TASKS)
        self.require_columns(("document", "question", "references"))
        self.require_at_least(1, "samples", "prompt_tokens", "max_new_tokens")

    @property
    def task(self) -> Task:
        """Facts of the dataset."""
        return TASKS[self.dataset]

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        if self.data is None:
            raise ConfigError(
                f"hallucination: data must name a file or a folder with {self.dataset}.jsonl, "
                "'hub' or 'generated', got none. Set hallucination.data=PATH."
            )
        prompt, new = self._limits()
        if prompt + new > model.max_length:
            raise ConfigError(
                f"hallucination: prompt_tokens and max_new_tokens must fit the {model.max_length} "
                f"tokens of {model.label}, got {prompt} + {new}. Set hallucination.prompt_tokens."
            )
        bare = len(model.encode_prompt(self.task.prompt("", "")))
        if bare > prompt:
            raise ConfigError(
                f"hallucination: prompt_tokens must hold the instruction of {self.dataset}, "
                f"{bare} tokens, got {prompt}."
            )
        if self.rouge and self.task.kind == "summary":
            answer_metrics.rouge_scorer()
        examples = load_examples(self.task, self.data, self.samples, self.seed, self.columns)
        items = [Item(id=f"{self.dataset}-{example.id}", payload=example) for example in examples]
        return [items[i : i + _BATCH] for i in range(0, len(items), _BATCH)]

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        stop = self.task.stop if self.stop is None else self.stop
        asked = [self._prompt(model, item.payload) for item in items]
        ids = [model.encode_prompt(prompt) for prompt, _ in asked]
        written = model.generate(ids, max_new_tokens=self._limits()[1], stop=stop)
        return [
            self._row(model, item.payload, *pair, tokens, output)
            for item, pair, tokens, output in zip(items, asked, ids, written, strict=True)
        ]

    def summarise(self, rows: Sequence[Row]) -> Summary:
        metrics = []
        for key, prefix in (("scores", ""), ("lead", "lead_")):
            for name in dict.fromkeys(name for row in rows for name in row.get(key, {})):
                values = [row[key][name] for row in rows if name in row.get(key, {})]
                signed = name.startswith("lookback_")  # may be negative, so it is no share
                interval = (cluster_mean if signed else share_interval)(values)
                better = None if name in _NO_DIRECTION or prefix else name != "empty"
                shown = name in _HEADLINES
                metrics.append(
                    metric(f"{prefix}{name}", interval, headline=shown, higher_is_better=better)
                )
        counts = {
            "cut documents": sum(sum(row["read"]) < len(row["document"]) for row in rows),
            "finished": dict(Counter(row["finished"] for row in rows)),
        }
        tables = {"counts": counts, "lookback": _mean_ratios(rows)}
        used = used_of("examples", self.samples, len(rows))
        return Summary(metrics=metrics, tables=tables | used)

    def _limits(self) -> tuple[int, int]:
        """Most tokens of the prompt, and of the output."""
        new = self.max_new_tokens or self.task.max_new_tokens
        return self.prompt_tokens or self.task.prompt_tokens, new

    def _prompt(self, model: LanguageModel, example: Example) -> tuple[str, tuple[int, int]]:
        """The prompt, and how many characters it has of the document's beginning and end."""
        if not example.document.strip():
            raise ItemError(f"{self.dataset}: the document must hold text, got none.")

        def render(text: str) -> str:
            return self.task.prompt(text, example.question)

        limit = self._limits()[0]
        read = cut(model, example.document, render, limit=limit, where=self.task.cut)
        return render(text_read(example.document, read)), read

    def _row(
        self,
        model: LanguageModel,
        example: Example,
        prompt: str,
        read: tuple[int, int],
        ids: list[int],
        output: Generation,
    ) -> dict[str, Any]:
        text = output.text.strip()
        row: dict[str, Any] = {
            "dataset": self.dataset,
            "kind": self.task.kind,
            "question": example.question,
            "references": list(example.references),
            "output": text,
            "finished": output.finished,
            "prompt_tokens": len(ids),
            "new_tokens": len(output.ids),
            "read": list(read),
            "document": example.document,
            "prompt": prompt_facts(prompt),
        }
        scores = {"empty": float(not text)}
        if self.task.kind == "answer":
            scores["span_match"] = answer_metrics.span_match(text, example.references)
            scores["word_f1"] = answer_metrics.word_f1(text, example.references)
        elif self.rouge:
            scores |= answer_metrics.rouge(text, example.references)
        source = text_read(example.document, read)
        if self.task.kind == "summary":
            row["lead"] = self._lead(source, example.references)
        finders = {
            "entities": answer_metrics.entity_support,
            "numbers": answer_metrics.number_support,
        }
        for name, find in finders.items():
            share, missing = find(text, source)
            if share is not None:
                scores[f"{name}_found"] = share
                row[f"{name}_missing"] = missing
        if (known_bigrams := answer_metrics.bigram_support(text, source)[0]) is not None:
            scores["novel_bigrams"] = 1 - known_bigrams
        if self.lookback and output.ids:
            context = len(model.encode_prompt(prompt.removesuffix(self.task.cue)))
            num_context = max(1, min(context, len(ids) - 1))
            row["lookback"] = lookback_ratios(model, ids, output.ids, num_context)
            for name, layers in row["lookback"].items():
                known = [x for layer in layers for x in layer if x is not None]
                if known:
                    scores[f"lookback_{name}"] = float(np.mean(known))
        return row | {"scores": scores}

    def _lead(self, source: str, references: Sequence[str]) -> dict[str, float]:
        """Scores of the document's first sentences, as if a model had copied them."""
        copied = answer_metrics.first_sentences(source.strip(), LEAD)
        scores = answer_metrics.rouge(copied, references) if self.rouge else {}
        share, _ = answer_metrics.entity_support(copied, source)
        return scores if share is None else scores | {"entities_found": share}


def _mean_ratios(rows: Sequence[Row]) -> dict[str, Any]:
    """Map to means over rows, ``[layers][heads]``; ``None`` if no row has a value."""
    ratios: dict[str, Any] = {}
    for name in MAPS:
        values = [row["lookback"][name] for row in rows if "lookback" in row]
        if not values:
            continue
        stacked = np.array(values, dtype=float)  # [rows, layers, heads], None becomes NaN
        counts = (~np.isnan(stacked)).sum(0)
        means = np.nansum(stacked, axis=0) / np.maximum(counts, 1)
        ratios[name] = [
            [round(float(mean), 6) if count else None for mean, count in zip(*layer, strict=True)]
            for layer in zip(means, counts, strict=True)
        ]
    return ratios


def lookback_ratios(
    model: LanguageModel, prompt: Sequence[int], written: Sequence[int], num_context: int
) -> dict[str, list[list[float | None]]]:
    r"""Lookback ratio of every layer and head, averaged over the steps that wrote a token.

    .. math:: r = \frac{\bar a_\mathrm{context}}{|\bar a_\mathrm{context}| + |\bar a_\mathrm{new}|}

    The mean weights are over the keys of context and of new tokens, so a uniform map has r = 1/2.
    Map ``"a1"`` is A1, ``"absolute"`` is |A1 − λA2|, and ``"difference"`` is A1 − λA2 with its
    sign. The source has no absolute values; with signed weights its r has a pole, ours is in
    [−1, 1]. For softmax attention all three maps are equal. The first ``num_context`` tokens of the
    prompt are context; the rest of the prompt (the answer's cue) counts as new.

    Source: arXiv:2407.07071, section 2.

    Returns:
        Name in ``MAPS`` to ratios ``[layers][heads]``; ``None`` for a head with a step whose mean
        weights are both 0.
    """
    before = model.read(prompt[:-1])
    cache, seen = before.rows(1), before.length
    tokens = [prompt[-1], *written[:-1]]
    steps: list[Tensor] = []
    for start in range(0, len(tokens), _ROWS):
        ids = torch.tensor([tokens[start : start + _ROWS]], device=model.device)
        layers = attention_rows(model.network, ids, cache)
        counts = torch.arange(1, ids.shape[1] + 1, device=model.device) + seen - num_context
        seen += ids.shape[1]
        kinds = ((layer.maps[:, 0], layer.signed, layer.signed.abs()) for layer in layers)
        means = [torch.stack([_means(x, num_context, counts) for x in maps]) for maps in kinds]
        steps.append(torch.stack(means))
    weights = torch.cat(steps, dim=-1).double()  # [layers, maps, 2, H, steps]
    ratios = (weights[:, :, 0] / weights.abs().sum(2)).mean(-1)  # [layers, maps, H]
    return {
        name: [[round(x, 6) if x == x else None for x in heads] for heads in ratios[:, i].tolist()]
        for i, name in enumerate(MAPS)
    }


def _means(rows: Tensor, num_context: int, num_new: Tensor) -> Tensor:
    """Mean weights ``[2, H, T]`` over context keys and over new keys, from rows ``[H, T, S]``."""
    context = rows[..., :num_context].mean(-1)
    return torch.stack([context, rows[..., num_context:].sum(-1) / num_new])
