"""Capability table of the operators' backends, and the only place where one is chosen."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor

from diffattn.errors import BackendError

_ALL_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """What a choice depends on. Lengths are in tokens, widths in channels."""

    device: str
    dtype: torch.dtype
    num_queries: int
    num_keys: int
    head_dim: int
    value_dim: int
    needs_gradient: bool = False
    """Whether q, k or v is part of a graph that will be differentiated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """One implementation of an operator, and what it can run."""

    name: str
    summary: str
    devices: tuple[str, ...] | None = None
    """Device types; ``None``: every device of PyTorch."""
    dtypes: tuple[torch.dtype, ...] = _ALL_FLOATS
    widths: str = "any"
    """The head and value widths it accepts, in words."""
    accepts_widths: Callable[[int, int], bool] = lambda head_dim, value_dim: True
    gradient: str = "first order"
    no_gradient_on: tuple[str, ...] = ()
    """Device types where it runs, but gives no gradient of q, k and v."""
    functional: bool = True
    """Whether it runs under the transforms of ``torch.func``, ``torch.vmap`` among them."""
    available: Callable[[], str | None] = lambda: None
    """Why it cannot run on this machine at all, or ``None``."""

    def refuses(self, inputs: Inputs) -> str | None:
        """What the backend needs and these inputs lack, or ``None`` if it can run them."""
        missing = self.available()
        if missing:
            return missing
        if self.devices is not None and inputs.device not in self.devices:
            return f"needs device in {{{', '.join(self.devices)}}}, got {inputs.device}"
        if inputs.dtype not in self.dtypes:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
            return f"needs dtype in {{{names}}}, got {str(inputs.dtype).removeprefix('torch.')}"
        if not self.accepts_widths(inputs.head_dim, inputs.value_dim):
            return f"needs {self.widths}, got head_dim {inputs.head_dim} and Dv {inputs.value_dim}"
        if inputs.needs_gradient and inputs.device in self.no_gradient_on:
            return f"has no gradient on {inputs.device}: detach q, k and v or use torch.no_grad()"
        return None


_TABLE: dict[str, tuple[Backend, ...]] = {
    "diff_attention": (
        Backend(
            name="reference",
            summary="eager definition; holds both maps in memory",
            gradient="any order",
        ),
        Backend(
            name="composed",
            summary="one softmax-attention call for both maps",
        ),
        Backend(name="flash_diff_attn_1", summary="the paper's two calls, V undivided"),
        Backend(
            name="flash_diff_attn_2",
            summary="the paper's four calls of equal width",
            widths="Dv = 2 head_dim",
            accepts_widths=lambda head_dim, value_dim: value_dim == 2 * head_dim,
        ),
        Backend(
            name="flex",
            summary="two FlexAttention calls; fused under torch.compile only",
            devices=("cpu", "cuda", "xpu"),
            no_gradient_on=("cpu",),
            functional=False,
        ),
    )
}


def names(op: str) -> tuple[str, ...]:
    """Names of the backends of ``op``, for example ``"diff_attention"``.

    Raises:
        BackendError: No such operator.
    """
    return tuple(backend.name for backend in table(op))


def table(op: str) -> tuple[Backend, ...]:
    """The backends of ``op`` with their capabilities.

    Raises:
        BackendError: No such operator.
    """
    if op not in _TABLE:
        raise BackendError(f"backends: op must be in {{{', '.join(_TABLE)}}}, got {op!r}.")
    return _TABLE[op]


def describe(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """Read the facts a choice depends on off the tensors of one call."""
    return Inputs(
        device=q.device.type,
        dtype=q.dtype,
        num_queries=q.shape[1],
        num_keys=k.shape[1],
        head_dim=q.shape[-1],
        value_dim=v.shape[-1],
        needs_gradient=torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)),
    )


def resolve(op: str, name: str, inputs: Inputs) -> str:
    """The backend that runs ``inputs``: the named one or nothing, or the choice of ``auto``.

    Args:
        op: For example ``"diff_attention"``.
        name: A name from :func:`names`, or ``"auto"``.
        inputs: The facts of the call; see :func:`describe`.

    Returns:
        A name from :func:`names`.

    Raises:
        BackendError: Unknown name, or the named backend cannot run these inputs.
    """
    known = {backend.name: backend for backend in table(op)}
    if name == "auto":
        return _auto(inputs)
    if name not in known:
        near = get_close_matches(name, [*known, "auto"], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise BackendError(
            f"{op}: backend must be in {{auto, {', '.join(known)}}}, got {name!r}.{hint}"
        )
    reason = known[name].refuses(inputs)
    if reason:
        usable = [other.name for other in known.values() if other.refuses(inputs) is None]
        raise BackendError(f"{op}: backend {name!r} {reason}. Usable here: {', '.join(usable)}.")
    return name


def _auto(inputs: Inputs) -> str:
    """The ``auto`` rule of ``diff_attention``, measured in docs/log.md.

    One query holds no map worth saving and the eager form reads K and V once; else the composed
    form keeps memory flat and stays near twice softmax attention at every length.
    """
    return "composed" if inputs.num_queries > 1 else "reference"
