"""Parts of the predicted tokens: by repetition in the context, and by position in the window."""

import numpy as np

from diffattn.lab.data.ngrams import earlier_counts, ngram_keys

CONTEXT_PARTS = ("repeated_bigram", "repeated_token", "first_occurrence")
QUARTERS = ("quarter_1", "quarter_2", "quarter_3", "quarter_4")
PARTS = (*CONTEXT_PARTS, *QUARTERS)


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
