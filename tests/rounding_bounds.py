"""Bounds on rounding that follow from the number of operations; the tighter ones are estimates."""

import torch
from torch import Tensor

from diffattn.lab.testing.assertions import largest
from diffattn.lab.testing.inputs import DiffAttentionInputs


def rounding_steps(inputs: DiffAttentionInputs) -> tuple[float, float]:
    r"""Bound the error of float arithmetic in ``diff_attention``: n steps of magnitude M.

    .. math:: n = 4 (D + 2) L + 2 S + 8,\quad M = (1 + \max|\lambda|) \max|V|

    Two evaluations in one dtype, in any order of summation, differ by at most n eps M. Here eps is
    twice the unit roundoff and L >= 1 bounds the logits. A logit of D products is off by (D + 1) L
    roundings. A weight subtracts the largest logit of its row: twice as many, and 2 L for the
    difference. Normalising takes all these again, and S + 3 for the sum. The product with V and the
    subtraction of maps add S + 5.
    """
    q, k, v, lam = (x.detach().double().abs() for x in inputs.tensors().values())
    head_dim, num_keys = q.shape[-1], k.shape[1]
    scale = abs(inputs.options.get("scale", head_dim**-0.5))
    largest_logit = max(1.0, float(scale * head_dim * q.max() * k.max()))
    magnitude = float((1 + lam.max()) * v.max())
    return 4 * (head_dim + 2) * largest_logit + 2 * num_keys + 8, magnitude


def assert_equal_to_rounding(
    actual: Tensor, expected: Tensor, *, steps: float, magnitude: float
) -> None:
    r"""Two evaluations of one formula differ by at most ``steps`` roundings of ``magnitude``.

    .. math:: |x - y| \le n\,\epsilon\,M

    With u = eps / 2 each evaluation is off by at most n u M: n roundings on the longest way to a
    value, no partial result above M. ``expected`` may have a wider dtype.
    """
    if actual.shape != expected.shape:
        raise AssertionError(f"must be {list(expected.shape)}, got {list(actual.shape)}.")
    tolerance = steps * torch.finfo(actual.dtype).eps * magnitude
    error = largest(actual.double() - expected.double())
    if not error <= tolerance:
        raise AssertionError(f"error {error:.3e}, {steps:g} roundings allow {tolerance:.3e}.")
