"""N-gram count models: controls that a trained model must beat.

They are fitted on the training windows of a run, and predict tokens 1 to T - 1 of each window.
"""

import numpy as np

from diffattn.lab.data.ngrams import PartLosses, earlier_counts, ngram_keys
from diffattn.lab.records.fields import require

_PIECE = 4_096  # windows whose probabilities are in memory at once
_BINS = 6  # bins of the number of earlier matches: 0, 1, 2 to 3, 4 to 7, 8 to 15, 16 or more
_EM_ROUNDS, _EM_CHANGE = 200, 1e-6  # most rounds; stop when no weight changes more


class Unigram:
    r"""Unigram model with Witten-Bell smoothing towards the uniform distribution.

    .. math:: p(w) = \frac{c(w) + D / V}{N + D}

    Here c(w) counts w among the N predicted tokens of the training windows, int64 ``[n, T]``. D of
    them are distinct, and V is the size of the vocabulary.
    """

    def __init__(self, windows: np.ndarray, vocab_size: int) -> None:
        counts = np.bincount(windows[:, 1:].ravel(), minlength=vocab_size)
        distinct = np.count_nonzero(counts)
        self._of_token = (counts + distinct / vocab_size) / (counts.sum() + distinct)

    def probabilities(self, windows: np.ndarray) -> np.ndarray:
        """Probabilities float64 ``[n, T - 1]`` of tokens 1 to T - 1 of windows int64 ``[n, T]``."""
        return self._of_token[windows[:, 1:]]


class Bigram:
    r"""Bigram model with Witten-Bell interpolation with the unigram model.

    .. math:: p(w \mid h) = \frac{c(h, w) + D(h)\,p(w)}{c(h) + D(h)}

    Here h is the token before w, and D(h) counts the distinct tokens that follow h in training
    (Witten and Bell's method C). If no token followed h, the unigram model predicts alone.
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
    r"""Bigram model mixed with a copy rule, as of an induction head that matches one token.

    .. math:: p(x_t \mid x_{<t}) = (1 - \mu_m)\,p(x_t \mid x_{t-1}) + \mu_m\,\frac{m'}{m}

    Token x_{t-1} occurs m times earlier in the window, and is followed by x_t in m' of these
    places. The weight μ depends on the bin of m, and is 0 for m = 0. Expectation maximisation fits
    the weights: they maximise the likelihood of the last tenth of the training windows, with
    bigrams counted on the other windows, since bigrams fit their own windows too well. The bigrams
    are then counted on all windows. There must be two windows or more, in the order of the text, so
    that the last tenth is unseen text.
    """

    def __init__(self, windows: np.ndarray, vocab_size: int) -> None:
        must = "windows must be two or more, one to weigh the copy on"
        require("BigramCopy", len(windows) >= 2, must, len(windows))
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


CountModel = Unigram | Bigram | BigramCopy
COUNT_MODELS: dict[str, type[CountModel]] = {
    "unigram": Unigram,
    "bigram": Bigram,
    "bigram_copy": BigramCopy,
}


def count_losses(model: CountModel, windows: np.ndarray) -> PartLosses:
    """Losses in nats of a fitted model on windows int64 ``[n, T]``, of all tokens and by part."""
    losses = PartLosses()
    for start in range(0, len(windows), _PIECE):
        piece = windows[start : start + _PIECE]
        losses.add(piece, -np.log(model.probabilities(piece)))
    return losses


def _copied(windows: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Bins of m, and m' / m (0 where m is 0), both ``[n, T - 1]``; see :class:`BigramCopy`."""
    matches = earlier_counts(windows)[:, :-1]
    followed = earlier_counts(ngram_keys(windows, 2, vocab_size))
    bins = np.minimum(np.frexp(matches.astype(np.float64))[1], _BINS - 1)  # 0 -> 0, 1 -> 1, 2 -> 2
    return bins, followed / np.maximum(matches, 1)


def _mixing_weights(bins: np.ndarray, copied: np.ndarray, bigram: np.ndarray) -> np.ndarray:
    """μ of each bin by maximum likelihood, float64 ``[_BINS]``; 0 for bin 0.

    One token that is not a copy is added to every bin, so that an empty bin gets 0 and none gets 1.
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
