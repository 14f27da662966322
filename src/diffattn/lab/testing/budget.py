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
    """The part that rounding explains."""
    problem: str | None
    """The fault, or ``None``."""

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
    r"""Judge one tensor: every value by its own E, or its size by one E.

    .. math:: |x - x_{64}| \le 2 E

    E says how far rounding in the dtype of ``actual`` moves x: derived value by value for attention
    (:func:`diffattn.lab.testing.rounding.rounding_errors`), measured for whole models
    (:func:`diffattn.lab.testing.nudging.measured_errors`). By value because the first rows of a
    causal
    call, averages of few keys, are the largest: by their budget a later row may miss half its keys.
    For a float64 result the exact value is rounded as much as the result, which doubles the budget.

    Args:
        actual: The result in its dtype.
        exact: Float64, the same formula on the same numbers.
        off: E of every value, in the shape of ``exact``, or of the whole.
        size: Of the whole's error. Default: its largest absolute value.

    Returns:
        Error, budget and what is wrong; of the value that uses the largest part of its budget.
    """
    sides = 2 if actual.dtype == torch.float64 else 1
    if actual.shape != exact.shape:
        budget = 2 * sides * (largest(off) if isinstance(off, Tensor) else off)
        shapes = f"must be {list(exact.shape)}, got {list(actual.shape)}"
        return Comparison(math.nan, budget, shapes)
    difference = actual.double() - exact
    if isinstance(off, Tensor):
        error, budget = _worst_value(difference, 2 * sides * off.double(), exact, actual.dtype)
    else:
        error, budget = size(difference), 2 * sides * off
    # Written so that NaN fails, whether it is in the result or in the budget.
    right = math.isfinite(budget) and error <= budget
    return Comparison(error, budget, None if right else f"error {error:.3e}, budget {budget:.3e}")


def _worst_value(
    difference: Tensor, budgets: Tensor, exact: Tensor, dtype: torch.dtype
) -> tuple[float, float]:
    """Error and budget of the value nearest to its budget or furthest beyond it."""
    if not difference.numel():
        return 0.0, 0.0
    errors = difference.detach().abs().flatten()
    # What underflows loses all its digits: a weight of e⁻¹⁰⁰ is 0 where sums are in float32.
    sums = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32)
    least = (
        sums.eps**2 * largest(exact) + torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    )
    budgets = budgets.detach().expand_as(exact).flatten().clamp(min=least)  # keeps NaN
    shares = torch.nan_to_num(errors / budgets, nan=math.inf, posinf=math.inf)
    shares[~budgets.isfinite()] = math.inf
    worst = int(shares.argmax())
    return float(errors[worst]), float(budgets[worst])
