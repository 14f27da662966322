"""The rule by which every result is judged: an error of at most twice what rounding can do."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Comparison(NamedTuple):
    """How one tensor compares with its exact value."""

    error: float
    """Size of the difference; ``nan`` for another shape."""
    budget: float
    """What rounding explains of it."""
    problem: str | None
    """What is wrong, or ``None``."""

    @property
    def share(self) -> float:
        """Part of the budget that the error uses: above 1, or infinite, if there is a problem."""
        if self.problem is None:
            return self.error / self.budget if self.error else 0.0
        return self.error / self.budget if self.error > self.budget > 0 else math.inf


def largest(x: Tensor) -> float:
    """The largest absolute value, 0 of none."""
    return float(x.detach().abs().max()) if x.numel() else 0.0


def compare(
    actual: Tensor,
    exact: Tensor,
    off: Tensor | float,
    *,
    size: Callable[[Tensor], float] = largest,
) -> Comparison:
    r"""Judge one tensor.

    .. math:: \max|x - x_{64}| \le 2 \max E

    E says how far rounding in the dtype of ``actual`` moves x: derived for attention
    (:func:`diffattn.testing.rounding.rounding_errors`), measured for whole models
    (:func:`diffattn.testing.nudging.measured_errors`). For a float64 result the exact value is
    rounded as much as the result, which doubles the budget.

    Args:
        actual: The result in its dtype.
        exact: Float64, the same formula on the same numbers.
        off: E of every value, or its size.
        size: Of an error. Default: its largest absolute value.

    Returns:
        Error, budget and what is wrong.
    """
    sides = 2 if actual.dtype == torch.float64 else 1
    budget = 2 * sides * (size(off) if isinstance(off, Tensor) else off)
    if actual.shape != exact.shape:
        shapes = f"must be {list(exact.shape)}, got {list(actual.shape)}"
        return Comparison(math.nan, budget, shapes)
    error = size(actual.double() - exact)
    # Written so that NaN fails, whether it is in the result or in the budget.
    right = math.isfinite(budget) and error <= budget
    return Comparison(error, budget, None if right else f"error {error:.3e}, budget {budget:.3e}")
