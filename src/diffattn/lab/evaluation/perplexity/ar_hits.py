"""Associative recall in ordinary text: the loss on n-grams that the context repeats."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.data.corpora import load_corpus
from diffattn.lab.data.ngrams import NgramCounts, gaps, ngram_keys
from diffattn.lab.data.splits import assign_splits
from diffattn.lab.data.tokenizer import plain_encoder, tokenizer_hash
from diffattn.lab.data.tokens import PackedTokens
from diffattn.lab.evaluation.metrics import loss_metric, metric, row_clusters
from diffattn.lab.evaluation.protocol import Item, Protocol, Summary, prompt_facts, split_batches
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.stats.intervals import cluster_ratio
from diffattn.ops.inputs.numbers import in_float32


def slice_sum(losses: np.ndarray, inside: np.ndarray) -> list[Any]:
    """``[count, summed loss in nats]`` of the tokens where ``inside``, bool ``[n]``, is true."""
    return [int(inside.sum()), float(losses[inside].sum())]


def bins_by_size(losses: np.ndarray, sizes: np.ndarray, inside: np.ndarray) -> dict[str, Any]:
    """Lower end of each bin of ``sizes`` (0, 1, 2 to 3, 4 to 7, ...), a text, to its slice sum."""
    exponents = np.frexp(sizes[inside].astype(float))[1]  # 0 -> 0, 1 -> 1, 2 and 3 -> 2
    return {
        str(0 if e == 0 else 2 ** (e - 1)): slice_sum(losses[inside], exponents == e)
        for e in np.unique(exponents).tolist()
    }


def bin_sums(rows: Sequence[Mapping[str, Any]], name: str) -> dict[int, np.ndarray]:
    """Lower end of each bin of slice ``name`` to ``[rows, 2]``: tokens and summed loss."""
    bins: dict[int, np.ndarray] = {}
    for i, row in enumerate(rows):
        for low, pair in row["slices"][name].items():
            bins.setdefault(int(low), np.zeros((len(rows), 2)))[i] = pair
    return dict(sorted(bins.items()))


def slice_losses(rows: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """Mean loss, tokens and share of each bin of slice ``name`` over all rows, smallest first."""
    tokens = sum(row["tokens"] for row in rows)
    totals = {low: sums.sum(0).tolist() for low, sums in bin_sums(rows, name).items()}
    return [
        {
            "from": low,
            "to": max(0, 2 * low - 1),
            "tokens": int(count),
            "share": count / tokens,
            "nll": nats / count,
        }
        for low, (count, nats) in totals.items()
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sequence:
    """One sequence, and the training counts by which its tokens are sliced."""

    tokens: np.ndarray
    counts: dict[int, NgramCounts]  # n to training counts; all sequences share this object
    threshold: int
    train_tokens: int


class ArHits(Protocol):
    """Loss on AR hits, and on all other tokens. A hit is the last token of an n-gram that occurred
    earlier in the context and is rare in training."""

    name = "ar_hits"
    choices = {
        "n": "2 as in Zoology is the headline, 3 stands beside it; the paper says 'n-gram'",
        "threshold": "1,250 x training tokens / 10e9, rounded up, at least 1: Zoology's count in "
        "proportion; the paper gives none",
        "training counts": "exact, over the whole training split, across the ends of documents "
        "as training windows run, whether or not a run read all of it",
        "text": "the validation split, in sequences one after the other, spaced evenly if there "
        "are more than wanted",
        "sequences": "BOS first if the tokenizer has one; it is part of no n-gram",
        "gap": "tokens since the n-gram's last occurrence in the sequence",
        "interval": "Student t over documents; a sequence counts to the one where it begins",
    }
    quick = {"length": 512, "sequences": 16}

    data: str = "stdlib"
    """Source of training tokens and held-out text: a run directory, a folder of packed tokens, or
    a corpus, which is split as for training."""
    text_field: str = "text"
    validation_fraction: float = 0.05  # of documents, if ``data`` is a corpus
    length: int = 2_048  # tokens of a sequence
    sequences: int = 3_200  # at most
    n: tuple[int, ...] = (2, 3)  # of n-grams; the first one gives the headline metrics
    threshold: int | None = None  # largest training count of a hit; default: :func:`hit_threshold`

    def __post_init__(self) -> None:
        self.require_at_least(2, "n")
        self.require_at_least(max(self.n) + 1, "length")
        self.require_at_least(1, "sequences")
        self.require_at_least(0, "threshold")
        fraction = self.validation_fraction
        if not 0 < fraction < 1 or not in_float32(fraction):
            raise ConfigError(
                f"ar_hits: validation_fraction must lie between 0 and 1, got {fraction}."
            )

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """Batches of eight sequences. Counts their n-grams in the training tokens."""
        self.require_fit(model, "length", self.length)
        train, validation, document_starts, origin = self._splits(model)
        available = len(validation) // self.length
        if not available:
            raise ConfigError(
                f"ar_hits: the validation split of {origin} must have {self.length} tokens, got "
                f"{len(validation)}. Use --set ar_hits.length={len(validation)} or less."
            )
        chosen = np.linspace(0, available, min(self.sequences, available), endpoint=False)
        starts = [int(index) * self.length for index in chosen]
        tokens = [np.array(validation[s : s + self.length]) for s in starts]
        vocab_size = 1 + max(model.tokenizer.get_vocab().values())
        documents = np.searchsorted(document_starts, starts, side="right") - 1
        counts = {}
        for n in self.n:
            keys = np.concatenate([ngram_keys(ids, n, vocab_size) for ids in tokens])
            counts[n] = NgramCounts(keys, n, vocab_size)
            counts[n].add(train[at : at + 2**22] for at in range(0, len(train), 2**22))
        total, threshold = len(train), self.threshold
        if threshold is None:
            threshold = hit_threshold(total)
        items = []
        for start, document, ids in zip(starts, documents, tokens, strict=True):
            sequence = _Sequence(tokens=ids, counts=counts, threshold=threshold, train_tokens=total)
            # A sequence belongs to the document in which it begins.
            items.append(Item(id=str(start), cluster=f"document-{document}", payload=sequence))
        return split_batches([items], 8)

    def material(self, model: LanguageModel, items: Sequence[Item]) -> Any:
        counts: Mapping[int, NgramCounts] = items[0].payload.counts
        return {n: (counted.keys, counted.counts) for n, counted in counts.items()}

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        given = model.start()
        losses = model.prefix_losses([item.payload.tokens for item in items], given)
        return [
            self._row(item.payload, np.concatenate([[np.nan] * (not given), nll]), bool(given))
            | {"prompt": prompt_facts(model.decode(item.payload.tokens))}
            for item, nll in zip(items, losses, strict=True)
        ]

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        tokens = np.array([row["tokens"] for row in rows], float)
        nll = np.array([row["nll"] for row in rows])
        clusters = row_clusters(rows)
        overall = cluster_ratio(nll, tokens, clusters)
        metrics = [loss_metric("nll", overall, headline=True)]
        for n in self.n:
            for name in ("ar_hit", "other"):
                count, losses = np.array([row["slices"][f"{name}_{n}"] for row in rows], float).T
                share = cluster_ratio(count, tokens, clusters)
                metrics.append(
                    metric(f"{name}_share", share, where={"n": n}, higher_is_better=None)
                )
                if count.sum():
                    loss = cluster_ratio(losses, count, clusters)
                    headline = n == self.n[0]
                    metrics.append(loss_metric(f"{name}_nll", loss, {"n": n}, headline=headline))
        for low, sums in bin_sums(rows, f"gap_{self.n[0]}").items():
            loss = cluster_ratio(sums[:, 1], sums[:, 0], clusters)
            metrics.append(loss_metric("ar_hit_nll_by_gap", loss, {"gap": low}))
        tables = {key: rows[0][key] for key in ("threshold", "train_tokens")}
        for name in ("gap", "count_repeated", "count_new"):
            tables[f"by_{name}"] = {str(n): slice_losses(rows, f"{name}_{n}") for n in self.n}
        return Summary(metrics=metrics, tables=tables)

    def _splits(self, model: LanguageModel) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
        """Training tokens, validation tokens, the first of each document there, and their source. A
        corpus is split as ``pack`` does: documents are plain text and end with the end token."""
        path = Path(self.data)
        is_run = (path / "run.json").exists()
        for folder in (path, path / "data", path.parent.parent / "data")[: 3 if is_run else 2]:
            if not ((folder / "train.json").exists() or (folder / "train.bin").exists()):
                continue
            packed, held = (PackedTokens(folder, split) for split in ("train", "validation"))
            packed_by, wanted = packed.metadata["tokenizer_hash"], tokenizer_hash(model.tokenizer)
            if packed_by != wanted:
                raise ConfigError(
                    f"ar_hits: the tokens in {folder} must come from the tokenizer of "
                    f"{model.label} ({wanted[:12]}), got those of another ({packed_by[:12]}). Name "
                    "the corpus instead, or pack it with this tokenizer."
                )
            return packed.tokens, held.tokens, held.document_offsets[:-1], str(folder)
        if is_run:
            raise ConfigError(
                f"ar_hits: the run {path} must have packed tokens (in its own data/ or that of its "
                "study), got none. Name the folder that 'diffattn pack' wrote, or the corpus."
            )
        encoder, end = plain_encoder(model.tokenizer), model.tokenizer.eos_token_id
        parts: dict[str, list[np.ndarray]] = {"train": [], "validation": []}
        documents = load_corpus(self.data, text_field=self.text_field)
        for split, document in assign_splits(documents, self.validation_fraction):
            ids = encoder.encode(document.text, add_special_tokens=False).ids
            parts[split].append(np.array([*ids, *([] if end is None else [end])], dtype=np.uint32))
        train, validation = (np.concatenate(parts[split]) for split in ("train", "validation"))
        starts = np.cumsum([0, *map(len, parts["validation"][:-1])], dtype=np.int64)
        return train, validation, starts, self.data

    def _row(self, sequence: _Sequence, losses: np.ndarray, first_counts: bool) -> dict[str, Any]:
        """The row of one sequence. Without BOS its first token has no loss and does not count."""
        start = 0 if first_counts else 1
        losses = losses[start:]
        tokens, nll = len(losses), float(losses.sum())
        slices: dict[str, Any] = {}
        for n, counts in sequence.counts.items():
            keys = ngram_keys(sequence.tokens, n, counts.vocab_size)
            gap, seen = np.zeros(self.length, np.int64), np.zeros(self.length, np.int64)
            gap[n - 1 :], seen[n - 1 :] = gaps(keys), counts.counts_of(keys)
            gap, seen = gap[start:], seen[start:]
            hit = (gap > 0) & (seen <= sequence.threshold)
            slices[f"ar_hit_{n}"] = slice_sum(losses, hit)
            slices[f"other_{n}"] = slice_sum(losses, ~hit)
            slices[f"gap_{n}"] = bins_by_size(losses, gap, hit)
            whole = np.arange(start, self.length) >= n - 1
            slices[f"count_repeated_{n}"] = bins_by_size(losses, seen, gap > 0)
            slices[f"count_new_{n}"] = bins_by_size(losses, seen, whole & (gap == 0))
        named = [f"{part}_{n}" for part in ("ar_hit", "other") for n in self.n]
        held = {f"{name}_nll": slices[name] for name in named if slices[name][0]}
        return {
            "tokens": tokens,
            "nll": nll,
            "threshold": sequence.threshold,
            "train_tokens": sequence.train_tokens,
            "slices": slices,
            "scores": {"nll": nll / tokens}
            | {name: nats / count for name, (count, nats) in held.items()},
            "weights": {name: count for name, (count, _) in held.items()},
        }


def hit_threshold(train_tokens: int) -> int:
    """Zoology's threshold, 1,250 per 10e9 training tokens, scaled, rounded up, at least 1."""
    return max(1, math.ceil(1_250 * train_tokens / 10_000_000_000))
