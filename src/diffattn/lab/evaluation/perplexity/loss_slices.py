"""Losses of one sequence summed over sets of its tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


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
        bins = ((e, exponents == e) for e in np.unique(exponents).tolist())
        self.sums[name] = {
            str(0 if e == 0 else 2 ** (e - 1)): [int(held.sum()), float(losses[held].sum())]
            for e, held in bins
        }

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
