"""What stands in the self-contained file in place of parts that need the whole package.

Never imported: :mod:`diffattn.models.remote_code.single_file` takes definitions from here instead
of those of the same name in the modules that it names.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffattn.errors import BackendError

# In place of diffattn.ops.inputs.backends: the backends that are PyTorch alone.

_HERE = {
    "diff_attention": (
        "reference", "decode", "composed", "flash_diff_attn_1", "flash_diff_attn_2",
    ),
    "softmax_attention": ("reference", "sdpa", "decode"),
    "paged_decode": ("reference", "gathered"),
}  # fmt: skip
_OF_THE_PACKAGE = {
    "diff_attention": ("chunked", "triton", "triton_decode", "hopper", "flex"),
    "softmax_attention": ("chunked", "triton"),
    "paged_decode": ("triton",),
}
_FEW_QUERIES = 8
_FEW_SCORES = 64 * 1024  # of one map, all heads and batch rows counted


class Inputs(NamedTuple):
    """What a choice depends on. Lengths are in tokens, widths in channels."""

    device: str
    num_queries: int
    num_scores: int
    head_dim: int
    value_dim: int
    needs_gradient: bool


def names(op: str) -> tuple[str, ...]:
    """Names that a configuration may hold, those of the package included."""
    return _HERE[op] + _OF_THE_PACKAGE[op]


def describe(q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None = None) -> Inputs:
    """Read the facts a choice depends on off the tensors of one call."""
    tensors = (q, k, v) if lam is None else (q, k, v, lam)
    return Inputs(
        device=q.device.type,
        num_queries=q.shape[1],
        num_scores=q.shape[0] * q.shape[1] * q.shape[2] * k.shape[1],
        head_dim=q.shape[-1],
        value_dim=v.shape[-1],
        needs_gradient=torch.is_grad_enabled() and any(x.requires_grad for x in tensors),
    )


def resolve(op: str, name: str, inputs: Inputs) -> str:
    """The backend that runs ``inputs``: the named one or nothing, or the choice of ``auto``."""
    if name == "auto":
        return _chosen(op, inputs)
    if name not in _HERE[op]:
        raise BackendError(
            f"{op}: backend {name!r} comes with the package diffattn, not with this file. "
            f"Usable here: auto, {', '.join(_HERE[op])}; load with attention_backend='auto'."
        )
    if name == "flash_diff_attn_2" and inputs.value_dim != 2 * inputs.head_dim:
        raise BackendError(f"{op}: backend {name!r} needs Dv = 2 head_dim.")
    return name


def copies_keys(op: str, name: str, inputs: Inputs) -> bool:
    """Whether K and V of this call may be copied at no cost that counts."""
    return inputs.needs_gradient or name != "decode"


def _chosen(op: str, inputs: Inputs) -> str:
    on_cpu = inputs.device == "cpu"
    if op == "paged_decode":
        return "gathered"
    if op == "softmax_attention":
        return "decode" if on_cpu and inputs.num_queries <= _FEW_QUERIES else "sdpa"
    if inputs.num_queries <= _FEW_QUERIES:
        return "decode"
    return "reference" if on_cpu and inputs.num_scores <= _FEW_SCORES else "composed"


# In place of a method of diffattn.models.config.attention_types.


class AttentionType:
    """Its layer is in the same file."""

    layer: tuple[str, str]

    def layer_class(self) -> Any:
        """The layer."""
        return globals()[self.layer[1]]
