"""Assertions and comparisons whose tolerances follow from rounding."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from diffattn.lab.testing.budget import Comparison, compare, largest
from diffattn.lab.testing.inputs import DiffAttentionInputs
from diffattn.lab.testing.rounding import BLOCK_SCORES, at_rows, rounding_errors, row_blocks
from diffattn.ops.backends import reference
from diffattn.ops.inputs.masking import AttentionMask, repeat_heads


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
    For the arguments see :func:`compare_to_reference`.
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
        gradients: Compare the gradients too, unless called under ``torch.no_grad``.
        lay_out: Gives the gradient of the output another layout in memory.
        oracle: Gives the exact result, called as ``oracle(q, k, v, lam, **options)`` in float64.
            Default: ``op`` on the backend ``reference``, or its rows block by block if many.
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


def assert_equal_to_rounding(
    actual: Tensor, expected: Tensor, *, steps: float, magnitude: float
) -> None:
    r"""Two evaluations of one formula differ by at most ``steps`` roundings of ``magnitude``.

    .. math:: |x - y| \le n\,\epsilon\,M

    With u = eps / 2 each evaluation is off by at most n u M: ``steps`` n roundings on the longest
    way to a value, no partial result above the ``magnitude`` M. ``expected`` may have a wider
    dtype. See :func:`diffattn.lab.testing.rounding.rounding_steps` for attention.
    """
    if actual.shape != expected.shape:
        raise AssertionError(f"must be {list(expected.shape)}, got {list(actual.shape)}.")
    tolerance = steps * torch.finfo(actual.dtype).eps * magnitude
    error = largest(actual.double() - expected.double())
    if not error <= tolerance:
        raise AssertionError(f"error {error:.3e}, {steps:g} roundings allow {tolerance:.3e}.")


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
