"""The compile cases of the kernels around the operator: rotation, norm of the heads, λ."""

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from diffattn.ops.triton import launch, layer_parts
from tools.aot_cases import AotCase

_TYPES = {torch.bfloat16: "*bf16:16", torch.float32: "*fp32:16"}


def layer_cases() -> list[AotCase]:
    """Every kernel of a layer in both directions, as it is launched at d 128 in bfloat16."""
    cases: list[AotCase] = []

    def record(
        kernel: Any, grid: Any, tensors: Any, numbers: Any, *, num_warps: int, **constants: Any
    ) -> None:
        names = kernel.arg_names
        kinds = dict(zip(names, map(_kind, (*tensors, *numbers)), strict=False))
        missing = {name: None for name, kind in kinds.items() if kind is None}
        cases.append(
            AotCase(
                name=f"layer-{len(cases)}-{kernel.__name__.strip('_')}", kernel=kernel,
                signature={name: kind for name, kind in kinds.items() if kind is not None},
                constexprs=missing | constants, num_warps=num_warps, num_stages=3,
            )
        )  # fmt: skip

    x, tables = torch.zeros(1, 256, 12, 2, 128, dtype=torch.bfloat16), torch.zeros(256, 128)
    heads, vectors = x.flatten(-2), (tables[0],) * 4
    with (
        patch.object(layer_parts, "run_kernel", record),
        patch.object(launch, "num_multiprocessors", lambda device: 132),
    ):
        for transposed in (False, True):
            layer_parts.rotate(x, x, tables, tables, transposed=transposed)
        layer_parts.head_norm(heads, heads[0, 0, 0], eps=1e-5, factor=0.5)
        layer_parts.head_norm_backward(heads, heads, heads[0, 0, 0], eps=1e-5, factor=0.5)
        layer_parts.diff_lambda(*vectors, lambda_init=0.5)
        layer_parts.diff_lambda_backward(tables[0, 0], *vectors)
        for grad in (None, tables):
            layer_parts.sigmoid(tables.bfloat16(), grad)
    return cases


def _kind(x: Tensor | float | None) -> str | None:
    if x is None:
        return None
    if isinstance(x, Tensor):
        return _TYPES[x.dtype]
    return "fp32" if isinstance(x, float) else "i32" if x % 16 else "i32:16"
