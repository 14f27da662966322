"""Assertions whose tolerances follow from rounding. Each raises; none returns a verdict."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from diffattn.testing.inputs import DiffAttentionInputs
from diffattn.testing.rounding import term_magnitudes


class Comparison(NamedTuple):
    """How one tensor compares with the float64 reference."""

    error: float
    """Largest absolute difference."""
    budget: float
    """What rounding explains of it; ``nan`` for another shape or dtype."""
    problem: str | None
    """What is wrong, or ``None``."""


def assert_close_to_reference(
    op: Callable[..., Tensor],
    inputs: DiffAttentionInputs,
    *,
    backend: str,
    gradients: bool = True,
) -> None:
    r"""Output and gradients of ``backend`` stay within twice the error that rounding alone causes.

    .. math:: |x - x_{64}| \le 2\,(\max|x_\mathrm{ref} - x_{64}| + \epsilon \max|x|)

    x_ref is the reference in the dtype of ``inputs``, x_64 the reference in float64 on the same
    numbers, for the output and for the gradient of every tensor. max \|x\| is taken over what a
    backend may round on its way to x: O1 and λ O2, however small their difference; see
    :func:`diffattn.testing.rounding.term_magnitudes`.

    Args:
        op: Called as ``op(q, k, v, lam, backend=..., **options)``.
        inputs: Arguments in the dtype to test.
        backend: Name of the backend to test.
        gradients: Compare the gradients too, unless called under ``torch.no_grad``.

    Raises:
        AssertionError: A value has another shape or dtype than the reference gives, is not finite,
            or is further off than its budget.
    """
    compared = compare_to_reference(op, inputs, backend=backend, gradients=gradients)
    failures = [f"{name}: {found.problem}" for name, found in compared.items() if found.problem]
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
    num_nudged: int = 0,
) -> dict[str, Comparison]:
    """What :func:`assert_close_to_reference` asserts, for every tensor it compares.

    Args:
        op: Called as ``op(q, k, v, lam, backend=..., **options)``.
        inputs: Arguments in the dtype to test; gradients of those that require one.
        backend: Name of the backend to test.
        gradients: Compare the gradients too, unless called under ``torch.no_grad``.
        lay_out: How the gradient of the output lies in memory.
        num_nudged: More runs of the reference, whose queries and keys are first moved by up to
            one unit in the last place. Where a rounding of a logit decides which key wins a row,
            one run is accurate or not by luck; the worst of several is what rounding costs.

    Returns:
        By name: ``output``, ``gradient of q`` and so on.
    """
    gradients = gradients and torch.is_grad_enabled()

    def run(inputs: DiffAttentionInputs, backend: str) -> dict[str, Tensor]:
        return _run(op, inputs, backend, gradients, lay_out)

    exact = run(inputs.map_tensors(Tensor.double), "reference")
    rounded, actual = run(inputs, "reference"), run(inputs, backend)
    off = {name: _largest(rounded[name].double() - want) for name, want in exact.items()}
    if inputs.q.dtype == torch.float64:
        off = _scaled_float32_error(run, inputs)
    for seed in range(num_nudged):
        again = run(_nudged(inputs, seed), "reference")
        for name, want in exact.items():
            off[name] = max(off[name], _largest(again[name].double() - want))
    magnitudes = term_magnitudes(inputs, lay_out(_weights(exact["output"])))
    eps = torch.finfo(inputs.q.dtype).eps
    compared = {}
    for name, want in exact.items():
        got, reference = actual[name], rounded[name]
        problem = None
        error = budget = math.nan
        if (got.shape, got.dtype) != (reference.shape, reference.dtype):
            problem = (
                f"must be {reference.dtype} {list(reference.shape)}, "
                f"got {got.dtype} {list(got.shape)}"
            )
        else:
            # In float64 the other side of the comparison is rounded too.
            sides = 3 if inputs.q.dtype == torch.float64 else 2
            budget = sides * (off[name] + eps * _largest(magnitudes[name]))
            error = _largest(got.double() - want)
            # Written so that NaN fails, whether it is in the result or in the budget.
            if not (math.isfinite(budget) and error <= budget):
                problem = f"error {error:.3e}, budget {budget:.3e}"
        compared[name] = Comparison(error, budget, problem)
    return compared


def _nudged(inputs: DiffAttentionInputs, seed: int) -> DiffAttentionInputs:
    """The same call, as if queries and keys had been rounded once more."""
    generator = torch.Generator().manual_seed(seed)
    eps = torch.finfo(inputs.q.dtype).eps

    def nudge(x: Tensor) -> Tensor:
        steps = 2 * torch.rand(x.shape, generator=generator, dtype=torch.float64) - 1
        moved = (x.detach().double() * (1 + eps * steps.to(x.device))).to(x.dtype)
        return moved.requires_grad_(x.requires_grad)

    return replace(inputs, q=nudge(inputs.q), k=nudge(inputs.k))


def _scaled_float32_error(
    run: Callable[[DiffAttentionInputs, str], dict[str, Tensor]], inputs: DiffAttentionInputs
) -> dict[str, float]:
    """What rounding costs the reference in float64, where it has no more exact self to compare to.

    An error that comes of rounding grows with eps: it is that of float32 on nearly these numbers,
    times the ratio of the two eps.
    """
    ratio = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    narrow = inputs.map_tensors(Tensor.float)
    rounded = run(narrow, "reference")
    exact = run(narrow.map_tensors(Tensor.double), "reference")
    return {name: ratio * _largest(rounded[name].double() - want) for name, want in exact.items()}


def assert_equal_to_rounding(
    actual: Tensor, expected: Tensor, *, steps: float, magnitude: float
) -> None:
    r"""Two evaluations of one formula differ by at most ``steps`` roundings of ``magnitude``.

    .. math:: |x - y| \\le n\\,\\epsilon\\,M

    With u = eps / 2 each evaluation is off by at most n u M: n roundings on the way to a value, no
    partial result above M. See :func:`diffattn.testing.rounding.rounding_steps` for attention.

    Args:
        actual: Any shape.
        expected: Shape of ``actual``; may have a wider dtype.
        steps: n, roundings on the longest way to one value.
        magnitude: M, bound of the absolute values on that way.

    Raises:
        AssertionError: The shapes differ or a value is further off.
    """
    if actual.shape != expected.shape:
        raise AssertionError(f"must be {list(expected.shape)}, got {list(actual.shape)}.")
    tolerance = steps * torch.finfo(actual.dtype).eps * magnitude
    error = _largest(actual.double() - expected.double())
    if not error <= tolerance:
        raise AssertionError(f"error {error:.3e}, {steps:g} roundings allow {tolerance:.3e}.")


def _run(
    op: Callable[..., Tensor],
    inputs: DiffAttentionInputs,
    backend: str,
    gradients: bool,
    lay_out: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """The output, and the gradients of a fixed weighted sum of it."""
    tensors = inputs.tensors()
    out = op(*tensors.values(), backend=backend, **inputs.options)
    results = {"output": out.detach()}
    leaves = {name: x for name, x in tensors.items() if x.requires_grad}
    if gradients and leaves:
        found = torch.autograd.grad(out, list(leaves.values()), lay_out(_weights(out)))
        results |= {f"gradient of {n}": g for n, g in zip(leaves, found, strict=True)}
    return results


def _weights(out: Tensor) -> Tensor:
    """The gradient given to every run: numbers that each tested dtype holds exactly."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(-8, 9, out.shape, generator=generator).to(out) / 8


def _largest(x: Tensor) -> float:
    return float(x.detach().abs().max()) if x.numel() else 0.0
