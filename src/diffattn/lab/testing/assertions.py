"""Assertions and comparisons whose tolerances follow from rounding."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from diffattn.lab.testing.budget import Comparison, compare, largest
from diffattn.lab.testing.inputs import DiffAttentionInputs
from diffattn.lab.testing.rounding import rounding_errors
from diffattn.lab.testing.row_blocks import reference_by_rows, row_blocks


def assert_close_to_reference(
    op: Callable[..., Tensor],
    inputs: DiffAttentionInputs,
    *,
    backend: str,
    gradients: bool = True,
) -> None:
    r"""Output and gradients of ``backend`` stay within twice what rounding can do to them.

    .. math:: |x - x_{64}| \le 2 E

    It holds value by value, with 4 E for float64. x_64 is the reference in float64 on the same
    numbers, for the output and the gradient of every tensor. E, from
    :func:`diffattn.lab.testing.rounding.rounding_errors`, depends on numbers and dtype alone.

    Args:
        op: Called as ``op(q, k, v, lam, backend=..., **options)``.
        inputs: Arguments in the dtype to test.
        backend: Name of the backend to test.
        gradients: Compare the gradients too, unless called under ``torch.no_grad``.

    Raises:
        AssertionError: A value has another shape or dtype than documented, is not finite, or is
            further off than its budget.
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
    """The comparisons of :func:`assert_close_to_reference`, one per tensor.

    Args:
        op, backend, gradients: As there.
        inputs: Arguments in the dtype to test; gradients of those that require one.
        lay_out: Gives the gradient of the output another layout in memory.
        oracle: Gives the exact result, called as ``oracle(q, k, v, lam, **options)`` in float64.
            Default: ``op`` on the backend ``reference``, or its rows block by block if many.

    Returns:
        By name: ``output``, ``gradient of q`` and so on.
    """
    gradients = gradients and torch.is_grad_enabled()
    actual = _run(partial(op, backend=backend), inputs, gradients, lay_out)
    shape = (*inputs.q.shape[:3], inputs.v.shape[-1])
    grad = lay_out(exact_weights(inputs.q.new_empty(shape, dtype=torch.float64)))
    if oracle is None and len(list(row_blocks(inputs))) > 1:
        exact = reference_by_rows(inputs, grad if gradients else None)
    else:
        oracle = oracle or partial(op, backend="reference")
        exact = _run(oracle, inputs.map_tensors(Tensor.double), gradients, lay_out)
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


def assert_equal_to_rounding(
    actual: Tensor, expected: Tensor, *, steps: float, magnitude: float
) -> None:
    r"""Two evaluations of one formula differ by at most ``steps`` roundings of ``magnitude``.

    .. math:: |x - y| \le n\,\epsilon\,M

    With u = eps / 2 each evaluation is off by at most n u M: n roundings on the way to a value, no
    partial result above M. See :func:`diffattn.lab.testing.rounding.rounding_steps` for attention.

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
    error = largest(actual.double() - expected.double())
    if not error <= tolerance:
        raise AssertionError(f"error {error:.3e}, {steps:g} roundings allow {tolerance:.3e}.")


def _run(
    op: Callable[..., Tensor],
    inputs: DiffAttentionInputs,
    gradients: bool,
    lay_out: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """The output, and the gradients for a fixed gradient of the output."""
    tensors = inputs.tensors()
    out = op(*tensors.values(), **inputs.options)
    return output_and_gradients(out, tensors, lay_out(exact_weights(out)) if gradients else None)


def output_and_gradients(
    out: Tensor, leaves: dict[str, Tensor], weights: Tensor | None
) -> dict[str, Tensor]:
    """``output``; with ``weights``, its gradient, also ``gradient of`` each leaf that needs one."""
    results = {"output": out.detach()}
    leaves = {name: x for name, x in leaves.items() if x.requires_grad}
    if weights is not None and leaves:
        grads = torch.autograd.grad(out, list(leaves.values()), weights)
        results |= {f"gradient of {n}": g for n, g in zip(leaves, grads, strict=True)}
    return results


def exact_weights(out: Tensor, drawn_on: torch.device | str = "cpu") -> Tensor:
    """The output's gradient in every test: eighths from -1 to 1, exact in each tested dtype.

    ``drawn_on`` is the device of the random generator: another one gives other numbers.
    """
    generator = torch.Generator(drawn_on).manual_seed(1)
    drawn = torch.randint(-8, 9, out.shape, generator=generator, device=drawn_on)
    return drawn.to(out) / 8
