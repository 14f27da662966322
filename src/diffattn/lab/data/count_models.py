"""Language models by counting: controls that a trained model must beat.

All are fitted on the windows of a run, and predict tokens 1 to T - 1 of each window.
"""

from typing import Protocol

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.data.context_parts import PartLosses
from diffattn.lab.data.ngrams import earlier_counts, ngram_keys

_PIECE = 4_096  # windows whose probabilities are in memory at once
_BINS = 6  # of earlier matches: 0, 1, 2 to 3, 4 to 7, 8 to 15, 16 and more
_EM_ROUNDS, _EM_CHANGE = 200, 1e-6


class CountModel(Protocol):
    """A fitted model."""

    def probabilities(self, windows: np.ndarray) -> np.ndarray:
        """Probabilities float64 ``[n, T - 1]`` of tokens 1 to T - 1 of windows int64 ``[n, T]``."""


class Unigram:
    r"""Each token by its count, smoothed with the uniform distribution as Witten and Bell do.

    .. math:: p(w) = \frac{c(w) + D / V}{N + D}

    Here c(w) counts w among the N predicted tokens, D of which are distinct.

    Args:
        windows: int64 ``[n, T]`` of training.
        vocab_size: V; ids are below it.
    """

    def __init__(self, windows: np.ndarray, vocab_size: int) -> None:
        counts = np.bincount(windows[:, 1:].ravel(), minlength=vocab_size)
        distinct = np.count_nonzero(counts)
        self._of_token = (counts + distinct / vocab_size) / (counts.sum() + distinct)

    def probabilities(self, windows: np.ndarray) -> np.ndarray:
        """Probabilities float64 ``[n, T - 1]`` of tokens 1 to T - 1 of windows int64 ``[n, T]``."""
        return self._of_token[windows[:, 1:]]


class Bigram:
    r"""Each token by its count after the one before it, interpolated with the unigrams.

    .. math:: p(w \mid h) = \frac{c(h, w) + D(h)\,p(w)}{c(h) + D(h)}

    Here D(h) counts the distinct tokens that follow h (Witten and Bell's method C). After a
    token that nothing ever followed, the unigram stands alone.

    Args:
        windows: int64 ``[n, T]`` of training.
        vocab_size: Ids are below it.
    """

    def __init__(self, windows: np.ndarray, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._unigram = Unigram(windows, vocab_size)
        keys = ngram_keys(windows, 2, vocab_size)
        self._pairs, self._counts = np.unique(keys, return_counts=True)
        before = self._pairs // vocab_size
        self._distinct = np.bincount(before, minlength=vocab_size)
        self._seen = np.bincount(before, weights=self._counts, minlength=vocab_size)

    def probabilities(self, windows: np.ndarray) -> np.ndarray:
        """Probabilities float64 ``[n, T - 1]`` of tokens 1 to T - 1 of windows int64 ``[n, T]``."""
        keys = ngram_keys(windows, 2, self._vocab_size)
        at = np.minimum(np.searchsorted(self._pairs, keys), len(self._pairs) - 1)
        counts = np.where(self._pairs[at] == keys, self._counts[at], 0)
        seen, distinct = self._seen[windows[:, :-1]], self._distinct[windows[:, :-1]]
        unigram = self._unigram.probabilities(windows)
        followed = (counts + distinct * unigram) / np.maximum(seen + distinct, 1)
        return np.where(distinct > 0, followed, unigram)


class BigramCopy:
    r"""The bigrams mixed with what followed earlier occurrences of the same token in the window.

    .. math:: p(x_t \mid x_{<t}) = (1 - \mu_m)\,p(x_t \mid x_{t-1}) + \mu_m\,\frac{m'}{m}

    Of the m earlier occurrences of the token before, m' are followed by this token, as for an
    induction head that matches one token. Each bin of m has a weight, 0 for m = 0. Expectation
    maximisation chooses the weights that maximise the likelihood of the last tenth of the training
    windows under bigrams counted on the others, as bigrams are too good on windows that they have
    counted. The bigrams are then counted on all windows.

    Args:
        windows: int64 ``[n, T]`` of training, two or more, in the order of the text, so that the
            last tenth is other text.
        vocab_size: Ids are below it.

    Raises:
        ConfigError: There are fewer than two windows.
    """

    def __init__(self, windows: np.ndarray, vocab_size: int) -> None:
        if len(windows) < 2:
            raise ConfigError(
                f"BigramCopy: windows must be two or more, one to weigh the copy on, "
                f"got {len(windows)}."
            )
        held_out = max(1, len(windows) // 10)
        counted = Bigram(windows[:-held_out], vocab_size)
        bins, copied = _copied(windows[-held_out:], vocab_size)
        self.weights = _mixing_weights(bins, copied, counted.probabilities(windows[-held_out:]))
        self._vocab_size = vocab_size
        self._bigram = Bigram(windows, vocab_size)

    def probabilities(self, windows: np.ndarray) -> np.ndarray:
        """Probabilities float64 ``[n, T - 1]`` of tokens 1 to T - 1 of windows int64 ``[n, T]``."""
        bins, copied = _copied(windows, self._vocab_size)
        weight = self.weights[bins]
        return (1 - weight) * self._bigram.probabilities(windows) + weight * copied


COUNT_MODELS: dict[str, type[Unigram] | type[Bigram] | type[BigramCopy]] = {
    "unigram": Unigram,
    "bigram": Bigram,
    "bigram_copy": BigramCopy,
}


def count_losses(model: CountModel, windows: np.ndarray) -> PartLosses:
    """Losses of a fitted model on windows int64 ``[n, T]``, over all tokens and by part."""
    losses = PartLosses()
    for start in range(0, len(windows), _PIECE):
        piece = windows[start : start + _PIECE]
        losses.add(piece, -np.log(model.probabilities(piece)))
    return losses


def _copied(windows: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Bins of m, and m' / m (0 where m is), both ``[n, T - 1]``."""
    matches = earlier_counts(windows)[:, :-1]
    followed = earlier_counts(ngram_keys(windows, 2, vocab_size))
    bins = np.minimum(np.frexp(matches.astype(np.float64))[1], _BINS - 1)  # 0 -> 0, 1 -> 1, 2 -> 2
    return bins, followed / np.maximum(matches, 1)


def _mixing_weights(bins: np.ndarray, copied: np.ndarray, bigram: np.ndarray) -> np.ndarray:
    """float64 ``[_BINS]``: each bin's most likely share of copies, below 1, and 0 without matches.

    One token that is no copy is added to every bin, so that an empty bin gets 0 and no bin gets 1.
    """
    matched = bins > 0
    bins, copied, bigram = bins[matched], copied[matched], bigram[matched]
    tokens = np.bincount(bins, minlength=_BINS) + 1
    weights = np.where(np.arange(_BINS) > 0, 0.5, 0.0)
    for _ in range(_EM_ROUNDS):
        weight = weights[bins]
        copies = weight * copied
        copies /= copies + (1 - weight) * bigram
        before, weights = weights, np.bincount(bins, copies, _BINS) / tokens
        if np.abs(weights - before).max() < _EM_CHANGE:
            break
    return weights
