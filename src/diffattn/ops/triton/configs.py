"""Launch settings of each kernel: tile sizes per kernel, width and chip.

The table is static, so results do not depend on timings. Row 90 at widths 64 and 128 is the fastest
that ``tools/tune.py`` found on an H100 with a causal mask (``docs/records/h100_tune.json``). Its
other widths have no ``bwd`` either, by analogy. Padded batches of V2 at d 64 have their own tile,
because the fastest one would spill registers. All other entries are not measured. They were chosen
from the compiler's reports (``tools/records/compile_gate.md``): the form with the fewest products
whose loops neither wait for a copy nor reload a spilled register.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

CAPABILITIES = (80, 86, 90, 100, 120)
"""Rows of the table: ten times the compute capability. 86 also serves 89, and 120 serves 121."""
SMALL_SHARED = (86, 120)
"""Rows of chips with 99 KiB of shared memory."""
FP_FUSION = {"enable_fp_fusion": True}
"""Fuse multiply and add, with one rounding. Set because triton 3.10 has it off by default."""


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


# Capability -> launch -> fields of LaunchConfig, for V1 (Dv = 2 D) at head_dim up to 32, 64, 96 and
# 128, then for V2 (Dv = D) likewise. ``None``: not used, mostly because it does not fit the
# registers; the next of ``FORWARD_FORMS`` or ``BACKWARD_FORMS`` with all its entries is taken. A
# line NAME_padding is for batches with padding, whose mask needs registers too; ``None``: as NAME.
# tools/records/compile_gate.md shows the cost of each launch, but not that ``bwd`` adds dQ to
# memory once per block of keys. On an H100 this took longer than the saved products at every width
# that was timed, for DIFF and softmax attention, so row 90 has no ``bwd``. On other chips it is not
# measured.
_Tile = tuple[int, int, int, int]
SEEDS: dict[int, dict[str, tuple[_Tile | None, ...]]] = {
    80: {
        "fwd": ((128, 32, 8, 2), (128, 16, 8, 2), (32, 64, 8, 2), (32, 64, 8, 2),
                (128, 64, 8, 3), (128, 64, 8, 3), (128, 32, 8, 3), (128, 32, 8, 3)),
        "dkv": ((32, 128, 8, 2), (64, 32, 8, 2), (64, 32, 8, 2), (64, 32, 8, 2),
                (32, 128, 8, 2), (32, 128, 8, 2), (16, 128, 8, 2), (16, 128, 8, 2)),
        "bwd": ((32, 32, 2, 2), (32, 32, 4, 2), (64, 32, 8, 2), (64, 32, 8, 2),
                (64, 64, 4, 2), (32, 128, 8, 2), (16, 128, 8, 2), (16, 128, 8, 2)),
        "dq": ((128, 32, 8, 2), (128, 32, 8, 2), (128, 16, 8, 2), (128, 16, 8, 2),
               (128, 32, 8, 2), (128, 32, 8, 2), (128, 16, 8, 2), (128, 16, 8, 2)),
        "softmax_fwd": ((128, 64, 8, 2), (128, 64, 8, 2), (64, 128, 8, 2), (64, 128, 8, 2),
                        (128, 64, 4, 3), (128, 64, 4, 3), (128, 32, 8, 3), (128, 32, 8, 3)),
        "softmax_dkv": ((32, 128, 8, 2), (32, 128, 8, 2), (64, 32, 8, 2), (64, 32, 8, 2),
                        (32, 128, 8, 2), (32, 128, 8, 2), (32, 128, 8, 2), (32, 128, 8, 2)),
        "softmax_bwd": (None, None, None, None,
                        (64, 64, 4, 2), (32, 128, 8, 2), (16, 128, 8, 2), (16, 128, 8, 2)),
        "softmax_dq": ((128, 64, 8, 2), (128, 64, 8, 2), (128, 32, 8, 2), (128, 32, 8, 2),
                       (128, 64, 8, 2), (128, 64, 8, 2), (128, 32, 8, 2), (128, 32, 8, 2)),
    },
    86: {
        "fwd": ((128, 32, 8, 2), (128, 16, 8, 2), (32, 64, 8, 2), (32, 64, 8, 2),
                (128, 64, 8, 3), (128, 64, 8, 3), (128, 16, 8, 2), (128, 16, 8, 2)),
        "dkv": ((32, 128, 8, 2), (64, 32, 8, 2), (64, 16, 8, 2), (64, 16, 8, 2),
                (32, 128, 8, 2), (32, 128, 8, 2), (16, 128, 8, 2), (16, 128, 8, 2)),
        "bwd": ((32, 32, 2, 2), (32, 32, 4, 2), (32, 32, 4, 2), (32, 32, 4, 2),
                (64, 64, 4, 2), (32, 128, 8, 2), (16, 128, 8, 2), (16, 128, 8, 2)),
        "bwd_padding": (None, None, (32, 16, 4, 2), (32, 16, 4, 2),
                        None, None, None, None),
        "dq": ((128, 32, 8, 2), (128, 32, 8, 2), (16, 64, 4, 2), (16, 64, 4, 2),
               (128, 32, 8, 2), (128, 32, 8, 2), (32, 64, 8, 2), (32, 64, 8, 2)),
        "softmax_fwd": ((128, 64, 8, 2), (128, 64, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2),
                        (128, 64, 4, 2), (128, 64, 8, 2), (128, 32, 8, 3), (128, 32, 8, 3)),
        "softmax_dkv": ((32, 128, 8, 2), (32, 128, 8, 2), (64, 32, 8, 2), (64, 32, 8, 2),
                        (32, 128, 8, 2), (32, 128, 8, 2), (32, 128, 8, 2), (32, 128, 8, 2)),
        "softmax_bwd": (None, None, None, None,
                        (64, 64, 4, 2), (32, 128, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2)),
        "softmax_dq": ((128, 64, 8, 2), (128, 64, 8, 2), (64, 32, 4, 2), (64, 32, 4, 2),
                       (128, 64, 8, 2), (128, 64, 8, 2), (128, 32, 8, 2), (128, 32, 8, 2)),
    },
    90: {
        "fwd": ((128, 64, 8, 2), (128, 64, 8, 3), None, None,
                (128, 64, 8, 3), (64, 64, 4, 3), (128, 32, 8, 3), (64, 64, 4, 2)),
        "fwd_by_map": (None, None, (128, 64, 8, 2), (128, 64, 8, 3),
                       None, None, None, None),
        "dkv": ((32, 128, 8, 2), (32, 64, 4, 2), None, None,
                (32, 128, 8, 2), (64, 64, 4, 2), (32, 128, 8, 2), (32, 64, 4, 2)),
        "dkv_padding": (None, None, None, None,
                        None, (32, 64, 4, 2), None, None),
        "dk": (None, None, (16, 128, 8, 2), (32, 128, 8, 2),
               None, None, None, None),
        "dv": (None, None, (32, 128, 8, 2), (32, 64, 4, 2),
               None, None, None, None),
        "dq": ((128, 64, 8, 2), (64, 64, 4, 2), (128, 32, 8, 2), (128, 32, 8, 3),
               (128, 64, 8, 2), (64, 32, 4, 3), (128, 32, 8, 2), (128, 32, 8, 3)),
        "softmax_fwd": ((128, 64, 8, 2), (128, 64, 8, 2), (128, 64, 8, 2), (128, 64, 8, 2),
                        (128, 64, 4, 3), (128, 64, 8, 3), (128, 64, 8, 3), (64, 64, 4, 3)),
        "softmax_dkv": ((32, 128, 8, 2), (32, 128, 8, 2), (64, 32, 8, 2), (16, 128, 8, 2),
                        (64, 128, 8, 2), (64, 64, 4, 2), (32, 128, 8, 2), (64, 128, 8, 2)),
        "softmax_dq": ((128, 64, 8, 2), (128, 64, 8, 2), (128, 32, 8, 2), (128, 32, 8, 2),
                       (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3)),
    },
    100: {
        "fwd": ((128, 64, 8, 2), (128, 64, 8, 2), None, None,
                (128, 64, 8, 2), (128, 64, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2)),
        "fwd_by_map": (None, None, (128, 64, 8, 2), (128, 64, 8, 2),
                       None, None, None, None),
        "dkv": ((64, 64, 8, 2), (64, 64, 8, 2), (32, 64, 8, 2), (32, 64, 8, 2),
                (64, 64, 8, 2), (64, 64, 8, 2), (32, 64, 8, 2), (32, 64, 8, 2)),
        "bwd": ((32, 32, 2, 2), (32, 64, 4, 2), (64, 32, 8, 2), (64, 32, 8, 2),
                (64, 64, 4, 2), (32, 128, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2)),
        "dq": ((64, 64, 8, 2), (64, 64, 8, 2), (64, 32, 8, 2), (64, 32, 8, 2),
               (64, 64, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2)),
        "softmax_fwd": ((128, 64, 8, 2), (128, 64, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2),
                        (128, 64, 8, 2), (128, 64, 8, 2), (128, 64, 8, 2), (128, 64, 8, 2)),
        "softmax_dkv": ((64, 64, 8, 2), (64, 64, 8, 2), (32, 64, 8, 2), (32, 64, 8, 2),
                        (64, 64, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2)),
        "softmax_bwd": (None, None, None, None,
                        (64, 64, 8, 2), (64, 64, 8, 2), (32, 128, 8, 2), (32, 128, 8, 2)),
        "softmax_dq": ((64, 64, 8, 2), (64, 64, 8, 2), (64, 32, 8, 2), (64, 32, 8, 2),
                       (64, 64, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2)),
    },
}  # fmt: skip
# Row 120 has as little shared memory as row 86, but the assembler spills more registers.
SEEDS[120] = SEEDS[86] | {
    "bwd": ((32, 32, 2, 2), (32, 32, 4, 2), (32, 16, 4, 2), (32, 32, 4, 2),
            (64, 64, 4, 2), (32, 128, 8, 2), (16, 128, 8, 2), (16, 128, 8, 2)),
    "fwd": ((128, 32, 8, 2), (128, 16, 8, 2), (32, 64, 8, 2), (32, 64, 8, 2),
            (128, 64, 8, 3), (128, 32, 8, 3), (128, 16, 8, 2), (128, 16, 8, 2)),
    "softmax_dkv": ((32, 128, 8, 2), (32, 128, 8, 2), (64, 32, 8, 2), (64, 32, 8, 2),
                    (32, 128, 8, 2), (32, 128, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2)),
    "softmax_dq": ((128, 64, 8, 2), (128, 64, 8, 2), (64, 32, 4, 2), (64, 32, 4, 2),
                   (128, 64, 8, 2), (128, 64, 8, 2), (64, 64, 8, 2), (128, 32, 8, 2)),
}  # fmt: skip
NUM_COLUMNS = 8
"""Entries in a line of the table."""
PREPROCESS = LaunchConfig(32, 0, 4, 1)
"""For the kernel that prepares the backward pass, which has no tile of keys."""
_FLOAT32 = LaunchConfig(16, 16, 8, 1)
"""For float32. Small tiles: float32 products use no tensor cores; operands are in registers."""
_INTERPRETED = LaunchConfig(16, 32, 1, 1)
"""For the interpreter. Small and unequal tiles, so that short texts test edges of both axes."""
FORWARD_FORMS = (("fwd",), ("fwd_by_map",))
"""Alternative forward passes, each a tuple of launches: both maps in one loop, or in two loops."""
BACKWARD_FORMS = (("bwd",), ("dkv", "dq"), ("dk", "dv", "dq"))
"""Alternative backward passes, each a tuple of launches, with the fewest products first."""
GRADIENTS = {"bwd": ("DK", "DV", "DQ"), "dkv": ("DK", "DV"), "dk": ("DK",), "dv": ("DV",)}
"""Launch with a program per block of keys -> gradients that it computes."""


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors."""
    return bool(triton.knobs.runtime.interpret)


def capability_row(major: int, minor: int) -> int:
    """The row of the table for a chip: its own, or the nearest older chip's; 80 if none is."""
    capability = 10 * major + minor
    if capability in (86, 89):
        return 86
    return max((row for row in CAPABILITIES if row <= capability and row != 86), default=80)


def device_row(device: torch.device) -> int | None:
    """The row of the table for a device; ``None`` in the interpreter."""
    if interpreted():
        return None
    return capability_row(*torch.cuda.get_device_capability(device))


def launch_config(
    launch: str, q: Tensor, value_dim: int, *, shared_keys: bool = False, padding: bool = False
) -> LaunchConfig | None:
    """Tile sizes, warps and stages of one launch; ``None`` if the table has no entry for it.

    ``launch`` is a name in ``FORWARD_FORMS`` or ``BACKWARD_FORMS``; ``"softmax_"`` begins that of
    softmax attention.
    """
    row = device_row(q.device)
    if row is None:
        return _INTERPRETED
    if q.dtype == torch.float32:
        return _FLOAT32
    return seed(launch, q.shape[-1], value_dim, row, shared_keys, padding)


def forward_configs(
    op: str, q: Tensor, value_dim: int, *, shared_keys: bool = False
) -> dict[str, LaunchConfig]:
    """Name and settings of the forward pass's launch; ``op`` is ``""`` or ``"softmax_"``."""
    return choose(
        FORWARD_FORMS, lambda x: launch_config(op + x, q, value_dim, shared_keys=shared_keys)
    )


def backward_configs(
    op: str, q: Tensor, value_dim: int, *, shared_keys: bool = False, padding: bool = False
) -> dict[str, LaunchConfig]:
    """Names and settings of a backward pass's launches, in their order; ``op`` as in the forward.

    Costs in units of one N × N product over all heads: ``"bwd"`` takes 5 (logits, dP, dV, dK, dQ).
    ``"dkv"`` and ``"dq"`` take 7, as both need logits and dP. ``"dk"``, ``"dv"``, ``"dq"`` take 8.
    """

    def config_of(launch: str) -> LaunchConfig | None:
        return launch_config(op + launch, q, value_dim, shared_keys=shared_keys, padding=padding)

    return choose(BACKWARD_FORMS, config_of, adds_in_order(q))


def choose(
    forms: tuple[tuple[str, ...], ...],
    config_of: Callable[[str], LaunchConfig | None],
    in_order: bool = False,
) -> dict[str, LaunchConfig]:
    """The first form for which the table has settings of all launches.

    ``in_order`` skips forms in which several programs add to one number.
    """
    for form in forms:
        configs = {launch: config for launch in form if (config := config_of(launch))}
        if len(configs) == len(form) and not (in_order and adds_up(form)):
            return configs
    raise AssertionError("one form of every pass must have all its entries in the table")


def adds_up(form: tuple[str, ...]) -> bool:
    """Whether in a form several programs add to one number of dQ, in an order that varies."""
    return any("DQ" in GRADIENTS.get(launch, ()) for launch in form)


def adds_in_order(q: Tensor) -> bool:
    """Whether no two programs may add to one number, so that runs repeat bit for bit.

    True under ``torch.use_deterministic_algorithms(True)``, and always for float32 outside the
    interpreter: its tiles are small, so there would be very many atomic additions.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    return deterministic or (q.dtype == torch.float32 and not interpreted())


def num_multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a device; 1 in the interpreter, which runs one program at a time."""
    if interpreted():
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def seed(
    launch: str,
    head_dim: int,
    value_dim: int,
    capability: int,
    shared_keys: bool = False,
    padding: bool = False,
) -> LaunchConfig | None:
    """The table's entry for a launch, or ``None``.

    V2's tiles need both its shared keys and its narrow values. So Dv = D with different keys per
    map uses V1's tiles, which leave more registers free.
    """
    if launch.endswith("preprocess"):
        return PREPROCESS
    at = column(launch, head_dim, value_dim, shared_keys)
    row, none = SEEDS[capability], (None,) * NUM_COLUMNS
    tile = row.get(launch, none)[at]
    if tile and padding:
        tile = row.get(f"{launch}_padding", none)[at] or tile
    return LaunchConfig(*tile) if tile else None


def column(launch: str, head_dim: int, value_dim: int, shared_keys: bool = False) -> int:
    """Index of the entry for these widths in a line of the table."""
    narrow = value_dim == head_dim and (shared_keys or launch.startswith("softmax_"))
    return (4 if narrow else 0) + (head_dim > 32) + (head_dim > 64) + (head_dim > 96)
