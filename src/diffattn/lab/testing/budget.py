"""The rule that judges every result: the error is at most twice what rounding can cause."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Comparison(NamedTuple):
    """How one tensor compares with its exact value."""

    error: float
    """Absolute error, of the value nearest to its budget if each has one; NaN: wrong shape."""
    budget: float
    """Largest error that is accepted."""
    problem: str | None
    """The fault in words: a wrong shape or too large an error; ``None`` if there is none."""

    @property
    def share(self) -> float:
        """The error over the budget; above 1 or infinite exactly if there is a problem."""
        if self.problem is None:
            return self.error / self.budget if self.error else 0.0
        return self.error / self.budget if self.error > self.budget > 0 else math.inf


def largest(x: Tensor) -> float:
    """Largest absolute value; 0 for an empty tensor."""
    return float(x.detach().abs().max()) if x.numel() else 0.0


def compare(
    actual: Tensor,
    exact: Tensor,
    off: Tensor | float,
    *,
    size: Callable[[Tensor], float] = largest,
) -> Comparison:
    r"""Judge one tensor: each value by an E of its own, or the whole tensor by one E.

    .. math:: |x - x_{64}| \le 2 E

    E says how far rounding in the dtype of ``actual`` moves x. For attention it is derived for each
    value (:func:`diffattn.lab.testing.rounding.rounding_errors`). For whole models it is measured
    (:func:`diffattn.lab.testing.nudging.measured_errors`). The first rows of a causal call average
    few keys and are the largest: under their budget, a later row could miss half its keys.
    A float64 result doubles the budget, because the exact value is rounded as much as the result.

    Args:
        actual: The result in its dtype.
        exact: The same formula on the same numbers, float64.
        off: E, a tensor in the shape of ``exact``, or a number for the whole tensor.
        size: Size of the error if ``off`` is a number. Default: the largest absolute value.

    Returns:
        Error, budget and problem; with a tensor ``off``, of the value with the largest share.
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
    # NaN in the result or in the budget makes this false.
    right = math.isfinite(budget) and error <= budget
    return Comparison(error, budget, None if right else f"error {error:.3e}, budget {budget:.3e}")


def _worst_value(
    difference: Tensor, budgets: Tensor, exact: Tensor, dtype: torch.dtype
) -> tuple[float, float]:
    """Error and budget of the value whose error is the largest share of its budget."""
    if not difference.numel():
        return 0.0, 0.0
    errors = difference.detach().abs().flatten()
    # A value that underflows loses all its digits: a weight of e⁻¹⁰⁰ is 0 in float32 sums.
    sums = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32)
    least = (
        sums.eps**2 * largest(exact) + torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    )
    budgets = budgets.detach().expand_as(exact).flatten().clamp(min=least)  # keeps NaN
    shares = torch.nan_to_num(errors / budgets, nan=math.inf, posinf=math.inf)
    shares[~budgets.isfinite()] = math.inf
    worst = int(shares.argmax())
    return float(errors[worst]), float(budgets[worst])
