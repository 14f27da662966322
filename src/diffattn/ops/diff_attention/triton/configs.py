"""How each kernel is launched: tile sizes per kernel, width and chip.

The table is static, so a result never depends on what was timed first. Its rows are seeds: they
come from the compile gate (no product done twice, no wait for a copy and no reload of a register
in a loop), not from measurements on a GPU. ``CANDIDATES`` is what a tuner on a GPU should try.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

CAPABILITIES = (80, 86, 90, 100)
"""Ten times the compute capability. 86 stands for all chips with 99 KiB of shared memory."""
_SMALL_SHARED = (86, 89, 120, 121)
FP_FUSION = {"enable_fp_fusion": True}
"""A product and a sum rounded once. Named because triton 3.10 no longer does it by default."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Queries and keys per tile, warps per program, stages of the load pipeline."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int

    @property
    def compiler_options(self) -> dict[str, int]:
        """The launch arguments besides the tile sizes."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, **FP_FUSION}

    @property
    def options(self) -> dict[str, int]:
        """The launch arguments of a kernel with both tile sizes."""
        return {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, **self.compiler_options}


# Per capability and launch the fields of LaunchConfig: of V1 (Dv = 2 D) for head_dim up to 64 and
# up to 128, then of V2 (Dv = D) likewise. ``None``: one launch does not fit the registers, and
# those of ``_INSTEAD`` take its place, each with its share of the accumulators. The compile gate
# (docs/records/compile_gate.md) shows what every row costs.
_Tile = tuple[int, int, int, int]
_SEEDS: dict[int, dict[str, tuple[_Tile | None, ...]]] = {
    80: {
        "fwd": ((128, 32, 8, 2), (32, 64, 8, 2), (128, 64, 8, 3), (128, 32, 8, 2)),
        "dkv": ((32, 128, 8, 2), (64, 32, 8, 2), (32, 128, 8, 2), (16, 128, 8, 2)),
        "dq": ((128, 32, 8, 2), (128, 16, 8, 2), (128, 32, 8, 2), (128, 16, 8, 2)),
        "softmax_fwd": ((128, 64, 8, 2), (64, 128, 8, 2), (128, 64, 4, 3), (128, 32, 8, 3)),
        "softmax_dkv": ((32, 128, 8, 2), (64, 32, 8, 2), (32, 128, 8, 2), (32, 128, 8, 2)),
        "softmax_dq": ((128, 64, 8, 2), (128, 32, 8, 2), (128, 64, 8, 2), (128, 32, 8, 2)),
    },
    86: {
        "fwd": ((128, 32, 8, 2), (32, 64, 8, 2), (128, 64, 8, 3), (128, 32, 8, 2)),
        "dkv": ((32, 128, 8, 2), (32, 32, 4, 2), (32, 128, 8, 2), (16, 128, 8, 2)),
        "dq": ((128, 32, 8, 2), (16, 64, 4, 2), (128, 32, 8, 2), (32, 64, 8, 2)),
        "softmax_fwd": ((128, 64, 8, 2), (64, 32, 4, 2), (128, 64, 4, 2), (128, 32, 8, 3)),
        "softmax_dkv": ((32, 128, 8, 2), (64, 32, 8, 2), (32, 128, 8, 2), (32, 128, 8, 2)),
        "softmax_dq": ((128, 64, 8, 2), (64, 32, 4, 2), (128, 64, 8, 2), (128, 32, 8, 2)),
    },
    90: {
        "fwd": ((128, 64, 8, 2), None, (128, 64, 8, 3), (128, 64, 8, 2)),
        "fwd_by_map": (None, (128, 64, 8, 2), None, None),
        "dkv": ((32, 128, 8, 2), None, (32, 128, 8, 2), (32, 128, 8, 2)),
        "dk": (None, (32, 128, 8, 2), None, None),
        "dv": (None, (32, 128, 8, 2), None, None),
        "dq": ((128, 64, 8, 2), (128, 32, 8, 2), (128, 64, 8, 2), (128, 32, 8, 2)),
        "softmax_fwd": ((128, 64, 8, 2), (128, 64, 8, 2), (128, 64, 4, 3), (128, 64, 8, 3)),
        "softmax_dkv": ((32, 128, 8, 2), (16, 128, 8, 2), (64, 128, 8, 2), (32, 128, 8, 2)),
        "softmax_dq": ((128, 64, 8, 2), (128, 32, 8, 2), (128, 64, 8, 2), (128, 64, 8, 2)),
    },
    100: {
        "fwd": ((128, 64, 8, 2), None, (128, 64, 8, 2), (64, 64, 8, 2)),
        "fwd_by_map": (None, (128, 64, 8, 2), None, None),
        "dkv": ((64, 64, 8, 2), (32, 64, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2)),
        "dq": ((64, 64, 8, 2), (64, 32, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2)),
        "softmax_fwd": ((128, 64, 8, 2), (64, 64, 8, 2), (128, 64, 8, 2), (128, 64, 8, 2)),
        "softmax_dkv": ((64, 64, 8, 2), (32, 64, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2)),
        "softmax_dq": ((64, 64, 8, 2), (64, 32, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2)),
    },
}  # fmt: skip
_PREPROCESS = LaunchConfig(32, 0, 4, 1)
_FLOAT32 = LaunchConfig(16, 16, 8, 1)
"""Small: products in full float32 use no tensor cores and hold both operands in registers."""
_INTERPRETED = LaunchConfig(16, 32, 1, 1)
"""Small and unequal, so that a few tokens already have edges in both directions."""
_INSTEAD = {"fwd": ("fwd_by_map",), "dkv": ("dk", "dv")}
"""What is launched where the table has no row for a kernel as a whole."""

CANDIDATES: dict[str, tuple[LaunchConfig, ...]] = {
    launch: tuple(LaunchConfig(*tile) for tile in tiles)
    for launch, tiles in {
        "fwd": (
            (16, 64, 4, 2), (32, 64, 8, 2), (64, 32, 8, 3), (64, 64, 8, 2), (128, 16, 8, 2),
            (128, 32, 8, 2), (128, 32, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3),
        ),
        "fwd_by_map": ((32, 64, 8, 2), (64, 32, 4, 2), (128, 64, 8, 2), (128, 64, 8, 3)),
        "dkv": (
            (16, 128, 8, 2), (32, 32, 4, 2), (32, 64, 4, 2), (32, 64, 8, 2), (32, 128, 8, 2),
            (64, 32, 8, 2), (64, 64, 8, 2),
        ),
        "dk": ((16, 128, 8, 2), (32, 128, 8, 2), (64, 32, 8, 2)),
        "dv": ((32, 64, 4, 2), (32, 128, 8, 2), (64, 32, 8, 2), (64, 128, 8, 2)),
        "dq": (
            (16, 64, 4, 2), (32, 64, 8, 2), (64, 32, 8, 2), (64, 64, 8, 2), (128, 16, 8, 2),
            (128, 32, 8, 2), (128, 64, 8, 2),
        ),
    }.items()
}  # fmt: skip
"""What a tuner should time, per kernel; those that do not fit a chip fail to launch there."""


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors."""
    return bool(triton.knobs.runtime.interpret)


def capability_row(major: int, minor: int) -> int:
    """The row of the table for a chip: its own, or the nearest older one that fits."""
    capability = 10 * major + minor
    if capability in _SMALL_SHARED:
        return 86
    return max((row for row in CAPABILITIES if row <= capability and row != 86), default=80)


def launch_configs(
    kernel: str, q: Tensor, value_dim: int, *, shared_keys: bool = False
) -> dict[str, LaunchConfig]:
    """The launches of one kernel in one call, by name.

    ``"fwd"`` may be ``"fwd_by_map"``, ``"dkv"`` may be ``"dk"`` and ``"dv"``.

    Args:
        kernel: ``"fwd"``, ``"preprocess"``, ``"dkv"`` or ``"dq"``, or one of softmax attention.
        q: The queries: their dtype, last axis and device decide.
        value_dim: Dv.
        shared_keys: Whether both maps read the same keys. What fits keys of their own fits these.

    Returns:
        Tile sizes, warps and stages of each.
    """
    if interpreted():
        return {kernel: _INTERPRETED}
    if q.dtype == torch.float32 and kernel != "preprocess":
        return {kernel: _FLOAT32}
    row = capability_row(*torch.cuda.get_device_capability(q.device))
    for launches in ((kernel,), _INSTEAD.get(kernel, ())):
        configs = {x: seed(x, q.shape[-1], value_dim, row, shared_keys) for x in launches}
        found = {launch: config for launch, config in configs.items() if config}
        if found:
            return found
    raise AssertionError(f"a row for {kernel} on sm_{row}")


def seed(
    launch: str, head_dim: int, value_dim: int, capability: int, shared_keys: bool = False
) -> LaunchConfig | None:
    """The table's entry, ``None`` if there is none for this launch.

    The tiles of V2 stand on its one tile of keys as much as on its narrow values: differential
    attention with keys of their own takes those of V1, which hold more.
    """
    if launch.endswith("preprocess"):
        return _PREPROCESS
    is_softmax = launch.startswith("softmax_")
    narrow = value_dim == head_dim and (shared_keys or is_softmax)
    column = (2 if narrow else 0) + (0 if head_dim <= 64 else 1)
    tile = _SEEDS[capability].get(launch, (None,) * 4)[column]
    return LaunchConfig(*tile) if tile else None
