"""Perplexity over blocks of tokens that do not overlap, as WikiText-2 is usually reported."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.data.corpora import load_corpus
from diffattn.lab.evaluation.metrics import loss_metric, perplexity_metric
from diffattn.lab.evaluation.perplexity.documents import first_tokens, open_texts, text_bytes
from diffattn.lab.evaluation.protocol import (
    Item,
    Protocol,
    Summary,
    prompt_facts,
    split_long_batches,
)
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.stats.clusters import cluster_mean, cluster_ratio

_BETWEEN = "\n\n"
_LAYOUTS = ("documents", "wikitext")
_TOKENS_TOGETHER = 16_384


@dataclass(frozen=True, kw_only=True)
class BlockPerplexity(Protocol):
    r"""exp of the mean loss over blocks of B tokens, of which each is read from scratch.

    .. math:: \exp \frac 1 {K (B - 1)} \sum_{k=1}^{K} \sum_{t=2}^{B} -\log p(x^k_t \mid x^k_{<t})

    Source: arXiv:2210.17323 (GPTQ), evaluation code, blocks of 2,048 tokens of WikiText-2's test
    split; transformers' documentation, "Perplexity of fixed-length models".
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
    quick_context = "block"

    block: int | None = None
    """Tokens of a block. Default: the longest the model takes. Papers on quantisation: 2,048."""
    blocks: int | None = None
    """Only the first so many. Default: all."""
    texts: str = "stdlib"
    """Documents: a file, a folder, JSON lines, ``hub:NAME``, or ``stdlib``."""
    text_field: str = "text"
    split: str = "test"
    """Of a data set on the hub; other texts have none."""
    layout: str = "documents"
    """``"documents"``, or ``"wikitext"`` for the rows of that data set."""

    def __post_init__(self) -> None:
        self.require_at_least(2, "block")
        self.require_at_least(1, "blocks")
        if self.layout not in _LAYOUTS:
            raise ConfigError(
                f"block_perplexity: layout must be {' or '.join(_LAYOUTS)}, got {self.layout!r}."
            )
        if self.split != "test" and not self.texts.startswith("hub:"):
            raise ConfigError(
                "block_perplexity: split must be left out where texts is no data set on the hub "
                f"(hub:NAME), got {self.split!r} for {self.texts!r}."
            )

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """One block per item; short ones share a batch."""
        size = self.block or model.max_length
        self.require_fit(model, "block", size)
        start = model.as_its_tokenizer_begins().start()
        text = self._text()
        wanted = None if self.blocks is None else self.blocks * size
        ids = model.encode(text) if wanted is None else first_tokens(model, text, wanted)
        tokens = np.array([*start, *ids], dtype=np.int64)
        count = len(tokens) // size
        if self.blocks is not None:
            count = min(count, self.blocks)
        if not count:
            raise ConfigError(
                f"block_perplexity: {self.texts!r} must hold a block of {size} tokens, got "
                f"{len(tokens)}. Set block_perplexity.block lower, or name a longer text."
            )
        # Blocks of another size hold other text: results of two sizes share no item.
        items = [
            Item(id=f"{size}:{i}", payload=tokens[i * size : (i + 1) * size]) for i in range(count)
        ]
        return split_long_batches([items], max(1, _TOKENS_TOGETHER // size))

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Mean loss of each block."""
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
        """Perplexity, loss, bits per byte."""
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
        """All of the corpus as one text."""
        if self.layout == "documents":
            return _BETWEEN.join(
                document.text
                for document in open_texts(self.texts, self.text_field, split=self.split)
            )
        rows: list[str] = []
        for document in load_corpus(
            self.texts, text_field=self.text_field, split=self.split, keep_empty=True
        ):
            # A file holds many lines, a row of the data set one with its line end.
            lines = document.text.removesuffix("\n").split("\n")
            rows += [f"{line}\n" if line.strip() else "" for line in lines]
        return _BETWEEN.join(rows)
