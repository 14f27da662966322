"""How each kernel is launched: tile sizes per kernel, width and chip, and the compile cases.

The table is static, so a result never depends on what was timed first. Its rows are seeds: they
come from registers, spills and shared memory as the compiler reports them, not from measurements
on a GPU. ``CANDIDATES`` is what a tuner on a GPU should try.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from torch import Tensor

CAPABILITIES = (80, 86, 90, 100)
"""Ten times the compute capability. 86 stands for all chips with 99 KiB of shared memory."""
_SMALL_SHARED = (86, 89, 120, 121)


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Queries and keys per tile, warps per program, stages of the load pipeline."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int

    @property
    def options(self) -> dict[str, int]:
        """The launch arguments of a kernel with both tile sizes."""
        sizes = {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n}
        return sizes | {"num_warps": self.num_warps, "num_stages": self.num_stages}


@dataclass(frozen=True, kw_only=True, slots=True)
class AotCase:
    """One kernel with its types and tile sizes, to be compiled for a chip that is not here."""

    name: str
    kernel: Any
    """A ``triton.jit`` or ``gluon.jit`` function."""
    signature: dict[str, str]
    """Type per run-time argument: ``"*bf16"``, ``"i32"``; ``":16"`` says divisible by 16."""
    constexprs: dict[str, Any]
    num_warps: int
    num_stages: int
    max_spill_bytes: int = 64
    """Bytes per thread that the assembler may store to local memory for want of registers."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further compiler options, for example ``maxnreg``."""


# Per capability and launch the seeds of V1 (Dv = 2 D) for head_dim up to 64 and up to 128, then of
# V2 (Dv = D) likewise. ``None`` under dkv: dK and dV are two launches, each with its own share of
# the accumulators, because together they do not fit the registers.
_Row = tuple[LaunchConfig | None, LaunchConfig | None, LaunchConfig | None, LaunchConfig | None]
_SEEDS: dict[int, dict[str, _Row]] = {
    80: {
        "fwd": (
            LaunchConfig(128, 32, 8, 2), LaunchConfig(64, 16, 8, 2),
            LaunchConfig(128, 64, 8, 2), LaunchConfig(128, 32, 8, 2),
        ),
        "dkv": (
            LaunchConfig(32, 64, 8, 1), LaunchConfig(32, 64, 8, 1),
            LaunchConfig(32, 128, 8, 1), LaunchConfig(32, 64, 8, 1),
        ),
        "dq": (
            LaunchConfig(128, 32, 8, 2), LaunchConfig(64, 32, 8, 2),
            LaunchConfig(128, 64, 8, 2), LaunchConfig(64, 32, 8, 2),
        ),
        "softmax_fwd": (
            LaunchConfig(128, 64, 8, 2), LaunchConfig(128, 32, 8, 2),
            LaunchConfig(128, 64, 4, 3), LaunchConfig(128, 64, 8, 2),
        ),
        "softmax_dkv": (
            LaunchConfig(32, 64, 8, 2), LaunchConfig(32, 64, 8, 1),
            LaunchConfig(64, 64, 8, 2), LaunchConfig(32, 64, 8, 2),
        ),
        "softmax_dq": (
            LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 32, 8, 2),
            LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 64, 8, 2),
        ),
    },
    86: {
        "fwd": (
            LaunchConfig(128, 32, 8, 2), LaunchConfig(64, 16, 8, 2),
            LaunchConfig(128, 64, 8, 2), LaunchConfig(128, 32, 8, 2),
        ),
        "dkv": (
            LaunchConfig(32, 64, 8, 1), LaunchConfig(16, 64, 8, 1),
            LaunchConfig(32, 128, 8, 1), LaunchConfig(32, 64, 8, 1),
        ),
        "dq": (
            LaunchConfig(128, 32, 8, 2), LaunchConfig(64, 32, 8, 1),
            LaunchConfig(64, 32, 4, 2), LaunchConfig(64, 32, 8, 2),
        ),
        "softmax_fwd": (
            LaunchConfig(128, 64, 8, 2), LaunchConfig(128, 32, 8, 1),
            LaunchConfig(128, 64, 4, 2), LaunchConfig(128, 32, 8, 2),
        ),
        "softmax_dkv": (
            LaunchConfig(32, 64, 8, 1), LaunchConfig(32, 64, 8, 1),
            LaunchConfig(32, 64, 8, 2), LaunchConfig(32, 64, 8, 1),
        ),
        "softmax_dq": (
            LaunchConfig(64, 32, 8, 2), LaunchConfig(64, 32, 8, 1),
            LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 32, 8, 2),
        ),
    },
    90: {
        "fwd": (
            LaunchConfig(128, 64, 8, 2), LaunchConfig(64, 32, 8, 3),
            LaunchConfig(128, 64, 8, 3), LaunchConfig(128, 64, 8, 2),
        ),
        "dkv": (
            LaunchConfig(32, 128, 8, 2), None,
            LaunchConfig(32, 128, 8, 2), LaunchConfig(32, 128, 8, 2),
        ),
        "dk": (None, LaunchConfig(32, 128, 8, 1), None, None),
        "dv": (None, LaunchConfig(32, 128, 8, 2), None, None),
        "dq": (
            LaunchConfig(128, 64, 8, 2), LaunchConfig(128, 32, 8, 2),
            LaunchConfig(128, 64, 8, 2), LaunchConfig(128, 32, 8, 2),
        ),
        "softmax_fwd": (
            LaunchConfig(128, 64, 8, 2), LaunchConfig(128, 64, 8, 2),
            LaunchConfig(128, 64, 4, 3), LaunchConfig(128, 64, 8, 3),
        ),
        "softmax_dkv": (
            LaunchConfig(32, 128, 8, 2), LaunchConfig(32, 128, 8, 1),
            LaunchConfig(64, 128, 8, 2), LaunchConfig(32, 128, 8, 2),
        ),
        "softmax_dq": (
            LaunchConfig(128, 64, 8, 2), LaunchConfig(128, 32, 8, 2),
            LaunchConfig(128, 64, 8, 2), LaunchConfig(128, 64, 8, 2),
        ),
    },
    100: {
        "fwd": (
            LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 64, 8, 2),
            LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 64, 8, 2),
        ),
        "dkv": (
            LaunchConfig(64, 64, 8, 1), LaunchConfig(64, 64, 8, 1),
            LaunchConfig(64, 64, 8, 1), LaunchConfig(64, 64, 8, 1),
        ),
        "dq": (
            LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 64, 8, 1),
            LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 64, 8, 2),
        ),
        "softmax_fwd": (
            LaunchConfig(128, 64, 8, 2), LaunchConfig(64, 64, 8, 2),
            LaunchConfig(128, 64, 8, 2), LaunchConfig(128, 64, 8, 2),
        ),
        "softmax_dkv": (
            LaunchConfig(64, 64, 8, 1), LaunchConfig(64, 64, 8, 1),
            LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 64, 8, 1),
        ),
        "softmax_dq": (
            LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 64, 8, 1),
            LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 64, 8, 2),
        ),
    },
}  # fmt: skip
_PREPROCESS = LaunchConfig(32, 0, 4, 1)
_FLOAT32 = LaunchConfig(16, 16, 8, 1)
"""Small: products in full float32 use no tensor cores and hold both operands in registers."""
_INTERPRETED = LaunchConfig(16, 32, 1, 1)
"""Small and unequal, so that a few tokens already have edges in both directions."""
_PARTS = ("dk", "dv")
_MAX_SPILL_BYTES = 288
"""Of the dkv kernel, which spills between the query heads of a group, not inside its loops."""

CANDIDATES: dict[str, tuple[LaunchConfig, ...]] = {
    "fwd": (
        LaunchConfig(64, 16, 8, 2), LaunchConfig(64, 32, 8, 2), LaunchConfig(64, 32, 8, 3),
        LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 64, 8, 3), LaunchConfig(128, 32, 8, 2),
        LaunchConfig(128, 32, 8, 3), LaunchConfig(128, 64, 8, 2), LaunchConfig(128, 64, 8, 3),
    ),
    "dkv": (
        LaunchConfig(16, 64, 8, 2), LaunchConfig(32, 64, 8, 1), LaunchConfig(32, 64, 8, 2),
        LaunchConfig(32, 128, 8, 1), LaunchConfig(32, 128, 8, 2), LaunchConfig(64, 64, 8, 1),
    ),
    "dk": (
        LaunchConfig(16, 128, 8, 2), LaunchConfig(32, 64, 8, 2), LaunchConfig(32, 128, 8, 1),
        LaunchConfig(32, 128, 8, 2),
    ),
    "dv": (LaunchConfig(32, 64, 8, 2), LaunchConfig(32, 128, 8, 2), LaunchConfig(64, 64, 8, 2)),
    "dq": (
        LaunchConfig(64, 32, 8, 2), LaunchConfig(64, 32, 8, 3), LaunchConfig(64, 64, 8, 2),
        LaunchConfig(128, 32, 8, 2), LaunchConfig(128, 64, 8, 1), LaunchConfig(128, 64, 8, 2),
    ),
}  # fmt: skip
"""What a tuner should time, per kernel; those that do not fit a chip fail to launch there."""


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors."""
    return bool(triton.knobs.runtime.interpret)


def capability_row(major: int, minor: int) -> int:
    """The row of the table for a chip: its own, or the nearest older one that fits."""
    found = 10 * major + minor
    if found in _SMALL_SHARED:
        return 86
    return max((row for row in CAPABILITIES if row <= found and row != 86), default=80)


def launch_configs(kernel: str, q: Tensor, value_dim: int) -> dict[str, LaunchConfig]:
    """The launches of one kernel in one call, by name; ``"dkv"`` may be ``"dk"`` and ``"dv"``.

    Args:
        kernel: ``"fwd"``, ``"preprocess"``, ``"dkv"`` or ``"dq"``.
        q: The queries: their dtype, last axis and device decide.
        value_dim: Dv.

    Returns:
        Tile sizes, warps and stages of each.
    """
    if interpreted():
        return {kernel: _INTERPRETED}
    if q.dtype == torch.float32 and kernel != "preprocess":
        return {kernel: _FLOAT32}
    head_dim, row = q.shape[-1], capability_row(*torch.cuda.get_device_capability(q.device))
    whole = seed(kernel, head_dim, value_dim, row)
    parts = {kernel: whole} if whole else {x: seed(x, head_dim, value_dim, row) for x in _PARTS}
    return {launch: config for launch, config in parts.items() if config}


def seed(launch: str, head_dim: int, value_dim: int, capability: int) -> LaunchConfig | None:
    """The table's entry, ``None`` if there is none for this launch."""
    if launch.endswith("preprocess"):
        return _PREPROCESS
    column = (0 if value_dim > head_dim else 2) + (0 if head_dim <= 64 else 1)
    row = _SEEDS[capability].get(launch)
    return row[column] if row else None


_POINTERS = {
    "*fp32": ("p_lam", "p_lse", "p_delta", "p_dlam"),
    "*i32": ("p_first", "p_last", "p_begin", "p_end"),
    "*u8": ("p_padding",),
}


def aot_signature(kernel: Any, constexprs: dict[str, Any], dtype: str = "bf16") -> dict[str, str]:
    """The types of a kernel's run-time arguments, which its naming rules give away.

    Strides and lengths count as divisible by 16, as they are in usual calls.
    """
    types = {name: f"{kind}:16" for kind, names in _POINTERS.items() for name in names}
    signature = {}
    for name in kernel.arg_names:
        if name in constexprs:
            continue
        if name.startswith("p_"):
            signature[name] = types.get(name, f"*{dtype}:16")
        elif name.startswith("scale"):
            signature[name] = "fp32"
        else:
            signature[name] = "i32:16" if name.startswith(("stride_", "num_q", "num_k")) else "i32"
    return signature


def aot_cases(capability: int) -> list[AotCase]:
    """Every kernel of the package at its seeds, in bfloat16 under a causal mask.

    Both operators at the widths 64 and 128, differential attention as V1 (Dv = 2 D) and as V2
    (shared keys, Dv = D); the masked forms at one width.

    Args:
        capability: 80, 86, 90 or 100.

    Returns:
        Cases for the compile gate.
    """
    cases = [
        aot_case(launch, head_dim, value_dim, capability)
        for head_dim in (64, 128)
        for op in ("diff_attention", "softmax_attention")
        for launch in kernels(op)
        for value_dim in ((2 * head_dim, head_dim) if op == "diff_attention" else (head_dim,))
    ]
    for launch in ("fwd", "dkv", "dq"):
        cases += [
            aot_case(launch, 64, 128, capability, RANGES=True, CAUSAL=False),
            aot_case(launch, 64, 128, capability, PADDING=True),
        ]
    return [case for case in cases if case is not None]


def kernels(op: str) -> dict[str, Any]:
    """The kernels of an operator by the name of the launch; dkv, dk and dv are one kernel."""
    from diffattn.ops.diff_attention.triton import backward, forward, softmax

    if op == "softmax_attention":
        return {
            "softmax_fwd": softmax._softmax_attention_fwd_kernel,
            "softmax_preprocess": softmax._softmax_attention_bwd_preprocess_kernel,
            "softmax_dkv": softmax._softmax_attention_bwd_dkv_kernel,
            "softmax_dq": softmax._softmax_attention_bwd_dq_kernel,
        }
    return {
        "fwd": forward._diff_attention_fwd_kernel,
        "preprocess": backward._diff_attention_bwd_preprocess_kernel,
        "dkv": backward._diff_attention_bwd_dkv_kernel,
        "dk": backward._diff_attention_bwd_dkv_kernel,
        "dv": backward._diff_attention_bwd_dkv_kernel,
        "dq": backward._diff_attention_bwd_dq_kernel,
    }


def aot_case(
    launch: str,
    head_dim: int,
    value_dim: int,
    capability: int,
    config: LaunchConfig | None = None,
    **flags: bool,
) -> AotCase | None:
    """One launch as the compiler sees it; ``None`` if the table has no row for it.

    Args:
        launch: Name of a launch; see :func:`kernels`.
        head_dim: D.
        value_dim: Dv; the maps share their keys if it equals D.
        capability: 80, 86, 90 or 100.
        config: Instead of the table's row.
        flags: Compile-time switches other than those of a plain causal call.
    """
    softmax = launch.startswith("softmax_")
    kernel = kernels("softmax_attention" if softmax else "diff_attention")[launch]
    config = config or seed(launch, head_dim, value_dim, capability)
    if config is None:
        return None
    given = {
        "HEAD_DIM": head_dim, "VALUE_DIM": value_dim, "BLOCK_D": triton.next_power_of_2(head_dim),
        "BLOCK_DV": triton.next_power_of_2(value_dim), "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n, "SHARED_KEYS": value_dim == head_dim, "CAUSAL": True,
        "RANGES": False, "PADDING": False, "WITH_DK": launch != "dv", "WITH_DV": launch != "dk",
    }  # fmt: skip
    given |= flags
    if not given["RANGES"]:
        given |= dict.fromkeys(("p_first", "p_last", "p_begin", "p_end"))
    if not given["PADDING"]:
        given["p_padding"] = None
    constexprs = {name: given[name] for name in kernel.arg_names if name in given}
    form = "softmax" if softmax else "v2" if value_dim == head_dim else "v1"
    options = "".join(f"-{name.lower()}" for name, value in flags.items() if value)
    return AotCase(
        name=f"{form}-d{head_dim}-{launch.removeprefix('softmax_')}{options}", kernel=kernel,
        signature=aot_signature(kernel, constexprs), constexprs=constexprs,
        num_warps=config.num_warps, num_stages=config.num_stages,
        max_spill_bytes=_MAX_SPILL_BYTES if launch in ("dkv", "dk", "dv") else 64,
    )  # fmt: skip
