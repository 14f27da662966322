"""Run any protocol, and perplexity, with attention logits of fewer bits."""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diffattn.errors import check_known
from diffattn.lab.evaluation.catalog import PROTOCOLS
from diffattn.lab.evaluation.icl.demonstrations import kept_per_model
from diffattn.lab.evaluation.metrics import (
    Row,
    is_loss,
    is_share,
    loss_metric,
    metric,
    perplexity_metric,
    primary_score,
    row_clusters,
    row_weight,
)
from diffattn.lab.evaluation.perplexity.nll_by_position import first_windows
from diffattn.lab.evaluation.protocol import Item, Protocol, Summary, parts, prompt_facts
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import STANDARD_LIMITS
from diffattn.lab.inference.scoring import Continuation
from diffattn.lab.records.evaluations import Metric
from diffattn.lab.stats.intervals import cluster_mean
from diffattn.lab.stats.paired import paired_contrast
from diffattn.probes.quantized_logits import (
    GRANULARITIES,
    UNQUANTIZED_BITS,
    quantized_logits,
    require_quantizable,
)

_LOSS = "text loss"


@dataclass(frozen=True, slots=True)
class _Asked:
    """An item of the wrapped protocol, or a window of text, and the bits per logit for it."""

    bits: int
    item: Item | None  # None: a window of text
    window: tuple[int, ...] = ()


class QuantizedLogits(Protocol):
    """Scores with attention logits rounded to a few bits. Source: arXiv:2410.05258v2, Fig. 8."""

    name = "quantized_logits"
    choices = {
        "granularity": "one scale per layer and forward pass, both maps together; or per head, "
        "or per row; the paper does not say",
        "forward pass": "one sequence per pass and no shared prefixes, so that no result depends "
        "on what runs beside it; sequences beyond 2,048 tokens go by chunks, each with its scale",
        "maximum": "over entries that are not masked",
        "16 bits": "no rounding, by the same attention function",
        "wrapped protocol": "lm_tasks on hellaswag, 0-shot, as in Fig. 8; any other can be named",
        "perplexity": "not in the paper; windows of a text, each from BOS",
    }
    quick = {
        "bits": (16, 4),
        "settings": {"tasks": ["hellaswag"], "limit": 4, "data": "generated"},
        "num_windows": 2,
        "window_tokens": 128,
    }

    protocol: str = "lm_tasks"  # the wrapped protocol, run with each number of bits
    settings: dict[str, Any] = field(default_factory=lambda: {"tasks": ["hellaswag"]})
    """Parameters of the wrapped protocol; the others keep their defaults."""
    bits: tuple[int, ...] = (16, 8, 6, 4)
    """Bits per logit. 16 means no rounding; the others are compared with it."""
    granularity: str = "tensor"  # logits of a tensor, a ``"head"`` or a ``"row"`` share a scale
    text: str | None = "stdlib"
    """Corpus for perplexity; see ``load_corpus``. ``None``: no perplexity."""
    text_field: str = "text"  # key or column of the text in JSON lines or a hub dataset
    num_windows: int = 16  # of text, from the start of the corpus
    windows_per_document: int = 4
    window_tokens: int = 1024

    def __post_init__(self) -> None:
        self.require_at_least(2, "bits", most=UNQUANTIZED_BITS)
        check_known(self.name, "granularity", self.granularity, GRANULARITIES)
        self.require_at_least(1, "num_windows", "windows_per_document", "window_tokens")
        self.wrapped()

    def wrapped(self) -> Protocol:
        others = [name for name in PROTOCOLS if name != self.name]
        check_known(self.name, "protocol", self.protocol, others)
        named = [
            f"{self.protocol}.{key}={json.dumps(value)}" for key, value in self.settings.items()
        ]
        return parts([self.protocol], named)[0].protocol

    def parameters(self) -> dict[str, Any]:
        """All settings, with all parameters and the version of the wrapped protocol."""
        inner = self.wrapped()
        wrapped = {"settings": inner.parameters(), "wrapped_version": inner.facts.version}
        return super().parameters() | wrapped

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """All items with the first number of bits, then all with the next, and so on."""
        require_quantizable(model.network)
        windows = self._windows(model)
        inner = self.wrapped().batches(model)
        batches: list[list[Item]] = []
        for bits in self.bits:
            batches += [[_item(_Asked(bits, item), item) for item in batch] for batch in inner]
            batches += [[_item(_Asked(bits, None, item.payload), item)] for item in windows]
        return batches

    def material(self, model: LanguageModel, items: Sequence[Item]) -> Any:
        inner = [question for item in items if (question := item.payload.item) is not None]
        return self.wrapped().material(model, inner)

    @kept_per_model
    def _alone(self, model: LanguageModel) -> dict[int, LanguageModel]:
        """The model once for each number of bits: a cache read at another one must not be used."""
        alone = {bits: copy.copy(model) for bits in self.bits}
        for copied in alone.values():
            copied.rows_alone = True
            # Logits of a chunk share a scale, so its size must not depend on free memory.
            copied.limits = STANDARD_LIMITS
        return alone

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Ask as the wrapped protocol does, but with one sequence per forward pass."""
        asked: list[_Asked] = [item.payload for item in items]
        bits, window = asked[0].bits, asked[0].window
        alone = self._alone(model)[bits]
        inner = [question.item for question in asked if question.item is not None]
        with quantized_logits(model.network, bits, granularity=self.granularity):
            if inner:
                rows = self.wrapped().ask(alone, inner)
            else:
                (score,) = alone.score([Continuation(window[:1], window[1:])])
                size = len(score.token_logprobs)
                row = {"tokens": size, "prompt": prompt_facts(alone.decode(window))}
                rows = [row | {"scores": {_LOSS: -score.logprob / size}}]
        names = [item.id.removeprefix(f"{bits}-bits-") for item in items]
        return [
            {**_renamed(row, lambda key: f"{key}, {bits} bits"), "bits": bits, "wrapped_id": name}
            for row, name in zip(rows, names, strict=True)
        ]

    def summarise(self, rows: Sequence[Row]) -> Summary:
        metrics: list[Metric] = []
        tables: dict[str, Any] = {}
        by_bits = {bits: _unwrapped(rows, bits) for bits in self.bits}
        better: dict[str, bool | None] = {}
        for bits, of_width in by_bits.items():
            if inner := [row for row in of_width if _LOSS not in row["scores"]]:
                summary = self.wrapped().summarise(inner)
                tables[f"{bits} bits"] = summary.tables
                better |= self._directions(inner, summary.metrics)
                metrics += [replace(x, where=x.where | {"bits": bits}) for x in summary.metrics]
            if text := [row for row in of_width if _LOSS in row["scores"]]:
                interval = cluster_mean([row["scores"][_LOSS] for row in text], row_clusters(text))
                where = {"bits": bits}
                metrics.append(loss_metric(_LOSS, interval, where))
                metrics.append(perplexity_metric("perplexity", interval, where, headline=False))
        exact = by_bits.pop(UNQUANTIZED_BITS, [])
        for bits, of_width in by_bits.items():
            metrics += _changes(of_width, exact, bits, better)
        return Summary(metrics=metrics, tables=tables)

    def _directions(self, rows: Sequence[Row], metrics: Sequence[Metric]) -> dict[str, bool | None]:
        """For each wrapped score, whether higher is better, by the wrapped protocol's metrics."""
        names = sorted({name for row in rows for name in row["scores"]})
        known = {metric.name: metric.higher_is_better for metric in metrics}
        # The score of a single task is called "TASK METRIC".
        better = {name: known.get(name, known.get(name.partition(" ")[2])) for name in names}
        declared = primary_score(self.protocol, self.wrapped().parameters(), names)
        return better | (dict([declared]) if declared else {})

    def _windows(self, model: LanguageModel) -> list[Item]:
        """Items with windows of text that begin with BOS or EOS; a document is a cluster."""
        if self.text is None:
            return []
        start, size = model.start(required=True), self.window_tokens
        self.require_fit(model, "window_tokens", size)
        windows = first_windows(self, model, self.text, self.text_field, start, size)
        return [
            Item(id=f"text-window-{i}", payload=ids, cluster=document)
            for i, (document, ids) in enumerate(windows)
        ]


def _item(asked: _Asked, item: Item) -> Item:
    return Item(id=f"{asked.bits}-bits-{item.id}", payload=asked, cluster=item.cluster or item.id)


def _renamed(row: Row, rename: Callable[[str], str]) -> dict[str, Any]:
    """The row with its scores renamed, which ``scores`` and ``weights`` have for keys."""
    return dict(row) | {
        key: {rename(name): x for name, x in row[key].items()}
        for key in ("scores", "weights")
        if key in row
    }


def _unwrapped(rows: Sequence[Row], bits: int) -> list[dict[str, Any]]:
    """Rows of one number of bits, with the ids and scores of the wrapped protocol."""
    end = f", {bits} bits"
    return [
        _renamed(row, lambda name: name.removesuffix(end)) | {"id": row["wrapped_id"]}
        for row in rows
        if row["bits"] == bits
    ]


def _changes(
    rows: Sequence[Row], exact: Sequence[Row], bits: int, better: Mapping[str, bool | None]
) -> list[Metric]:
    """Weighted paired differences of each score from the same items without rounding; ``better``
    tells whether a higher wrapped score is better."""
    before = {row["id"]: row["scores"] for row in exact}
    changes = []
    for name in sorted({key for row in rows for key in row["scores"]}):
        both = [row for row in rows if name in row["scores"] and name in before.get(row["id"], {})]
        if both:
            contrast = paired_contrast(
                [row["scores"][name] for row in both],
                [before[row["id"]][name] for row in both],
                [row_weight(row, name) for row in both],
                row_clusters(both),
                shares=is_share(name),
            )
            facts: dict[str, Any] = {"where": {"bits": bits}, "unit": "difference"}
            facts["higher_is_better"] = False if is_loss(name) else better.get(name)
            changes.append(metric(f"change of {name}", contrast.interval, **facts))
    return changes
