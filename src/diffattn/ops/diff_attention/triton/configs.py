"""How each kernel is launched: tile sizes per kernel, width and chip, and the compile cases.

The table is static, so a result never depends on what was timed first. Its rows are seeds: they
come from registers, spills and shared memory as the compiler reports them (docs/numerics.md), not
from measurements on a GPU. ``CANDIDATES`` is what a tuner on a GPU should try.
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


# Per capability and kernel: the seed for head_dim up to 64, then up to 128, at Dv = 2 D. Dv = D
# needs less of everything and takes the same.
_SEEDS: dict[int, dict[str, tuple[LaunchConfig, LaunchConfig]]] = {
    80: {
        "softmax_fwd": (LaunchConfig(128, 64, 4, 3), LaunchConfig(128, 64, 8, 2)),
        "softmax_dkv": (LaunchConfig(64, 64, 4, 2), LaunchConfig(32, 64, 4, 2)),
        "softmax_dq": (LaunchConfig(64, 64, 4, 2), LaunchConfig(64, 64, 8, 2)),
        "fwd": (LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 32, 8, 2)),
        "dkv": (LaunchConfig(32, 64, 8, 2), LaunchConfig(32, 64, 8, 1)),
        "dk": (LaunchConfig(32, 64, 8, 2), LaunchConfig(32, 64, 8, 1)),
        "dv": (LaunchConfig(32, 64, 8, 2), LaunchConfig(32, 64, 8, 1)),
        "dq": (LaunchConfig(64, 32, 8, 2), LaunchConfig(64, 64, 8, 1)),
    },
    86: {
        "softmax_fwd": (LaunchConfig(64, 64, 4, 2), LaunchConfig(64, 32, 4, 2)),
        "softmax_dkv": (LaunchConfig(32, 64, 4, 2), LaunchConfig(32, 64, 8, 1)),
        "softmax_dq": (LaunchConfig(64, 32, 4, 2), LaunchConfig(64, 32, 8, 1)),
        "fwd": (LaunchConfig(64, 64, 8, 1), LaunchConfig(32, 32, 4, 1)),
        "dkv": (LaunchConfig(32, 64, 8, 1), LaunchConfig(32, 32, 4, 1)),
        "dk": (LaunchConfig(32, 64, 8, 1), LaunchConfig(32, 32, 4, 1)),
        "dv": (LaunchConfig(32, 64, 8, 1), LaunchConfig(32, 32, 4, 1)),
        "dq": (LaunchConfig(64, 32, 8, 1), LaunchConfig(32, 32, 4, 1)),
    },
    90: {
        "softmax_fwd": (LaunchConfig(128, 64, 4, 3), LaunchConfig(128, 64, 8, 3)),
        "softmax_dkv": (LaunchConfig(64, 128, 8, 2), LaunchConfig(64, 64, 8, 2)),
        "softmax_dq": (LaunchConfig(128, 64, 8, 2), LaunchConfig(64, 64, 8, 2)),
        "fwd": (LaunchConfig(64, 64, 8, 3), LaunchConfig(64, 32, 8, 2)),
        "dkv": (LaunchConfig(32, 128, 8, 2), LaunchConfig(16, 64, 8, 2)),
        "dk": (LaunchConfig(32, 128, 8, 2), LaunchConfig(32, 64, 8, 2)),
        "dv": (LaunchConfig(32, 128, 8, 2), LaunchConfig(64, 64, 8, 2)),
        "dq": (LaunchConfig(128, 64, 8, 1), LaunchConfig(64, 32, 8, 3)),
    },
    100: {
        "softmax_fwd": (LaunchConfig(128, 64, 4, 3), LaunchConfig(128, 64, 8, 2)),
        "softmax_dkv": (LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 64, 8, 2)),
        "softmax_dq": (LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 64, 8, 2)),
        "fwd": (LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 64, 8, 2)),
        "dkv": (LaunchConfig(64, 64, 8, 1), LaunchConfig(64, 64, 8, 1)),
        "dk": (LaunchConfig(64, 64, 8, 1), LaunchConfig(64, 64, 8, 1)),
        "dv": (LaunchConfig(64, 64, 8, 1), LaunchConfig(64, 64, 8, 1)),
        "dq": (LaunchConfig(64, 64, 8, 1), LaunchConfig(64, 64, 8, 1)),
    },
}
_PREPROCESS = LaunchConfig(32, 0, 4, 1)
_FLOAT32 = LaunchConfig(32, 32, 4, 1)
"""Products in full float32 use no tensor cores: a small tile that fits everywhere."""
_INTERPRETED = LaunchConfig(16, 32, 1, 1)
"""Small and unequal, so that a few tokens already have edges in both directions."""
_SPLIT_DKV_ABOVE = {90: 64}
"""Per capability, the head_dim above which dK and dV are two launches: together they spill."""

CANDIDATES: dict[str, tuple[LaunchConfig, ...]] = {
    "fwd": (
        LaunchConfig(64, 32, 8, 2), LaunchConfig(64, 32, 8, 3), LaunchConfig(64, 64, 8, 2),
        LaunchConfig(64, 64, 8, 3), LaunchConfig(128, 32, 8, 2), LaunchConfig(128, 64, 8, 2),
    ),
    "dkv": (
        LaunchConfig(16, 64, 8, 2), LaunchConfig(32, 64, 8, 2), LaunchConfig(32, 128, 8, 2),
        LaunchConfig(64, 64, 8, 1), LaunchConfig(64, 64, 8, 2),
    ),
    "dk": (LaunchConfig(32, 64, 8, 2), LaunchConfig(32, 128, 8, 2), LaunchConfig(64, 64, 8, 2)),
    "dv": (LaunchConfig(32, 64, 8, 2), LaunchConfig(64, 64, 8, 2), LaunchConfig(64, 128, 8, 2)),
    "dq": (
        LaunchConfig(64, 32, 8, 2), LaunchConfig(64, 32, 8, 3), LaunchConfig(64, 64, 8, 2),
        LaunchConfig(128, 64, 8, 1),
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
    row = capability_row(*torch.cuda.get_device_capability(q.device))
    launches = dkv_launches(q.shape[-1], value_dim, row) if kernel == "dkv" else (kernel,)
    return {launch: seed(launch, q.shape[-1], value_dim, row) for launch in launches}


def seed(kernel: str, head_dim: int, value_dim: int, capability: int) -> LaunchConfig:
    """The table's entry; values wider than 2 D count as the next head_dim."""
    if kernel == "preprocess":
        return _PREPROCESS
    narrow, wide = _SEEDS[capability][kernel]
    return narrow if max(head_dim, (value_dim + 1) // 2) <= 64 else wide


def dkv_launches(head_dim: int, value_dim: int, capability: int) -> tuple[str, ...]:
    """Launches of the dkv kernel: one, or one for dK and one for dV with their own accumulators."""
    split = max(head_dim, (value_dim + 1) // 2) > _SPLIT_DKV_ABOVE.get(capability, 1 << 30)
    return ("dk", "dv") if split else ("dkv",)


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
    """Every kernel of the package at its seeds: bfloat16, causal, widths 64 and 128, V1 and V2.

    Args:
        capability: 80, 86, 90 or 100.

    Returns:
        Cases for the compile gate.
    """
    cases = []
    for head_dim in (64, 128):
        for shared_keys in (False, True):
            value_dim = head_dim if shared_keys else 2 * head_dim
            name = f"diff_attention-{'v2' if shared_keys else 'v1'}-d{head_dim}"
            cases += _diff_attention_cases(name, head_dim, value_dim, shared_keys, capability)
    return cases


def _diff_attention_cases(
    name: str, head_dim: int, value_dim: int, shared_keys: bool, capability: int
) -> list[AotCase]:
    from diffattn.ops.diff_attention.triton import backward, forward

    dkv = backward._diff_attention_bwd_dkv_kernel
    kernels = {
        "fwd": forward._diff_attention_fwd_kernel,
        "preprocess": backward._diff_attention_bwd_preprocess_kernel,
        "dq": backward._diff_attention_bwd_dq_kernel,
    }
    kernels |= dict.fromkeys(dkv_launches(head_dim, value_dim, capability), dkv)
    return [
        aot_case(name, launch, kernel, head_dim, value_dim, shared_keys, capability)
        for launch, kernel in kernels.items()
    ]


def aot_case(
    name: str,
    launch: str,
    kernel: Any,
    head_dim: int,
    value_dim: int,
    shared_keys: bool,
    capability: int,
    config: LaunchConfig | None = None,
) -> AotCase:
    """One launch of one kernel as the compiler sees it; ``config`` replaces the table's row."""
    config = seed(launch, head_dim, value_dim, capability) if config is None else config
    given = {
        "HEAD_DIM": head_dim, "VALUE_DIM": value_dim, "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n, "BLOCK_D": triton.next_power_of_2(head_dim),
        "BLOCK_DV": triton.next_power_of_2(value_dim), "SHARED_KEYS": shared_keys, "CAUSAL": True,
        "RANGES": False, "PADDING": False, "WITH_DK": launch != "dv", "WITH_DV": launch != "dk",
    }  # fmt: skip
    given |= dict.fromkeys(("p_first", "p_last", "p_begin", "p_end", "p_padding"))
    constexprs = {name: given[name] for name in kernel.arg_names if name in given}
    return AotCase(
        name=f"{name}-{launch}", kernel=kernel, signature=aot_signature(kernel, constexprs),
        constexprs=constexprs, num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
