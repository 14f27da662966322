"""Holm's procedure against a worked example, its definition, and what it must do."""

import numpy as np
import pytest

from diffattn.lab.stats.paired import holm


def test_a_worked_example():
    """By hand: 0.005 * 4, 0.01 * 3, then 0.03 * 2 = 0.06, which 0.04 * 1 may not undercut."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_it_rejects_what_the_step_down_procedure_rejects():
    """Its definition: in rising order, stop at the first p above α over the tests left."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = rng.uniform(size=rng.integers(1, 7)) ** 3
        alpha = rng.uniform(0.01, 0.3)
        rejected = set()
        for left, i in zip(range(len(p), 0, -1), p.argsort(), strict=True):
            if p[i] > alpha / left:
                break
            rejected.add(int(i))
        assert {i for i, value in enumerate(holm(list(p))) if value <= alpha} == rejected


def test_ends_and_single_values():
    assert holm([]) == []
    assert holm([0.2]) == [0.2]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
