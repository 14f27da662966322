"""Word-level perplexity: comparable between tokenizers, as PG-19 reports it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.metrics import loss_metric, perplexity_metric
from diffattn.lab.evaluation.perplexity.documents import open_texts
from diffattn.lab.evaluation.protocol import Item, Protocol, Summary, prompt_facts
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.stats.clusters import cluster_ratio


@dataclass(frozen=True, kw_only=True)
class WordPerplexity(Protocol):
    r"""Perplexity per word of whole documents, whatever the tokenizer.

    .. math:: \exp \Big( \sum_t -\log p(x_t) \Big/ \text{number of words} \Big)

    Source: arXiv:1911.05507, section 4.3 (PG-19).
    """

    name = "word_perplexity"
    choices = {
        "words": "pieces of the text between white space, counted in each document",
        "texts": "the corpus that is named, whole documents; PG-19 has 50 validation and 100 "
        "test books",
        "context": "windows of `window` tokens that move on by `stride`; every token is "
        "predicted once",
        "first token": "BOS before every window; EOS if the tokenizer has none",
        "interval": "Student t over documents, of the loss per word",
    }
    quick = {"window": 512, "stride": 256, "documents": 3}

    window: int = 2_048
    """Tokens of a window, BOS included."""
    stride: int = 1_024
    """Tokens by which it moves on: less costs more, and gives every token more context."""
    texts: str = "stdlib"
    """Documents: a file, a folder, JSON lines, ``hub:NAME``, or ``stdlib``."""
    text_field: str = "text"
    documents: int | None = None
    """How many are taken, in the order of the corpus. Default: all."""

    @classmethod
    def quick_for(cls, longest: int | None) -> dict[str, Any]:
        """See :meth:`Protocol.quick_for`."""
        window = min(cls.quick["window"], longest or cls.quick["window"])
        return cls.quick | {"window": window, "stride": window // 2}

    def __post_init__(self) -> None:
        self.require_at_least(1, "stride", "documents")
        self.require_at_least(self.stride + 1, "window")

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """One document per item."""
        self.require_fit(model, "window", self.window)
        model.start(required=True)
        batches: list[list[Item]] = []
        for document in open_texts(self.texts, self.text_field):
            if document.text.split(maxsplit=1):
                batches.append([Item(id=document.name, payload=document.text)])
            if len(batches) == self.documents:
                break
        if not batches:
            raise ConfigError(
                f"word_perplexity: {self.texts!r} must hold a document with words, got none."
            )
        return batches

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Total loss, words and bytes of each document."""
        given = model.start(required=True)
        rows = []
        for item in items:
            tokens, window = np.array(model.encode(item.payload)), self.window - len(given)
            losses = model.sliding_losses(tokens, window=window, stride=self.stride, given=given)
            total, words = float(losses.sum()), len(item.payload.split())
            num_bytes = len(item.payload.encode())
            rows.append(
                {
                    "tokens": len(losses),
                    "words": words,
                    "bytes": num_bytes,
                    "nll": total,
                    "prompt": prompt_facts(item.payload),
                    "scores": {
                        "nll_per_word": total / words,
                        "bits_per_byte": total / np.log(2) / num_bytes,
                    },
                    "weights": {"nll_per_word": words, "bits_per_byte": num_bytes},
                }
            )
        return rows

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """Perplexity per word, loss per word, bits per byte; sums for other word counts."""
        totals = [row["nll"] for row in rows]
        per_word = cluster_ratio(totals, [row["words"] for row in rows])
        bits = cluster_ratio(np.array(totals) / np.log(2), [row["bytes"] for row in rows])
        sums = {key: sum(row[key] for row in rows) for key in ("nll", "tokens", "words", "bytes")}
        return Summary(
            metrics=[
                perplexity_metric("word_perplexity", per_word),
                loss_metric("nll_per_word", per_word, unit="nats per word"),
                loss_metric("bits_per_byte", bits, unit="bits per byte"),
            ],
            tables={"totals": sums},
        )
