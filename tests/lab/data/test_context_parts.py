"""Parts of windows equal those of a walk over each, and their losses those of plain sums."""

import itertools
import math

import numpy as np
import pytest

from diffattn.lab.data.ngrams import CONTEXT_PARTS, PARTS, QUARTERS, PartLosses, context_parts


def make_windows(n, length, ids, seed=0):
    return np.random.default_rng(seed).integers(0, ids, size=(n, length))


def part_names(window, place):
    """The two parts of the token at ``place``, from the definition."""
    before = window[:place]
    pairs = list(itertools.pairwise(before))
    if (window[place - 1], window[place]) in pairs:
        context = "repeated_bigram"
    elif window[place] in before:
        context = "repeated_token"
    else:
        context = "first_occurrence"
    return {context, f"quarter_{1 + 4 * place // len(window)}"}


@pytest.mark.parametrize(("n", "length", "ids"), [(20, 37, 6), (5, 64, 40), (3, 2, 2), (2, 1, 3)])
def test_parts_equal_a_walk_over_each_window(n, length, ids):
    windows = make_windows(n, length, ids)
    parts = context_parts(windows)
    assert tuple(parts) == PARTS
    for i, window in enumerate(windows.tolist()):
        for place in range(1, length):
            inside = {name for name, mask in parts.items() if mask[i, place - 1]}
            assert inside == part_names(window, place)
    for names in (CONTEXT_PARTS, QUARTERS):
        assert (sum(parts[name].astype(int) for name in names) == 1).all()


def test_documents_that_are_kept_apart_do_not_see_each_other():
    windows = np.array([[1, 2, 3, 1, 2, 0, 1, 2, 3, 0], make_windows(1, 10, 3)[0]])
    positions = np.array([[0, 1, 2, 3, 4, 5, 0, 1, 2, 3], [0, 1, 2, 0, 1, 2, 3, 0, 0, 1]])
    parts = context_parts(windows, positions)
    losses = PartLosses()
    losses.add(windows, np.ones((2, 9)), positions)
    expected = dict.fromkeys(PARTS, 0)
    for i, window in enumerate(windows.tolist()):
        for place in np.flatnonzero(positions[i]):
            start = place - positions[i, place]
            # The document alone, for what the token could see; the window, for where it stands.
            seen = part_names(window[start:], positions[i, place]) & set(CONTEXT_PARTS)
            wanted = seen | (part_names(window, place) & set(QUARTERS))
            assert {name for name, mask in parts.items() if mask[i, place - 1]} == wanted
            for name in wanted:
                expected[name] += 1
    counted = {name: part["tokens"] for name, part in losses.parts().items()}
    assert counted == {name: count for name, count in expected.items() if count}
    assert not parts["repeated_token"][0, 6:].any()  # each stood in the document before


def test_losses_are_means_over_tokens_however_the_windows_come():
    windows = make_windows(12, 20, 9)
    losses = np.random.default_rng(1).gamma(2.0, size=(12, 19))
    whole, pieces = PartLosses(), PartLosses()
    whole.add(windows, losses)
    for start, stop in ((0, 5), (5, 6), (6, 12)):
        pieces.add(windows[start:stop], losses[start:stop])
    assert whole.loss == pytest.approx(losses.mean(), rel=1e-14)
    assert pieces.loss == pytest.approx(losses.mean(), rel=1e-14)
    for name, mask in context_parts(windows).items():
        expected = {"tokens": mask.sum(), "loss": pytest.approx(losses[mask].mean(), rel=1e-14)}
        assert whole.parts()[name] == expected
        assert pieces.parts()[name] == expected


def test_a_part_without_tokens_is_left_out():
    losses = PartLosses()
    assert math.isnan(losses.loss)
    assert losses.parts() == {}
    losses.add(np.array([[1, 2, 3]]), np.array([[0.5, 1.5]]))
    assert losses.parts() == {
        "first_occurrence": {"tokens": 2, "loss": 1.0},
        "quarter_2": {"tokens": 1, "loss": 0.5},
        "quarter_3": {"tokens": 1, "loss": 1.5},
    }
    losses.add(np.array([[1, 2, 2]]), np.array([[0.5, math.nan]]))
    assert math.isnan(losses.loss)
    assert losses.parts()["first_occurrence"] == {"tokens": 3, "loss": pytest.approx(2.5 / 3)}
