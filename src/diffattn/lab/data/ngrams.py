"""Exact counts of n-grams in contexts and in training data, and the parts of a text by them."""

from collections.abc import Iterable

import numpy as np

from diffattn.errors import ConfigError

CONTEXT_PARTS = ("repeated_bigram", "repeated_token", "first_occurrence")
QUARTERS = ("quarter_1", "quarter_2", "quarter_3", "quarter_4")
PARTS = (*CONTEXT_PARTS, *QUARTERS)


def ngram_keys(tokens: np.ndarray, n: int, vocab_size: int) -> np.ndarray:
    """Keys of the n-grams of rows ``[..., length]``, int64 ``[..., length - n + 1]``.

    Different n-grams have different keys. Entry i is the key of tokens i to i + n - 1.
    """
    if vocab_size**n >= 2**63:
        raise ConfigError(
            f"ngram_keys: {n}-grams of {vocab_size} ids must fit 63 bits, got more. Use fewer n."
        )
    size = max(0, tokens.shape[-1] - n + 1)
    keys = np.zeros((*tokens.shape[:-1], size), dtype=np.int64)
    for i in range(n):
        keys = keys * vocab_size + tokens[..., i : i + size].astype(np.int64)
    return keys


def gaps(keys: np.ndarray) -> np.ndarray:
    """Distance from each key to its previous occurrence, int64 ``[length]``; 0 without one."""
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(keys[order][1:] == keys[order][:-1]) + 1
    distances = np.zeros(len(keys), dtype=np.int64)
    distances[order[again]] = order[again] - order[again - 1]
    return distances


def earlier_counts(keys: np.ndarray) -> np.ndarray:
    """How often each key occurs earlier in its row, int64 ``[n, length]`` like ``keys``."""
    order = np.argsort(keys, axis=1, kind="stable")  # equal keys stay in the order of the row
    ranked = np.take_along_axis(keys, order, axis=1)
    places = np.broadcast_to(np.arange(keys.shape[1]), keys.shape)
    is_first = np.ones(keys.shape, dtype=bool)
    is_first[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    firsts = np.maximum.accumulate(np.where(is_first, places, 0), axis=1)
    counts = np.empty(keys.shape, dtype=np.int64)
    np.put_along_axis(counts, order, places - firsts, axis=1)
    return counts


class NgramCounts:
    """Exact counts of chosen n-grams in a stream of any length.

    Memory grows only with the chosen n-grams, such as those of the text to be evaluated. Their keys
    may come in any order and repeat; ``vocab_size`` is that of the keys.
    """

    def __init__(self, chosen: np.ndarray, n: int, vocab_size: int) -> None:
        self.keys = np.unique(chosen)
        self.counts = np.zeros(len(self.keys), dtype=np.int64)
        self.n, self.vocab_size = n, vocab_size

    def add(self, pieces: Iterable[np.ndarray]) -> None:
        """Count the n-grams of one stream of tokens, given in pieces; n-grams may span pieces."""
        tail = np.zeros(0, dtype=np.int64)
        for piece in pieces:
            tokens = np.concatenate([tail, piece.astype(np.int64)])
            tail = tokens[max(0, len(tokens) - self.n + 1) :]
            if len(self.keys):
                keys = ngram_keys(tokens, self.n, self.vocab_size)
                distinct, counts = np.unique(keys, return_counts=True)  # sorted: fast to look up
                at = np.minimum(np.searchsorted(self.keys, distinct), len(self.keys) - 1)
                chosen = self.keys[at] == distinct
                self.counts[at[chosen]] += counts[chosen]

    def counts_of(self, keys: np.ndarray) -> np.ndarray:
        """Counts of ``keys``, int64 in the same order. Each key must be a chosen one."""
        return self.counts[np.searchsorted(self.keys, keys)]


def context_parts(
    windows: np.ndarray, positions: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Two partitions of the predicted tokens of windows int64 ``[n, T]``.

    By context: ``repeated_bigram``, the same two tokens, this one and its predecessor, stood side
    by side earlier; ``repeated_token``, the token occurred, but not after this predecessor;
    ``first_occurrence``, the token did not occur. By its position t in a window of T tokens:
    ``quarter_N`` with N = ``1 + 4t // T``.

    Args:
        positions: int64 ``[n, T]``, 0 at the first token of each document, if a token sees only its
            own document. Default: a token sees its whole window.

    Returns:
        Name in ``PARTS`` to bool ``[n, T - 1]``, entry i for token i + 1.
    """
    length = windows.shape[1]
    if positions is not None:  # give equal tokens of different documents different ids
        documents = (positions == 0).cumsum(axis=1)
        keys = documents * (int(windows.max(initial=0)) + 1) + windows
        windows = np.unique(keys, return_inverse=True)[1].reshape(windows.shape)
    ids = int(windows.max(initial=0)) + 1
    bigram = earlier_counts(ngram_keys(windows, 2, ids)) > 0
    token = earlier_counts(windows)[:, 1:] > 0
    parts = dict(zip(CONTEXT_PARTS, (bigram, token & ~bigram, ~token), strict=True))
    quarter = 4 * np.arange(1, length) // length
    for i, name in enumerate(QUARTERS):
        parts[name] = np.broadcast_to(quarter == i, bigram.shape)
    return parts


class PartLosses:
    """Mean loss over windows and over each of their parts, summed in float64."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(PARTS, 0.0)
        self._counts = dict.fromkeys(PARTS, 0)

    def add(
        self, windows: np.ndarray, losses: np.ndarray, positions: np.ndarray | None = None
    ) -> None:
        """Add windows, and the losses in nats of their tokens 1 to T - 1, float64 ``[n, T - 1]``.

        For ``windows`` and ``positions`` see :func:`context_parts`. With positions, the first token
        of each document is left out, as nothing predicts it.
        """
        for name, inside in context_parts(windows, positions).items():
            inside = inside if positions is None else inside & (positions[:, 1:] != 0)
            self._sums[name] += float(losses[inside].sum())
            self._counts[name] += int(inside.sum())

    @property
    def loss(self) -> float:
        """Nats per token over all tokens so far; NaN without tokens."""
        tokens = sum(self._counts[name] for name in CONTEXT_PARTS)
        return sum(self._sums[name] for name in CONTEXT_PARTS) / tokens if tokens else float("nan")

    def parts(self) -> dict[str, dict[str, float]]:
        """Part to its number of ``tokens`` and mean ``loss`` in nats; without empty parts."""
        return {
            name: {"tokens": count, "loss": self._sums[name] / count}
            for name, count in self._counts.items()
            if count
        }
