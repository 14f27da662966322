"""Loss on tokens that the context alone can tell: associative recall in ordinary text."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffattn.errors import ConfigError
from diffattn.evaluation.metrics import loss_metric, metric
from diffattn.evaluation.perplexity.documents import token_splits
from diffattn.evaluation.protocol import Item, Protocol, Summary, split_long_batches
from diffattn.inference.language_model import LanguageModel
from diffattn.stats.bootstrap import bootstrap_ratio

_PUBLISHED_COUNT, _PUBLISHED_TOKENS = 1_250, 10_000_000_000
"""Zoology's threshold, and the training tokens it was chosen for."""


class Slices:
    """Number of tokens and summed loss of named sets of tokens of one sequence.

    Args:
        losses: float64 ``[n]`` in nats.
    """

    def __init__(self, losses: np.ndarray) -> None:
        self._losses = losses
        self.total = float(losses.sum())
        self.sums: dict[str, Any] = {}
        """``[tokens, nats]`` by name; by size, such pairs by the bin's lower end."""

    def add(self, name: str, inside: np.ndarray) -> None:
        """The tokens where ``inside`` (bool ``[n]``) is true."""
        self.sums[name] = [int(inside.sum()), float(self._losses[inside].sum())]

    def add_by_size(self, name: str, sizes: np.ndarray, inside: np.ndarray) -> None:
        """The same by bins of ``sizes`` (int64 ``[n]``): 0, 1, 2 to 3, 4 to 7, and so on."""
        exponents = np.frexp(sizes[inside].astype(float))[1]  # 0 -> 0, 1 -> 1, 2 and 3 -> 2
        losses = self._losses[inside]
        self.sums[name] = {
            str(0 if e == 0 else 2 ** (e - 1)): [
                int((exponents == e).sum()), float(losses[exponents == e].sum())
            ]
            for e in np.unique(exponents).tolist()
        }  # fmt: skip

    def scores(self, names: Sequence[str]) -> tuple[dict[str, float], dict[str, int]]:
        """Mean loss and number of tokens of slices that have any."""
        held = {name: self.sums[name] for name in names if self.sums[name][0]}
        scores = {f"{name}_nll": nats / count for name, (count, nats) in held.items()}
        return scores, {f"{name}_nll": count for name, (count, _) in held.items()}


def bin_sums(rows: Sequence[Mapping[str, Any]], name: str) -> dict[int, np.ndarray]:
    """``[rows, 2]``, tokens and summed loss of every bin of ``name``, smallest bin first."""
    bins: dict[int, np.ndarray] = {}
    for i, row in enumerate(rows):
        for low, pair in row["slices"][name].items():
            bins.setdefault(int(low), np.zeros((len(rows), 2)))[i] = pair
    return dict(sorted(bins.items()))


def slice_losses(rows: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """Loss, tokens and share of every bin of ``name`` over all rows, smallest bin first."""
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


def ngram_keys(tokens: np.ndarray, n: int, vocab_size: int) -> np.ndarray:
    """One int64 per n-gram of a row, different n-grams never sharing one.

    Args:
        tokens: ``[length]``, ids below ``vocab_size``.
        n: 1 or more.
        vocab_size: Ids there are.

    Returns:
        int64 ``[length - n + 1]``; entry i stands for tokens i to i + n - 1. Empty if the row is
        shorter than n.

    Raises:
        ConfigError: So many ids that the n-grams do not fit 63 bits.
    """
    if vocab_size**n >= 2**63:
        raise ConfigError(
            f"ngram_keys: {n}-grams of {vocab_size} ids must fit 63 bits, got more. Use fewer n."
        )
    size = max(0, len(tokens) - n + 1)
    keys = np.zeros(size, dtype=np.int64)
    for i in range(n):
        keys = keys * vocab_size + tokens[i : i + size].astype(np.int64)
    return keys


def gaps(keys: np.ndarray) -> np.ndarray:
    """How many places ago each key stood last, int64 like ``keys``; 0 where it is new."""
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(keys[order][1:] == keys[order][:-1]) + 1
    distances = np.zeros(len(keys), dtype=np.int64)
    distances[order[again]] = order[again] - order[again - 1]
    return distances


class NgramCounts:
    """Exact counts of chosen n-grams in a stream of any length, in memory of the chosen ones.

    Only n-grams that a text to be evaluated holds are ever asked for, so only they are counted.

    Args:
        chosen: Keys of the n-grams to count, any order, repeats allowed.
        n: Tokens of one.
        vocab_size: As the keys were made with.
    """

    def __init__(self, chosen: np.ndarray, n: int, vocab_size: int) -> None:
        self.keys = np.unique(chosen)
        self.counts = np.zeros(len(self.keys), dtype=np.int64)
        self.n, self.vocab_size = n, vocab_size

    def add(self, pieces: Iterable[np.ndarray]) -> None:
        """Count a stream of tokens that comes in pieces; n-grams may cross their borders."""
        tail = np.zeros(0, dtype=np.int64)
        for piece in pieces:
            tokens = np.concatenate([tail, piece.astype(np.int64)])
            self._add(ngram_keys(tokens, self.n, self.vocab_size))
            tail = tokens[max(0, len(tokens) - self.n + 1) :]

    def of(self, keys: np.ndarray) -> np.ndarray:
        """Counts int64 of chosen keys, in their order."""
        return self.counts[np.searchsorted(self.keys, keys)]

    def _add(self, keys: np.ndarray) -> None:
        if not len(self.keys):
            return
        # Sorted keys are looked up far faster.
        distinct, counts = np.unique(keys, return_counts=True)
        at = np.minimum(np.searchsorted(self.keys, distinct), len(self.keys) - 1)
        chosen = self.keys[at] == distinct
        self.counts[at[chosen]] += counts[chosen]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sequence:
    """One sequence and what is needed to slice it."""

    tokens: np.ndarray
    counts: dict[int, NgramCounts]
    """Training counts by n, shared by all sequences."""
    threshold: int
    train_tokens: int


@dataclass(frozen=True, kw_only=True)
class ArHits(Protocol):
    """Loss on AR hits (last tokens of an n-gram seen before in the context and rare in training)
    and on all other tokens.

    Source: arXiv:2410.05258v2, section 3.8, Table 6; arXiv:2312.04927 (Zoology), section 3.
    """

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
        "interval": "bootstrap over sequences",
    }
    quick = {"length": 512, "sequences": 16}

    data: str = "stdlib"
    """Training tokens and held-out text: a run directory, a folder of packed tokens, or a corpus
    (split as for training)."""
    text_field: str = "text"
    validation_fraction: float = 0.05
    """Of a corpus; packed tokens have theirs."""
    length: int = 2_048
    """Tokens of a sequence."""
    sequences: int = 3_200
    """At most so many."""
    n: tuple[int, ...] = (2, 3)
    """Of the n-grams; the first is the headline."""
    threshold: int | None = None
    """Highest training count of a hit. Default: in proportion to the training tokens."""

    def __post_init__(self) -> None:
        if not self.n or min(self.n) < 2 or len(set(self.n)) < len(self.n):
            raise ConfigError(f"ar_hits: n must be different numbers from 2 on, got {self.n}.")
        self.require_at_least(max(self.n) + 1, "length")
        self.require_at_least(1, "sequences")
        self.require_at_least(0, "threshold")
        if not 0 < self.validation_fraction < 1:
            raise ConfigError(
                "ar_hits: validation_fraction must lie between 0 and 1, "
                f"got {self.validation_fraction}."
            )

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """Eight sequences a batch; the n-grams of all are counted in the training tokens."""
        self.require_fit(model, "length", self.length)
        splits = token_splits(
            self.name, model, self.data,
            text_field=self.text_field, validation_fraction=self.validation_fraction,
        )  # fmt: skip
        available = len(splits.validation) // self.length
        if not available:
            raise ConfigError(
                f"ar_hits: the validation split of {splits.origin} must have {self.length} tokens, "
                f"got {len(splits.validation)}. Use --set ar_hits.length={len(splits.validation)} "
                "or less."
            )
        chosen = np.linspace(0, available, min(self.sequences, available), endpoint=False)
        starts = [int(index) * self.length for index in chosen]
        tokens = [np.array(splits.validation[s : s + self.length]) for s in starts]
        vocab_size = 1 + max(model.tokenizer.get_vocab().values())
        counts = {}
        for n in self.n:
            keys = np.concatenate([ngram_keys(ids, n, vocab_size) for ids in tokens])
            counts[n] = NgramCounts(keys, n, vocab_size)
            counts[n].add(splits.pieces())
        threshold = self.threshold
        if threshold is None:
            threshold = hit_threshold(len(splits.train))
        items = [
            Item(
                id=str(start),
                payload=_Sequence(
                    tokens=ids, counts=counts, threshold=threshold, train_tokens=len(splits.train)
                ),
            )
            for start, ids in zip(starts, tokens, strict=True)
        ]
        return split_long_batches([items], 8)

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Losses summed over the slices of each sequence."""
        given = model.start()
        losses = model.prefix_losses([item.payload.tokens for item in items], given)
        return [
            self._row(item.payload, np.concatenate([[np.nan] * (not given), nll]), bool(given))
            for item, nll in zip(items, losses, strict=True)
        ]

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """Overall loss, loss and share of each slice, losses by gap and by training count.

        The slices part the tokens, so share-weighted losses add up to the overall loss. That is
        checked, and how nearly they do is recorded.
        """
        tokens = np.array([row["tokens"] for row in rows], float)
        nll = np.array([row["nll"] for row in rows])
        overall = bootstrap_ratio(nll, tokens)
        metrics = [loss_metric("nll", overall, headline=True)]
        errors = {}
        for n in self.n:
            parts = [(name, *_sums(rows, f"{name}_{n}")) for name in ("ar_hit", "other")]
            total = 0.0
            for name, count, losses in parts:
                share = bootstrap_ratio(count, tokens)
                metrics.append(
                    metric(f"{name}_share", share, where={"n": n}, higher_is_better=None)
                )
                if count.sum():
                    loss = bootstrap_ratio(losses, count)
                    headline = n == self.n[0]
                    metrics.append(loss_metric(f"{name}_nll", loss, {"n": n}, headline=headline))
                    total += share.mean * loss.mean
            errors[str(n)] = abs(total - overall.mean)
            assert errors[str(n)] < 1e-6, f"slices of n={n} must add up, off by {errors[str(n)]}"
        metrics += [
            loss_metric("ar_hit_nll_by_gap", bootstrap_ratio(sums[:, 1], sums[:, 0]), {"gap": low})
            for low, sums in bin_sums(rows, f"gap_{self.n[0]}").items()
        ]
        tables = {
            "threshold": rows[0]["threshold"],
            "train_tokens": rows[0]["train_tokens"],
            "identity_error": errors,
            "by_gap": {str(n): slice_losses(rows, f"gap_{n}") for n in self.n},
            "by_count_repeated": {
                str(n): slice_losses(rows, f"count_repeated_{n}") for n in self.n
            },
            "by_count_new": {str(n): slice_losses(rows, f"count_new_{n}") for n in self.n},
        }
        return Summary(metrics=metrics, tables=tables)

    def _row(self, sequence: _Sequence, losses: np.ndarray, first_counts: bool) -> dict[str, Any]:
        """Sums of one sequence; without BOS its first token has no loss and does not count."""
        start = 0 if first_counts else 1
        slices = Slices(losses[start:])
        for n, counts in sequence.counts.items():
            keys = ngram_keys(sequence.tokens, n, counts.vocab_size)
            gap, seen = np.zeros(self.length, np.int64), np.zeros(self.length, np.int64)
            gap[n - 1 :], seen[n - 1 :] = gaps(keys), counts.of(keys)
            gap, seen = gap[start:], seen[start:]
            hit = (gap > 0) & (seen <= sequence.threshold)
            slices.add(f"ar_hit_{n}", hit)
            slices.add(f"other_{n}", ~hit)
            slices.add_by_size(f"gap_{n}", gap, hit)
            whole = np.arange(start, self.length) >= n - 1
            slices.add_by_size(f"count_repeated_{n}", seen, gap > 0)
            slices.add_by_size(f"count_new_{n}", seen, whole & (gap == 0))
        scores, weights = slices.scores([f"{a}_{n}" for a in ("ar_hit", "other") for n in self.n])
        return {
            "tokens": self.length - start,
            "nll": slices.total,
            "threshold": sequence.threshold,
            "train_tokens": sequence.train_tokens,
            "slices": slices.sums,
            "scores": {"nll": slices.total / (self.length - start)} | scores,
            "weights": weights,
        }


def hit_threshold(train_tokens: int) -> int:
    """Zoology's 1,250 of ten billion training tokens, in proportion, rounded up, at least 1.

    Args:
        train_tokens: 0 or more.
    """
    return max(1, math.ceil(_PUBLISHED_COUNT * train_tokens / _PUBLISHED_TOKENS))


def _sums(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and summed losses of a slice in each row."""
    pairs = np.array([row["slices"][name] for row in rows], float)
    return pairs[:, 0], pairs[:, 1]
