"""Comparisons by the rule that judges every result: at most twice what rounding can cause.

For a whole model, rounding is measured: the model runs with weights moved by one rounding.
"""

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from diffattn.lab.testing.inputs import DiffAttentionInputs
from diffattn.lab.testing.rounding import BLOCK_SCORES, at_rows, rounding_errors, row_blocks
from diffattn.ops.backends import reference
from diffattn.ops.inputs.masking import AttentionMask, repeat_heads


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
    actual: Tensor, exact: Tensor, off: Tensor | float, *, size: Callable[[Tensor], float] = largest
) -> Comparison:
    r"""Judge one tensor: each value by an E of its own, or the whole tensor by one E.

    .. math:: |x - x_{64}| \le 2 E

    E says how far rounding in the dtype of ``actual`` moves x. For attention it is derived for each
    value (:func:`diffattn.lab.testing.rounding.rounding_errors`). For whole models it is measured
    (:func:`measured_errors`). A float64 result doubles the budget, because the exact value is
    rounded as much as the result.

    ``exact`` is float64. ``off`` is E. If it is one number, ``size`` measures the error.
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
    run with the exact weights may be accurate by luck. ``exact`` holds results in float64.
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
    """A copy, or older copy ``into``, with weights times 1 + u · ulps · eps, u in [-1, 1)."""
    moved = deepcopy(model) if into is None else into
    device = next(model.parameters()).device
    options: Any = {"generator": torch.Generator(device).manual_seed(seed), "device": device}
    for weight, place in zip(model.parameters(), moved.parameters(), strict=True):
        steps = 2 * torch.rand(weight.shape, dtype=torch.float64, **options) - 1
        place.copy_(weight.double() * (1 + ulps * torch.finfo(weight.dtype).eps * steps))
    return moved


def assert_close_to_reference(
    op: Callable[..., Tensor], inputs: DiffAttentionInputs, *, backend: str, gradients: bool = True
) -> None:
    r"""Output and gradients of ``backend`` stay within twice what rounding can do to them.

    .. math:: |x - x_{64}| \le 2 E

    It holds value by value, with 4 E for float64. x_64 is the reference in float64 on the same
    numbers. E comes from :func:`diffattn.lab.testing.rounding.rounding_errors`.
    """
    compared = compare_to_reference(op, inputs, backend=backend, gradients=gradients)
    failures = [f"{name}: {value.problem}" for name, value in compared.items() if value.problem]
    if failures:
        raise AssertionError(
            f"backend {backend!r} in {inputs.q.dtype} is further from the float64 reference than "
            f"rounding explains: {'; '.join(failures)}."
        )


def compare_to_reference(
    op: Callable[..., Tensor],
    inputs: DiffAttentionInputs,
    *,
    backend: str,
    gradients: bool = True,
    lay_out: Callable[[Tensor], Tensor] = Tensor.detach,
    oracle: Callable[..., Tensor] | None = None,
) -> dict[str, Comparison]:
    """The comparisons by name: ``output``, ``gradient of q`` and so on.

    Args:
        op: Called as ``op(q, k, v, lam, backend=..., **options)``.
        lay_out: Gives the gradient of the output another layout in memory.
        oracle: Gives the exact result in float64. Default: ``op`` on the backend ``reference``, or
            its rows block by block if many.
    """
    gradients = gradients and torch.is_grad_enabled()

    def run(call: Callable[..., Tensor], inputs: DiffAttentionInputs) -> dict[str, Tensor]:
        tensors = inputs.tensors()
        out = call(*tensors.values(), **inputs.options)
        weights = lay_out(exact_weights(out)) if gradients else None
        return output_and_gradients(out, tensors, weights)

    actual = run(partial(op, backend=backend), inputs)
    shape = (*inputs.q.shape[:3], inputs.v.shape[-1])
    grad = lay_out(exact_weights(inputs.q.new_empty(shape, dtype=torch.float64)))
    if oracle is None and len(list(row_blocks(inputs))) > 1:
        exact = reference_by_rows(inputs, grad if gradients else None)
    else:
        oracle = oracle or partial(op, backend="reference")
        exact = run(oracle, inputs.map_tensors(Tensor.double))
    rounding = rounding_errors(inputs, grad)
    dtypes = {f"gradient of {name}": x.dtype for name, x in inputs.tensors().items()}
    dtypes["output"] = inputs.q.dtype
    compared = {}
    for name, want in exact.items():
        result = compare(actual[name], want, rounding[name])
        if actual[name].dtype != dtypes[name]:
            problem = f"must be {dtypes[name]}, got {actual[name].dtype}"
            result = Comparison(math.nan, result.budget, problem)
        compared[name] = result
    return compared


def reference_by_rows(
    inputs: DiffAttentionInputs,
    weights: Tensor | None,
    *,
    rows: Tensor | None = None,
    scores: int = BLOCK_SCORES,
) -> dict[str, Tensor]:
    """The float64 reference of :func:`output_and_gradients`, for arguments of ``rounding_errors``.

    Source: arXiv:2410.05258v2, Eq. (1).
    """
    exact = inputs.map_tensors(Tensor.double)
    options = dict(exact.options)
    scale = options.pop("scale", exact.q.shape[-1] ** -0.5)
    mask = AttentionMask(**options)
    leaves = {name: x for name, x in exact.tensors().items() if x.requires_grad}
    with_gradients = weights is not None and bool(leaves)
    gradients = {name: torch.zeros_like(x) for name, x in leaves.items()} if with_gradients else {}
    outputs = []
    for some in row_blocks(exact, rows, scores):
        with torch.set_grad_enabled(with_gradients):
            _, _, signed = reference.maps(
                exact.q, exact.k, exact.lam, scale=scale, mask=mask, rows=some
            )
            values = repeat_heads(exact.v, exact.q.shape[2]).transpose(1, 2)  # [B, H, S, Dv]
            out = torch.matmul(signed, values).transpose(1, 2)  # [B, R, H, Dv]
        outputs.append(out.detach())
        if with_gradients:
            assert weights is not None
            parts = torch.autograd.grad(out, list(leaves.values()), weights[:, some].to(out))
            for total, part in zip(gradients.values(), parts, strict=True):
                total += part
    results = {"output": torch.cat(outputs, dim=1)}
    for name, x in gradients.items():
        results[f"gradient of {name}"] = at_rows(f"gradient of {name}", x, rows)
    return results


def output_and_gradients(
    out: Tensor, leaves: dict[str, Tensor], weights: Tensor | None
) -> dict[str, Tensor]:
    """``output``; with its gradient ``weights`` also ``gradient of`` each leaf that needs one."""
    results = {"output": out.detach()}
    leaves = {name: x for name, x in leaves.items() if x.requires_grad}
    if weights is not None and leaves:
        grads = torch.autograd.grad(out, list(leaves.values()), weights)
        results |= {f"gradient of {n}": g for n, g in zip(leaves, grads, strict=True)}
    return results


def exact_weights(out: Tensor, drawn_on: torch.device | str = "cpu") -> Tensor:
    """The output's gradient in every test: eighths from -1 to 1, exact in each tested dtype."""
    generator = torch.Generator(drawn_on).manual_seed(1)
    drawn = torch.randint(-8, 9, out.shape, generator=generator, device=drawn_on)
    return drawn.to(out) / 8
