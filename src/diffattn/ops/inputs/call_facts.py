"""The facts of one call that decide its backend. Torch is imported at the first call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diffattn.ops.inputs import kernel_support

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(kw_only=True, slots=True)  # frozen, it would take every call twice as long to make
class Inputs:
    """The facts of a call that decide its backend. Lengths are in tokens, widths in channels."""

    device: str
    dtype: torch.dtype
    batch: int
    num_heads: int
    num_queries: int
    num_keys: int
    head_dim: int
    value_dim: int
    capability: tuple[int, int] | None = None
    """Compute capability of a CUDA device, major and minor; ``None`` on other devices."""
    needs_gradient: bool = False
    """Whether gradients are enabled and an input requires one."""
    transformed: bool = False
    """Whether ``torch.func`` transforms the call, or an input carries a forward-mode derivative."""
    at_most_causal: bool = True
    """Whether ``causal`` is the only masking option and the scale is above 0."""
    in_groups: bool = False
    """Whether a group of two or more added maps shares a subtracted map."""
    any_length: bool = False
    """Whether the call is traced with dynamic sizes, to work for other sizes of a batch or text."""
    elsewhere: bool = False
    """Whether to choose for another machine, on which every backend of that device can be
    imported and has passed its tests."""


def describe(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None = None, *, at_most_causal: bool = True
) -> Inputs:
    """:class:`Inputs` of a call, read off its tensors."""
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
        # Strict export uses Dynamo, in which a dynamic size looks like an ordinary integer.
        any_length=torch.SymInt in map(type, (*shape[:3], num_keys))
        or (compiler.is_exporting() and compiler.is_dynamo_compiling()),
    )
