"""The facts of one call that the choice of its backend depends on. Loads torch with the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diffattn.ops.inputs import kernel_support

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(kw_only=True, slots=True)  # frozen, it would take every call twice as long to make
class Inputs:
    """The facts that a choice depends on. Lengths are in tokens, widths in channels."""

    device: str
    dtype: torch.dtype
    batch: int
    num_heads: int
    num_queries: int
    num_keys: int
    head_dim: int
    value_dim: int
    capability: tuple[int, int] | None = None
    """Compute capability of a CUDA device, major and minor; ``None``: of another device."""
    needs_gradient: bool = False
    """Whether an input is part of a graph that will be differentiated."""
    transformed: bool = False
    """Whether ``torch.func`` transforms the call, or an input carries a forward-mode derivative."""
    at_most_causal: bool = True
    """Whether no key is hidden but by ``causal``, and the scale is above 0."""
    in_groups: bool = False
    """Whether added maps share a subtracted one."""
    any_length: bool = False
    """Whether sizes are those of an example: the call is exported for others, too."""
    elsewhere: bool = False
    """Whether another machine is meant, on which every backend of its device is available and
    has passed its tests."""


def describe(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None = None, *, at_most_causal: bool = True
) -> Inputs:
    """Read the facts a choice depends on off the tensors of one call."""
    import torch

    from diffattn.ops.inputs.masking import num_heads_of
    from diffattn.ops.inputs.operators import transformed

    compiler, shape, num_keys = torch.compiler, q.shape, k.shape[1]
    differentiated = q.requires_grad or k.requires_grad or v.requires_grad
    if lam is not None:
        differentiated = differentiated or lam.requires_grad
    return Inputs(
        device=q.device.type,
        dtype=q.dtype,
        batch=shape[0],
        num_heads=shape[2] if len(shape) == 4 else num_heads_of(q),
        num_queries=shape[1],
        num_keys=num_keys,
        head_dim=shape[-1],
        value_dim=v.shape[-1],
        capability=kernel_support.compute_capability(q.device),
        needs_gradient=differentiated and torch.is_grad_enabled(),
        at_most_causal=at_most_causal,
        in_groups=len(shape) == 5 and shape[3] > 2,
        transformed=transformed(q, k, v, lam),
        # Dynamo, which strict export uses, shows a dynamic size as an integer like any other.
        any_length=torch.SymInt in map(type, (*shape[:3], num_keys))
        or (compiler.is_exporting() and compiler.is_dynamo_compiling()),
    )
