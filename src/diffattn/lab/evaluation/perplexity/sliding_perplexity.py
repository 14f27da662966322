"""Perplexity by sliding windows, as papers on context extension report it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.metrics import loss_metric, perplexity_metric
from diffattn.lab.evaluation.perplexity.documents import long_texts
from diffattn.lab.evaluation.protocol import Item, Protocol, Summary, prompt_facts, used_of
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.stats.clusters import cluster_mean


@dataclass(frozen=True, kw_only=True)
class SlidingPerplexity(Protocol):
    """exp of the mean loss per token, every token seen through a window that slides by a stride.

    Source: arXiv:2108.12409, section 2 and appendix B (sliding windows); arXiv:2309.00071,
    section 4.3.1 (stride 256).
    """

    name = "sliding_perplexity"
    choices = {
        "texts": "the corpus that is named; the papers use Proof-pile, GovReport and PG-19",
        "documents": "the first that have `tokens` tokens, cut there; the papers draw ten",
        "first window": "predicts all its tokens, also those with little context",
        "first token": "BOS before every window if the tokenizer has one; it takes a place in "
        "the window",
        "mean": "over all tokens of a document, then over documents, which have equally many",
        "interval": "Student t over documents, of the loss",
    }
    quick = {"windows": (128, 512), "stride": 64, "tokens": 1_024, "documents": 2}

    windows: tuple[int, ...] = (2_048,)
    """Tokens of a window; one result each, on the same tokens."""
    stride: int = 256
    tokens: int = 131_072
    """Tokens of each document."""
    texts: str = "stdlib"
    """Documents: a file, a folder, JSON lines, ``hub:NAME``, or ``stdlib``."""
    text_field: str = "text"
    documents: int | None = 10
    """How many are taken, in the order of the corpus. None: all that are long enough."""

    @classmethod
    def quick_for(cls, longest: int | None) -> dict[str, Any]:
        """See :meth:`Protocol.quick_for`."""
        window = min(max(cls.quick["windows"]), longest or max(cls.quick["windows"]))
        return cls.quick | {"windows": (window // 4, window), "stride": window // 8}

    def __post_init__(self) -> None:
        if not self.windows or not 1 <= self.stride < min(self.windows):
            raise ConfigError(
                "sliding_perplexity: stride must be 1 or more and below every window, "
                f"got {self.stride} and {self.windows}."
            )
        self.require_at_least(max(self.windows), "tokens")
        self.require_at_least(1, "documents")

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """One document and window per item."""
        self.require_fit(model, "windows", max(self.windows))
        texts = long_texts(
            self.name,
            model,
            self.texts,
            self.text_field,
            least=self.tokens,
            most=self.tokens,
            documents=self.documents,
        )
        return [
            [Item(id=f"{name}:{window}", payload=(tokens, window), cluster=name)]
            for name, tokens in texts.items()
            for window in self.windows
        ]

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Mean loss of each document."""
        rows = []
        for item in items:
            tokens, window = item.payload
            given = model.start()
            losses = model.sliding_losses(
                tokens, window=window - len(given), stride=self.stride, given=given
            )
            loss = float(losses.mean())
            rows.append(
                {"window": window, "tokens": len(losses), "scores": {f"nll_window_{window}": loss}}
                | {"prompt": prompt_facts(model.decode(tokens))}
            )
        return rows

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """Perplexity and loss of each window."""
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
