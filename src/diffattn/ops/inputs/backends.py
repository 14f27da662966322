"""Capability table of the operators' backends, and the only place where one is chosen.

Names and capabilities are read without torch, which loads with the first choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from diffattn.errors import BackendError, did_you_mean, shown
from diffattn.ops.inputs import kernel_support
from diffattn.ops.inputs.call_facts import Inputs as Inputs
from diffattn.ops.inputs.call_facts import describe as describe
from diffattn.ops.inputs.kernel_support import dotted

if TYPE_CHECKING:
    import torch

_WIDE_FLOATS = ("bfloat16", "float32", "float64")
_GPU_WIDTHS = "head_dim in {32, 64, 96, 128} and Dv = head_dim or 2 head_dim"
_ALL_FLOATS = ("float16", *_WIDE_FLOATS)
_TRITON: dict[str, Any] = {
    "devices": kernel_support.devices(),
    "dtypes": kernel_support.DTYPES,
    "widths": _GPU_WIDTHS,
    "accepts_widths": kernel_support.accepts_widths,
    "least_capability": kernel_support.LEAST_CAPABILITY,
    "available": kernel_support.why_unavailable,
    "gradient": "any order",
    "opaque": True,
}
_TRITON_DECODE = _TRITON | {
    "gradient": "none",
    "no_gradient_on": kernel_support.devices(),
    "max_queries": kernel_support.MAX_DECODE_QUERIES,
    "reads_in_place": True,
}
_CHUNKED: dict[str, Any] = {
    "devices": ("cpu", "meta"),
    "dtypes": _WIDE_FLOATS,
    "gradient": "any order",
    "opaque": True,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """One implementation of an operator, and what it can run."""

    name: str
    summary: str
    devices: tuple[str, ...] | None = None
    """Device types; ``None``: every device of PyTorch."""
    least_capability: tuple[int, int] | None = None
    """Lowest compute capability of CUDA devices on which it runs; ``None``: any."""
    most_capability: tuple[int, int] | None = None
    """Highest compute capability on which it runs; ``None``: no limit."""
    dtypes: tuple[str, ...] = _ALL_FLOATS
    """Names of the dtypes that it accepts, without ``torch.``."""
    widths: str = "any"
    """The head and value widths it accepts, in words for a message."""
    accepts_widths: Callable[[int, int], bool] = lambda head_dim, value_dim: True
    gradient: str = "first order"
    """Which derivatives it has: ``"first order"``, ``"any order"`` or ``"none"``."""
    no_gradient_on: tuple[str, ...] = ()
    """Device types on which it runs without a gradient."""
    max_queries: int | None = None
    """Largest T, in tokens; ``None``: no limit."""
    opaque: bool = False
    """Whether ``torch.func`` transforms cannot trace it: a registered operator or FlexAttention."""
    reads_in_place: bool = False
    """Whether K and V are not copied for calls without a gradient: unseen keys stay as they are."""
    available: Callable[[], str | None] = lambda: None
    """Function that returns why it cannot run on this machine, or ``None`` if it can."""

    def refuses(self, inputs: Inputs) -> str | None:
        """The reason why the backend cannot run these inputs, or ``None``."""
        missing = self.available()
        if missing and not inputs.elsewhere:
            return missing
        if self.devices is not None and inputs.device not in self.devices:
            return f"needs device in {{{', '.join(self.devices)}}}, got {inputs.device}"
        if inputs.device == "cuda" and not (inputs.elsewhere or self._runs_on(inputs.capability)):
            above = " or above" if self.most_capability is None else ""
            return (
                f"needs compute capability {dotted(self.least_capability)}{above}, "
                f"got {dotted(inputs.capability)}"
            )
        if not _is_in(inputs.dtype, self.dtypes):
            got = str(inputs.dtype).removeprefix("torch.")
            return f"needs dtype in {{{', '.join(self.dtypes)}}}, got {got}"
        if not self.accepts_widths(inputs.head_dim, inputs.value_dim):
            return f"needs {self.widths}, got head_dim {inputs.head_dim} and Dv {inputs.value_dim}"
        if self.max_queries is not None and inputs.num_queries > self.max_queries:
            return f"needs at most {self.max_queries} queries, got {inputs.num_queries}"
        if inputs.needs_gradient and inputs.device in self.no_gradient_on:
            return f"has no gradient on {inputs.device}: detach q, k and v or use torch.no_grad()"
        if inputs.transformed and self.opaque:
            from diffattn.ops.inputs.operators import TRANSFORMS

            return f"must be called outside {TRANSFORMS}, got a transformed call"
        return None

    def _runs_on(self, capability: tuple[int, int] | None) -> bool:
        if self.least_capability is None:
            return True
        if capability is None or capability < self.least_capability:
            return False
        return self.most_capability is None or capability <= self.most_capability


def _is_in(dtype: torch.dtype, names: tuple[str, ...]) -> bool:
    return str(dtype).removeprefix("torch.") in names


_TABLE: dict[str, tuple[Backend, ...]] = {
    "diff_attention": (
        Backend(
            name="reference",
            summary="eager definition; holds both maps in memory",
            gradient="any order",
        ),
        Backend(
            name="chunked",
            summary="exact by chunks of query rows, both maps combined before V; saves its inputs",
            **_CHUNKED,
        ),
        Backend(
            name="decode",
            summary="few queries against a long cache, K1, K2 and V read once and never copied",
            gradient="any order",
            reads_in_place=True,
        ),
        Backend(
            name="triton",
            summary="one fused pass for both maps; O, O2 and the row sums saved",
            **_TRITON,
        ),
        Backend(
            name="triton_decode",
            summary="split keys, K1, K2 and V read once; at most 16 queries",
            **_TRITON_DECODE,
        ),
        Backend(
            name="hopper",
            summary="Gluon, a warpgroup per map; under auto the backward of 'triton'",
            devices=("cuda", "meta"),
            dtypes=("float16", "bfloat16"),
            widths="head_dim in {64, 128} and Dv = head_dim or 2 head_dim",
            accepts_widths=kernel_support.hopper_accepts_widths,
            least_capability=kernel_support.HOPPER_CAPABILITY,
            most_capability=kernel_support.HOPPER_CAPABILITY,
            available=kernel_support.why_unavailable,
            gradient="any order",
            opaque=True,
        ),
        Backend(name="composed", summary="one softmax-attention call for both maps"),
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
            opaque=True,
        ),
    ),
    "softmax_attention": (
        Backend(
            name="reference",
            summary="eager definition; holds the map in memory",
            gradient="any order",
        ),
        Backend(name="sdpa", summary="PyTorch's scaled_dot_product_attention"),
        Backend(
            name="chunked",
            summary="the technique of differential 'chunked' with one map: its baseline",
            **_CHUNKED,
        ),
        Backend(
            name="triton",
            summary="the technique of differential 'triton' with one map: its baseline",
            **_TRITON,
        ),
        Backend(
            name="decode",
            summary="the technique of differential 'decode' with one map: its baseline",
            gradient="any order",
            reads_in_place=True,
        ),
    ),
    "paged_decode": (
        Backend(
            name="reference",
            summary="eager definition; gathers the pages and holds both maps in memory",
            gradient="any order",
        ),
        Backend(
            name="gathered", summary="gathers the pages, then what 'auto' of diff_attention chooses"
        ),
        Backend(
            name="triton",
            summary="'triton_decode' of diff_attention through the block table, pages read once",
            **_TRITON_DECODE,
        ),
    ),
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
    if not isinstance(op, str) or op not in _TABLE:
        raise BackendError(f"backends: op must be in {{{', '.join(_TABLE)}}}, got {shown(op)}.")
    return _TABLE[op]


def resolve(op: str, name: str, inputs: Inputs) -> str:
    """The name of the backend that runs ``inputs``: ``name`` itself, or the choice of ``auto``.

    Args:
        op: For example ``"diff_attention"``.
        name: A name from :func:`names`, or ``"auto"``.
        inputs: The facts of the call; see :func:`describe`.

    Returns:
        A name from :func:`names`.

    Raises:
        BackendError: Unknown name, or the named backend cannot run these inputs.
    """
    if isinstance(name, str) and name == "auto" and op in _AUTO:
        return _AUTO[op](inputs)
    chosen = _row(op, name) if isinstance(name, str) else None
    if chosen is None:
        known = names(op)
        hint = did_you_mean(name, [*known, "auto"]) if isinstance(name, str) else ""
        raise BackendError(
            f"{op}: backend must be in {{auto, {', '.join(known)}}}, got {shown(name)}.{hint}"
        )
    reason = chosen.refuses(inputs)
    if reason:
        usable = [other.name for other in table(op) if other.refuses(inputs) is None]
        raise BackendError(f"{op}: backend {name!r} {reason}. Usable here: {', '.join(usable)}.")
    return name


def copies_keys(op: str, name: str, inputs: Inputs) -> bool:
    """Whether K and V may be copied for this call: always, unless the backend reads them in place
    and no gradient is needed."""
    return inputs.needs_gradient or not _known_row(op, name).reads_in_place


def is_opaque(op: str, name: str) -> bool:
    """Whether a backend is a registered operator or FlexAttention; see :class:`Backend`."""
    return _known_row(op, name).opaque


def _row(op: str, name: str) -> Backend | None:
    """The backend called ``name``, or ``None``."""
    for backend in _TABLE.get(op, ()):
        if backend.name == name:
            return backend
    return None


def _known_row(op: str, name: str) -> Backend:
    backend = _row(op, name)
    assert backend is not None
    return backend


_FEW_QUERIES = 8
_HOPPER_QUERIES = 512  # with fewer queries its longer launch on the host outweighs its speed
_FEW_SCORES = 64 * 1024  # scores of one map, over all heads and batch rows


def _auto_diff_attention(inputs: Inputs) -> str:
    """The ``auto`` rule of ``diff_attention``, measured in docs/log.md.

    With few queries maps are small, and the time is that of reading K and V once: ``decode``. On a
    CPU small maps are held (``reference``), larger ones computed in chunks. Other devices without
    kernels use ``composed``, whose memory is flat at every length. So do exports: a choice by
    length would restrict the lengths. Transforms need ``reference``, but not with few queries.
    """
    import torch

    if inputs.any_length:
        return "reference" if inputs.transformed else "composed"
    kernels = inputs.device == "cuda" and inputs.dtype != torch.float32
    if kernels and (inputs.elsewhere or kernel_support.takes_kernels(inputs.capability)):
        # A packed row has as many queries as keys, a cache has more keys.
        few = inputs.num_queries <= min(_FEW_QUERIES, inputs.num_keys - 1)
        hopper = (
            inputs.capability == kernel_support.HOPPER_CAPABILITY
            and inputs.at_most_causal
            and not inputs.in_groups  # it would compute the subtracted map R times
            and inputs.num_queries >= _HOPPER_QUERIES
            and kernel_support.takes_hopper(inputs.head_dim, inputs.value_dim)
        )
        names = ("triton_decode",) * few + ("hopper",) * hopper + ("triton",)
        for name in names:
            if _known_row("diff_attention", name).refuses(inputs) is None:
                return name
    if inputs.num_queries <= _FEW_QUERIES:
        return "decode"
    if inputs.transformed:
        return "reference"
    if inputs.device != "cpu" or not _is_in(inputs.dtype, _WIDE_FLOATS):
        return "composed"
    scores = inputs.batch * inputs.num_heads * inputs.num_queries * inputs.num_keys
    return "reference" if scores <= _FEW_SCORES else "chunked"


def _auto_softmax_attention(inputs: Inputs) -> str:
    """The ``auto`` rule of ``softmax_attention``: the fastest in the timings of docs/log.md."""
    import torch

    if inputs.transformed:
        return "reference"
    if inputs.device != "cpu" or inputs.any_length:
        return "sdpa"
    if inputs.num_queries <= _FEW_QUERIES:
        return "decode"
    long = inputs.num_keys >= 512
    chunked = inputs.dtype == torch.bfloat16 or (long and _is_in(inputs.dtype, _WIDE_FLOATS))
    return "chunked" if chunked else "sdpa"


def _auto_paged_decode(inputs: Inputs) -> str:
    """The ``auto`` rule of ``paged_decode``: the kernel, wherever ``triton_decode`` would be chosen
    for one query. It is worth it for more queries too, as it saves a copy of the pages.
    """
    dense = replace(inputs, num_queries=1, num_keys=2)
    by_kernel = _AUTO["diff_attention"](dense) == "triton_decode"
    refused = _known_row("paged_decode", "triton").refuses(inputs)
    return "triton" if by_kernel and refused is None else "gathered"


_AUTO = {
    "diff_attention": _auto_diff_attention,
    "softmax_attention": _auto_softmax_attention,
    "paged_decode": _auto_paged_decode,
}
