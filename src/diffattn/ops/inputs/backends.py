"""Capability table of the operators' backends, and the only place where one is chosen.

Names and capabilities are read without torch, which loads with the first choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

from diffattn.errors import BackendError, did_you_mean, shown
from diffattn.ops.inputs import kernel_support
from diffattn.ops.inputs.kernel_support import dotted

if TYPE_CHECKING:
    import torch
    from torch import Tensor

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
    """Major and minor of a CUDA device; ``None`` on other devices."""
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


@dataclass(frozen=True, slots=True)
class Backend:
    """One implementation of an operator, and what it can run; ``None``: no limit."""

    name: str
    summary: str
    _: KW_ONLY
    devices: tuple[str, ...] | None = None
    least_capability: tuple[int, int] | None = None
    most_capability: tuple[int, int] | None = None
    dtypes: tuple[str, ...] = _ALL_FLOATS
    widths: str = "any"
    """The head and value widths it accepts, in words for a message."""
    accepts_widths: Callable[[int, int], bool] = lambda head_dim, value_dim: True
    gradient: str = "first order"
    """Which derivatives it has: ``"first order"``, ``"any order"`` or ``"none"``."""
    no_gradient_on: tuple[str, ...] = ()
    """Device types on which it runs without a gradient."""
    max_queries: int | None = None
    """Largest T, in tokens."""
    only_causal: bool = False
    """Whether it takes no mask besides ``causal``, and no scale of 0 or below."""
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
        least, most, got = self.least_capability, self.most_capability, inputs.capability
        on_gpu = inputs.device == "cuda" and not inputs.elsewhere
        if least and on_gpu and (got is None or not least <= got <= (most or got)):
            above = "" if most else " or above"
            return f"needs compute capability {dotted(least)}{above}, got {dotted(got)}"
        if not _is_in(inputs.dtype, self.dtypes):
            dtype = str(inputs.dtype).removeprefix("torch.")
            return f"needs dtype in {{{', '.join(self.dtypes)}}}, got {dtype}"
        if not self.accepts_widths(inputs.head_dim, inputs.value_dim):
            return f"needs {self.widths}, got head_dim {inputs.head_dim} and Dv {inputs.value_dim}"
        if self.max_queries is not None and inputs.num_queries > self.max_queries:
            return f"needs at most {self.max_queries} queries, got {inputs.num_queries}"
        if self.only_causal and not inputs.at_most_causal:
            return "needs a scale above 0 and no mask besides causal"
        if inputs.needs_gradient and inputs.device in self.no_gradient_on:
            return f"has no gradient on {inputs.device}: detach q, k and v or use torch.no_grad()"
        if inputs.transformed and self.opaque:
            from diffattn.ops.inputs.operators import TRANSFORMS

            return f"must be called outside {TRANSFORMS}, got a transformed call"
        return None


def _is_in(dtype: torch.dtype, names: tuple[str, ...]) -> bool:
    return str(dtype).removeprefix("torch.") in names


_TABLE: dict[str, tuple[Backend, ...]] = {
    "diff_attention": (
        Backend("reference", "eager definition; holds both maps in memory", gradient="any order"),
        Backend(
            "chunked",
            "exact by chunks of query rows, both maps combined before V; saves its inputs",
            **_CHUNKED,
        ),
        Backend(
            "decode",
            "few queries against a long cache, K1, K2 and V read once and never copied",
            gradient="any order",
            reads_in_place=True,
        ),
        Backend("triton", "one fused pass for both maps; O, O2 and the row sums saved", **_TRITON),
        Backend(
            "triton_decode",
            "split keys, K1, K2 and V read once; at most 16 queries",
            **_TRITON_DECODE,
        ),
        Backend(
            "hopper",
            "Gluon, a warpgroup per map; under auto the backward of 'triton'",
            devices=("cuda", "meta"),
            dtypes=("float16", "bfloat16"),
            widths="head_dim in {64, 128} and Dv = head_dim or 2 head_dim",
            accepts_widths=lambda d, dv: d in (64, 128) and kernel_support.accepts_widths(d, dv),
            least_capability=kernel_support.HOPPER_CAPABILITY,
            most_capability=kernel_support.HOPPER_CAPABILITY,
            available=kernel_support.why_unavailable,
            gradient="any order",
            only_causal=True,
            opaque=True,
        ),
        Backend("composed", "one softmax-attention call for both maps"),
        Backend("flash_diff_attn_1", "the paper's two calls, V undivided"),
        Backend(
            "flash_diff_attn_2",
            "the paper's four calls of equal width",
            widths="Dv = 2 head_dim",
            accepts_widths=lambda head_dim, value_dim: value_dim == 2 * head_dim,
        ),
        Backend(
            "flex",
            "two FlexAttention calls; fused under torch.compile only",
            devices=("cpu", "cuda", "xpu"),
            no_gradient_on=("cpu",),
            opaque=True,
        ),
    ),
    "softmax_attention": (
        Backend("reference", "eager definition; holds the map in memory", gradient="any order"),
        Backend("sdpa", "PyTorch's scaled_dot_product_attention", gradient="any order"),
        Backend(
            "chunked",
            "the technique of differential 'chunked' with one map: its baseline",
            **_CHUNKED,
        ),
        Backend(
            "triton", "the technique of differential 'triton' with one map: its baseline", **_TRITON
        ),
        Backend(
            "decode",
            "the technique of differential 'decode' with one map: its baseline",
            gradient="any order",
            reads_in_place=True,
        ),
    ),
    "paged_decode": (
        Backend(
            "reference",
            "eager definition; gathers the pages and holds both maps in memory",
            gradient="any order",
        ),
        Backend("gathered", "gathers the pages, then what 'auto' of diff_attention chooses"),
        Backend(
            "triton",
            "'triton_decode' of diff_attention through the block table, pages read once",
            **_TRITON_DECODE,
        ),
    ),
}


def names(op: str) -> tuple[str, ...]:
    """Names of the backends of ``op``, for example ``"diff_attention"``; else BackendError."""
    return tuple(backend.name for backend in table(op))


def table(op: str) -> tuple[Backend, ...]:
    """The backends of ``op`` with their capabilities; BackendError if there is no such operator."""
    if not isinstance(op, str) or op not in _TABLE:
        raise BackendError(f"backends: op must be in {{{', '.join(_TABLE)}}}, got {shown(op)}.")
    return _TABLE[op]


def row(op: str, name: str) -> Backend:
    """The backend of ``op`` that is called ``name``, which must be one of its names."""
    return {backend.name: backend for backend in _TABLE[op]}[name]


def resolve(op: str, name: str, inputs: Inputs) -> str:
    """The backend that runs ``inputs``: ``name``, or what ``"auto"`` chooses; else BackendError."""
    if isinstance(name, str) and name == "auto" and op in _AUTO:
        return _AUTO[op](inputs)
    known = names(op)
    if not isinstance(name, str) or name not in known:
        hint = did_you_mean(name, [*known, "auto"]) if isinstance(name, str) else ""
        raise BackendError(
            f"{op}: backend must be in {{auto, {', '.join(known)}}}, got {shown(name)}.{hint}"
        )
    reason = row(op, name).refuses(inputs)
    if reason:
        usable = [other.name for other in table(op) if other.refuses(inputs) is None]
        raise BackendError(f"{op}: backend {name!r} {reason}. Usable here: {', '.join(usable)}.")
    return name


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
    if inputs.device == "cuda" and inputs.dtype != torch.float32:
        # A packed row has as many queries as keys, a cache has more keys.
        few = inputs.num_queries <= min(_FEW_QUERIES, inputs.num_keys - 1)
        hopper = (
            inputs.capability == kernel_support.HOPPER_CAPABILITY
            and not inputs.in_groups  # it would compute the subtracted map R times
            and inputs.num_queries >= _HOPPER_QUERIES
            and kernel_support.takes_hopper(
                kernel_support.HOPPER_TESTED, inputs.head_dim, inputs.value_dim
            )
        )
        names = ("triton_decode",) * few + ("hopper",) * hopper + ("triton",)
        for name in names:
            runs = row("diff_attention", name).refuses(inputs) is None
            if runs and (inputs.elsewhere or kernel_support.takes_kernels(inputs.capability)):
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
    refused = row("paged_decode", "triton").refuses(inputs)
    return "triton" if by_kernel and refused is None else "gathered"


_AUTO = {
    "diff_attention": _auto_diff_attention,
    "softmax_attention": _auto_softmax_attention,
    "paged_decode": _auto_paged_decode,
}
