"""Perplexity of blocks, by sliding windows, and per word."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diffattn.errors import ConfigError, check_known
from diffattn.lab.data.corpora import load_corpus
from diffattn.lab.evaluation.metrics import loss_metric, perplexity_metric
from diffattn.lab.evaluation.perplexity.nll_by_position import (
    TextProtocol,
    first_tokens,
    open_texts,
    text_bytes,
)
from diffattn.lab.evaluation.protocol import Item, Summary, prompt_facts, split_batches, used_of
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.stats.intervals import cluster_mean, cluster_ratio


class SlidingPerplexity(TextProtocol):
    """exp of the mean loss per token, each predicted from a window that slides by a stride."""

    name = "sliding_perplexity"
    choices = {
        "texts": "the corpus that is named; the papers use Proof-pile, GovReport and PG-19",
        "documents": "the first with `tokens` tokens, cut there; the papers draw ten at random",
        "first window": "predicts all its tokens, also those with little context",
        "first token": "BOS before every window if the tokenizer has one; it takes a place in "
        "the window",
        "mean": "over all tokens of a document, then over documents, which have equally many",
        "interval": "Student t over documents, of the loss",
    }
    quick = {"windows": (128, 512), "stride": 64, "tokens": 1_024, "documents": 2}
    quick_short = {"windows": (32, 128), "stride": 8}

    windows: tuple[int, ...] = (2_048,)  # lengths in tokens, BOS included; one result for each
    stride: int = 256
    tokens: int = 131_072  # of each document, from its beginning
    documents: int | None = 10
    """Number of documents, in the order of the corpus. ``None``: all that are long enough."""

    def __post_init__(self) -> None:
        self.require_at_least(1, "stride", "documents")
        self.require_at_least(self.stride + 1, "windows")
        self.require_at_least(max(self.windows), "tokens")

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        self.require_fit(model, "windows", max(self.windows))
        texts = self.long_texts(
            model, least=self.tokens, most=self.tokens, documents=self.documents
        )
        return [
            [Item(id=f"{name}:{window}", payload=(tokens, window), cluster=name)]
            for name, tokens in texts.items()
            for window in self.windows
        ]

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        (item,) = items
        tokens, window = item.payload
        given = model.start()
        losses = model.sliding_losses(
            tokens, window=window - len(given), stride=self.stride, given=given
        )
        scores = {f"nll_window_{window}": float(losses.mean())}
        facts = {"window": window, "tokens": len(losses), "scores": scores}
        return [facts | {"prompt": prompt_facts(model.decode(tokens))}]

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        metrics = []
        for window in self.windows:
            of_window = [row for row in rows if row["window"] == window]
            if not of_window:
                continue
            losses = [row["scores"][f"nll_window_{window}"] for row in of_window]
            interval = cluster_mean(losses, [row["cluster"] for row in of_window])
            where = {"window": window}
            metrics += [
                perplexity_metric("sliding_perplexity", interval, where),
                loss_metric("nll", interval, where),
            ]
        documents = sorted({row["cluster"] for row in rows})
        used = used_of("documents", self.documents, len(documents))
        return Summary(metrics=metrics, tables={"documents": documents} | used)


class WordPerplexity(TextProtocol):
    r"""Perplexity per word of whole documents, which does not depend on the tokenizer's units.

    .. math:: \exp \Big( \sum_t -\log p(x_t) \Big/ \text{number of words} \Big)
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
    quick_short = {"stride": 8}

    window: int = 2_048  # tokens, BOS included
    stride: int = 1_024  # tokens; a smaller stride costs more and gives more context
    documents: int | None = None
    """Number of documents, in the order of the corpus. Default: all."""

    def __post_init__(self) -> None:
        self.require_at_least(1, "stride", "documents")
        self.require_at_least(self.stride + 1, "window")

    def batches(self, model: LanguageModel) -> list[list[Item]]:
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
        (item,) = items
        text = item.payload
        given = model.start(required=True)
        tokens, window = np.array(model.encode(text)), self.window - len(given)
        losses = model.sliding_losses(tokens, window=window, stride=self.stride, given=given)
        total, words, num_bytes = float(losses.sum()), len(text.split()), len(text.encode())
        row = {
            "tokens": len(losses),
            "words": words,
            "bytes": num_bytes,
            "nll": total,
            "prompt": prompt_facts(text),
            "scores": {
                "nll_per_word": total / words,
                "bits_per_byte": total / np.log(2) / num_bytes,
            },
            "weights": {"nll_per_word": words, "bits_per_byte": num_bytes},
        }
        return [row]

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
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


class BlockPerplexity(TextProtocol):
    r"""exp of the mean loss over blocks of B tokens, each read without the blocks before it.

    .. math:: \exp \frac 1 {K (B - 1)} \sum_{k=1}^{K} \sum_{t=2}^{B} -\log p(x^k_t \mid x^k_{<t})
    """

    name = "block_perplexity"
    choices = {
        "texts": "the corpus that is named, joined by blank lines into one text; by "
        "layout=wikitext the rows that the usual scripts join: every line with its end, blank "
        "lines as empty rows",
        "blocks": "one after the other from the first token on; an incomplete last one is left out",
        "first token": "of a block: given, not predicted, and no BOS before it; BOS begins the "
        "text where the tokenizer itself puts it",
        "mean": "over all predicted tokens; the usual scripts multiply and divide by B instead of "
        "B - 1, which gives the same",
        "interval": "Student t over blocks, of the loss, as if blocks were independent",
    }
    quick = {"block": 512, "blocks": 4}

    block: int | None = None
    """Tokens of a block. Default: the model's largest. Papers on quantisation take 2,048."""
    blocks: int | None = None  # from the first on; default: all
    split: str = "test"  # of a hub dataset; other texts have none
    layout: str = "documents"  # or ``"wikitext"`` for the rows of that data set

    def __post_init__(self) -> None:
        self.require_at_least(2, "block")
        self.require_at_least(1, "blocks")
        check_known(self.name, "layout", self.layout, ("documents", "wikitext"))
        if self.split != "test" and not self.texts.startswith("hub:"):
            raise ConfigError(
                "block_perplexity: split must be left out where texts is no data set on the hub "
                f"(hub:NAME), got {self.split!r} for {self.texts!r}."
            )

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        size = self.block or model.max_length
        self.require_fit(model, "block", size)
        text, blocks = self._text(), self.blocks
        ids = model.encode(text) if blocks is None else first_tokens(model, text, blocks * size)
        tokens = np.array([*model.as_its_tokenizer_begins().start(), *ids], dtype=np.int64)
        count = min(len(tokens) // size, blocks or len(tokens))
        if not count:
            raise ConfigError(
                f"block_perplexity: {self.texts!r} must hold a block of {size} tokens, got "
                f"{len(tokens)}. Set block_perplexity.block lower, or name a longer text."
            )
        # The id has the size: blocks of two sizes hold different text and must not be paired.
        items = [
            Item(id=f"{size}:{i}", payload=tokens[i * size : (i + 1) * size]) for i in range(count)
        ]
        return split_batches([items], max(1, 16_384 // size))

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        losses = model.prefix_losses([item.payload for item in items], given=[])
        return [
            {
                "block": len(item.payload),
                "tokens": len(loss),
                "nll": float(loss.sum()),
                "bytes": text_bytes(model, item.payload[1:]),
                "prompt": prompt_facts(model.decode(item.payload)),
                "scores": {"nll": float(loss.mean())},
            }
            for item, loss in zip(items, losses, strict=True)
        ]

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        where = {"block": rows[0]["block"]}
        loss = cluster_mean([row["scores"]["nll"] for row in rows])
        bits = cluster_ratio(
            [row["nll"] / np.log(2) for row in rows], [max(1, row["bytes"]) for row in rows]
        )
        totals = {key: sum(row[key] for row in rows) for key in ("nll", "tokens", "bytes")}
        return Summary(
            metrics=[
                perplexity_metric("block_perplexity", loss, where),
                loss_metric("nll", loss, where),
                loss_metric("bits_per_byte", bits, where, unit="bits per byte"),
            ],
            tables={"totals": totals},
        )

    def _text(self) -> str:
        if self.layout == "documents":
            documents = open_texts(self.texts, self.text_field, split=self.split)
            return "\n\n".join(document.text for document in documents)
        rows: list[str] = []
        for document in load_corpus(
            self.texts, text_field=self.text_field, split=self.split, keep_empty=True
        ):
            # A row of the dataset is one line with its line end: a file is split into such rows.
            lines = document.text.removesuffix("\n").split("\n")
            rows += [f"{line}\n" if line.strip() else "" for line in lines]
        return "\n\n".join(rows)
