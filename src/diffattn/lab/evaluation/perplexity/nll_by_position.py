"""Documents and windows of text, and the loss by position: does a longer context help?"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.data.corpora import Document, load_corpus, strip_gutenberg
from diffattn.lab.evaluation.metrics import loss_metric
from diffattn.lab.evaluation.protocol import (
    Item,
    Protocol,
    Summary,
    prompt_facts,
    split_batches,
    used_of,
)
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.stats.intervals import Interval, cluster_mean, cluster_ratio
from diffattn.lab.stats.power_law import fit_offset, fit_power_law


def open_texts(source: str, text_field: str, *, split: str = "train") -> Iterator[Document]:
    """Documents of :func:`diffattn.lab.data.corpora.load_corpus`, without Gutenberg's licence."""
    for document in load_corpus(source, text_field=text_field, split=split):
        yield Document(name=document.name, text=strip_gutenberg(document.text))


class TextProtocol(Protocol):
    """A protocol over the documents of a corpus."""

    texts: str = "stdlib"  # a file, a folder, JSON lines, ``hub:NAME``, or ``stdlib``
    text_field: str = "text"

    def long_texts(
        self, model: LanguageModel, *, least: int, most: int, documents: int | None
    ) -> dict[str, np.ndarray]:
        """Name to the first ``most`` tokens of each document with at least ``least`` tokens; of the
        first ``documents`` in the order of the corpus. Raises ``ConfigError`` if there is none."""
        texts: dict[str, np.ndarray] = {}
        longest, count = Document(name="", text=""), 0
        for document in open_texts(self.texts, self.text_field):
            count += 1
            longest = max(longest, document, key=lambda held: len(held.text))
            if len(document.text.encode()) < least:  # a token has at least one byte
                continue
            ids = first_tokens(model, document.text, most)
            if len(ids) >= least:
                texts[document.name] = np.array(ids)
            if len(texts) == documents:
                break
        if not texts:
            size = len(model.encode(longest.text))
            raise ConfigError(
                f"{self.name}: one document or more must have {least} tokens, got none of {count} "
                f"in {self.texts!r}; the longest, {longest.name!r}, has {size}."
            )
        return texts


def first_windows(
    settings: Any, model: LanguageModel, source: str, field: str, start: Sequence[int], size: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The first ``num_windows`` windows, each with the name of its document: ``start`` and then
    ``size`` tokens of the text. A document gives at most ``windows_per_document``, from its
    beginning."""
    left = windows = settings.num_windows
    for document in open_texts(source, field):
        wanted = min(left, settings.windows_per_document)
        # Cut long books before encoding them; tokens rarely have 16 characters.
        ids = model.encode(document.text[: 16 * size * wanted])
        for i in range(min(wanted, len(ids) // size)):
            yield document.name, (*start, *ids[i * size : (i + 1) * size])
            left -= 1
        if not left:
            return
    if left == windows:
        raise ConfigError(
            f"{settings.name}: {source!r} must hold a document of {size} tokens, got none."
        )


def first_tokens(model: LanguageModel, text: str, count: int) -> list[int]:
    """The first ``count`` tokens of a text, or all. Only a part of a long text is encoded."""
    size = 6 * count + 256  # characters: most tokenizers need fewer
    while size < len(text):
        ids = model.encode(text[:size])
        if len(ids) >= count + 16:  # the cut may have changed the tokens before it
            return ids[:count]
        size *= 2
    return model.encode(text)[:count]


def text_bytes(model: LanguageModel, tokens: np.ndarray) -> int:
    """UTF-8 bytes of the decoded tokens; each replacement sign of a cut character counts three."""
    text = model.tokenizer.decode(tokens.tolist(), clean_up_tokenization_spaces=False)
    return len(text.encode())


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

    length: int = 65_536  # predicted tokens of a window
    documents: int | None = 50  # in the order of the corpus; ``None``: all that are long enough
    windows: int = 1  # consecutive ones per document at most; they form one cluster

    def __post_init__(self) -> None:
        self.require_at_least(2, "length")
        self.require_at_least(1, "windows", "documents")

    def batches(self, model: LanguageModel) -> list[list[Item]]:
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
