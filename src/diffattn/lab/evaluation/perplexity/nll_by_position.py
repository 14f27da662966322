"""Loss by position in long texts, which shows whether a longer context helps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.metrics import loss_metric
from diffattn.lab.evaluation.perplexity.documents import TextProtocol, text_bytes
from diffattn.lab.evaluation.protocol import Item, Summary, prompt_facts, split_batches, used_of
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.stats.intervals import Interval, cluster_mean, cluster_ratio
from diffattn.lab.stats.power_law import fit_offset, fit_power_law


@dataclass(frozen=True, kw_only=True)
class NllByPosition(TextProtocol):
    r"""Cumulative average loss over the position in a long document.

    .. math:: C(t) = \frac 1 t \sum_{s \le t} \frac 1 D \sum_d -\log p(x^d_s \mid x^d_{<s})
    """

    name = "nll_by_position"
    choices = {
        "texts": "the corpus that is named; the paper says 'book data', not which",
        "documents": "those with `length` tokens or more, so that every position averages the "
        "same ones; the first 50 of the corpus (the paper gives no number)",
        "window": "the document's first tokens after licence and header of Project Gutenberg; "
        "every token sees all before it",
        "first token": "BOS, if the tokenizer has one, else the document's first token",
        "buckets": "64 spaced evenly in the logarithm; those without a position of their own "
        "are left out",
        "power law": "alpha t^beta + gamma by least squares through the cumulative average at "
        "256 positions from 64 on, spaced evenly in the logarithm",
        "bits per byte": "bytes of the decoded window",
        "interval": "Student t over documents; of the power law, bootstrap",
    }
    quick = {"length": 1_024, "documents": 4}
    quick_context = "length"

    length: int = 65_536
    """Number of predicted tokens of a window."""
    documents: int | None = 50
    """Number of documents, in the order of the corpus. ``None``: all that are long enough."""
    windows: int = 1
    """Most consecutive windows per document; they form one cluster."""

    def __post_init__(self) -> None:
        self.require_at_least(2, "length")
        self.require_at_least(1, "windows", "documents")

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """One window per item; a batch has several short windows."""
        self.require_fit(model, "length", self.length)
        given = 0 if model.start() else 1  # without BOS, one more token comes before a window
        size = self.length + given
        most = self.windows * self.length + given
        texts = self.long_texts(model, least=size, most=most, documents=self.documents)
        items = [
            Item(id=f"{name}:{index}", payload=tokens[start : start + size], cluster=name)
            for name, tokens in texts.items()
            for index, start in enumerate(range(0, len(tokens) - given, self.length))
            if start + size <= len(tokens)
        ]
        return split_batches([items], max(1, 16_384 // self.length))

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Mean losses of each window by position; losses of single tokens are not kept."""
        losses = model.prefix_losses([item.payload for item in items], model.start())
        return [
            self._row(row_losses, text_bytes(model, item.payload[-self.length :]))
            | {"prompt": prompt_facts(model.decode(item.payload))}
            for item, row_losses in zip(items, losses, strict=True)
        ]

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """The curve, its values at powers of two, buckets, bits per byte, and the power law."""
        clusters = [row["cluster"] for row in rows]
        curves = np.array([row["cumulative"] for row in rows])  # [windows, positions]
        buckets = np.array([row["buckets"] for row in rows])
        positions, edges = self._positions(), self._edges()
        cumulative = [cluster_mean(column, clusters) for column in curves.T]
        bucketed = [cluster_mean(column, clusters) for column in buckets.T]
        metrics = [
            loss_metric("nll", cumulative[positions.index(at)], {"position": at}, headline=True)
            for at in self._marks()
        ]
        metrics += [
            loss_metric("bucket_nll", loss, {"position": last})
            for loss, last in zip(bucketed, edges[1:], strict=True)
        ]
        late = cluster_mean([row["scores"]["nll_last_half"] for row in rows], clusters)
        weights = [row["bytes"] for row in rows]
        bits = [row["scores"]["bits_per_byte"] * row["bytes"] for row in rows]
        per_byte = cluster_ratio(bits, weights, clusters)
        metrics += [
            loss_metric("nll_last_half", late, {}),
            loss_metric("bits_per_byte", per_byte, {}, unit="bits per byte"),
        ]
        first = [edge + 1 for edge in edges[:-1]]
        tables = {
            "cumulative": {"position": positions, **_columns(cumulative)},
            "buckets": {"first": first, "last": edges[1:], **_columns(bucketed)},
            "power_law": self._power_law(curves, clusters),
            "documents": sorted(set(clusters)),
            **used_of("documents", self.documents, len(set(clusters))),
        }
        return Summary(metrics=metrics, tables=tables)

    def _row(self, losses: np.ndarray, num_bytes: int) -> dict[str, Any]:
        assert len(losses) == self.length
        sums = np.cumsum(losses)
        positions, edges = np.array(self._positions()), np.array(self._edges())
        totals = np.concatenate([[0.0], sums])[edges]
        scores = {f"nll_to_{at}": float(sums[at - 1] / at) for at in self._marks()[:-1]}
        half = self.length // 2
        return {
            "tokens": self.length,
            "bytes": num_bytes,
            "cumulative": (sums[positions - 1] / positions).tolist(),
            "buckets": (np.diff(totals) / np.diff(edges)).tolist(),
            "scores": scores
            | {
                "nll": float(sums[-1] / self.length),
                "nll_last_half": float(losses[half:].mean()),
                "bits_per_byte": float(sums[-1] / np.log(2) / max(1, num_bytes)),
            },
            "weights": {"bits_per_byte": num_bytes},
        }

    def _marks(self) -> list[int]:
        """Positions of the headline metrics: 128, 256, ... and the whole length."""
        powers = [2**k for k in range(7, 40) if 2**k < self.length]
        return [*powers, self.length]

    def _positions(self) -> list[int]:
        """Positions of the curve, from 64 on as in the paper's figure; they include the marks."""
        spaced = np.geomspace(min(64, self.length), self.length, 256)
        return sorted({*map(round, spaced.tolist()), *self._marks()})

    def _edges(self) -> list[int]:
        """0 and the last positions of the buckets."""
        spaced = np.geomspace(1, self.length, 64).round().astype(int).tolist()
        return [0, *sorted(set(spaced))]

    def _power_law(self, curves: np.ndarray, clusters: Sequence[str]) -> dict[str, Any]:
        """The fit of the mean curve, with a 95 % bootstrap interval of its exponent."""
        x, y = np.array(self._positions(), float), curves.mean(0)
        law: dict[str, Any] = {"from": int(x[0]), "points": len(x)}
        try:
            fit = fit_power_law(x, y)
        except ConfigError as error:  # a flat or straight curve has no fit: record why
            return law | {"none": str(error)}
        low = high = None
        names = list(dict.fromkeys(clusters))
        if len(names) > 1:
            member = np.array([names.index(cluster) for cluster in clusters])
            sums = np.stack([curves[member == i].sum(0) for i in range(len(names))])
            sizes = np.bincount(member).astype(float)
            drawn = np.random.default_rng(0).integers(0, len(names), size=(400, len(names)))
            means = sums[drawn].sum(1) / sizes[drawn].sum(1)[:, None]
            exponents = -fit_offset(x, means)[0][:, 1]
            low, high = np.quantile(exponents, [0.025, 0.975]).tolist()
        return law | {
            "alpha": fit.parameters["a"],
            "beta": -fit.parameters["b"],
            "gamma": fit.parameters["c"],
            "r2": fit.r2,
            "beta_low": low,
            "beta_high": high,
            "method": "bootstrap over documents",
        }


def _columns(intervals: Sequence[Interval]) -> dict[str, list[float | None]]:
    keys = ("mean", "low", "high")
    return {key: [getattr(interval, key) for interval in intervals] for key in keys}
