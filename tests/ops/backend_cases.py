"""Which cases a backend takes on any machine, in widths that it takes; how far rounding goes."""

from dataclasses import replace

import pytest
import torch

from diffattn.lab.testing.inputs import OpCase
from diffattn.ops.inputs import backends
from rounding_bounds import assert_equal_to_rounding, rounding_steps

_SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
          torch.float64: "fp64"}  # fmt: skip


def fitted(case: OpCase, backend: backends.Backend) -> OpCase:
    """The case itself, or in the least widths that the backend takes; Dv / D stays if it can."""
    ratio = case.value_dim // case.head_dim
    widths = [(case.head_dim, case.value_dim), (case.head_dim, 2 * case.head_dim)]
    widths += [(dim, times * dim) for dim in (32, 64) for times in (ratio, 2)]
    head_dim, value_dim = next(pair for pair in widths if backend.accepts_widths(*pair))
    return replace(case, head_dim=head_dim, value_dim=value_dim)


def takes(backend: backends.Backend, case: OpCase, dtype: torch.dtype) -> bool:
    """Whether there is a machine on which the backend runs such a case."""
    masks = (case.window, case.padding, case.kv_lengths, case.documents)
    if backend.name == "hopper" and any(mask is not None for mask in masks):
        return False
    if backend.name == "triton_decode" and case.documents is not None:
        return False
    enough = backend.max_queries is None or case.num_queries <= backend.max_queries
    return enough and str(dtype).removeprefix("torch.") in backend.dtypes


def every_backend(*cases: OpCase, dtypes=(torch.float32,), op="diff_attention", without=()):
    """Parametrise ``backend``, ``dtype`` and ``case`` with all that can run somewhere.

    Args:
        cases: Each reaches a test in widths that its backend takes.
        dtypes: Of the inputs.
        op: For example ``"softmax_attention"``.
        without: Names of backends to leave out.
    """
    params = [
        pytest.param(row.name, dtype, fitted(case, row), id=f"{case}-{_SHORT[dtype]}-{row.name}")
        for case in cases
        for dtype in dtypes
        for row in backends.table(op)
        if row.name not in without and takes(row, case, dtype)
    ]
    return pytest.mark.parametrize(("backend", "dtype", "case"), params)


def assert_same(actual, expected, inputs):
    """Two evaluations of the operator on these inputs differ by rounding alone."""
    steps, magnitude = rounding_steps(inputs)
    assert_equal_to_rounding(actual, expected, steps=steps, magnitude=magnitude)
