"""The rule that judges every result: the error is at most twice what rounding can cause.

For a whole model, rounding is measured: the model runs with weights moved by one rounding.
"""

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn


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
    (:func:`measured_errors`). The first rows of a causal call average few keys and are the largest:
    under their budget, a later row could miss half its keys. A float64 result doubles the budget,
    because the exact value is rounded as much as the result.

    Args:
        exact: The same formula on the same numbers, float64.
        off: E, a tensor in the shape of ``exact``, or a number for the whole tensor.
        size: Size of the error if ``off`` is a number.
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


def measured_errors(
    run: Callable[[nn.Module], Mapping[str, Tensor]],
    model: nn.Module,
    exact: Mapping[str, Tensor],
    *,
    ulps: float = 1.0,
    num_runs: int = 6,
    size: Callable[[Tensor], float] = largest,
) -> dict[str, float]:
    """Measure how far rounding moves the results of a model whose bound is too long to derive.

    The estimate is the largest error of several runs of the reference, plus one rounding of the
    result. Each run first moves every weight by up to ``ulps`` units in the last place. A single
    run with the exact weights may be accurate by luck, or because of one machine's kernels.

    ``run`` gives the results of a model by name; ``exact`` holds those of the same weights in
    float64. Returns E for :func:`compare`, by name.
    """
    eps = ulps * max(torch.finfo(x.dtype).eps for x in model.parameters())
    worst = dict.fromkeys(exact, 0.0)
    moved = deepcopy(model)  # once: it takes as long as several runs of a small model
    for seed in range(num_runs):
        moved.zero_grad()
        results = run(nudged(model, seed=seed, ulps=ulps, into=moved))
        for name, want in exact.items():
            error = size(results[name].double() - want)
            worst[name] = error if not error <= worst[name] else worst[name]  # keeps NaN
    return {name: error + eps * size(exact[name]) for name, error in worst.items()}


@torch.no_grad()
def nudged(
    model: nn.Module, *, seed: int, ulps: float = 1.0, into: nn.Module | None = None
) -> nn.Module:
    """A copy whose weights are multiplied by 1 + u · ulps · eps, with u uniform in [-1, 1).

    ``into`` is an older copy of the model that may be overwritten.
    """
    moved = deepcopy(model) if into is None else into
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    for weight, place in zip(model.parameters(), moved.parameters(), strict=True):
        uniform = torch.rand(weight.shape, generator=generator, dtype=torch.float64, device=device)
        steps = 2 * uniform - 1
        eps = ulps * torch.finfo(weight.dtype).eps
        place.copy_(weight.double() * (1 + eps * steps))
    return moved
