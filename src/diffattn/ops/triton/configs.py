"""How each kernel is launched: tile sizes per kernel, width and chip.

The table is static, so a result never depends on what was timed first. Row 90 at widths 64 and 128
is what ``tools/tune.py`` found fastest on an H100 (``docs/records/h100_tune.json``) under a
causal mask; by analogy its other widths have no ``bwd`` either, and padded rows of V2 at d 64 have
a tile that reloads no register. All else are seeds, which come from the compile gate (no product
done twice, no wait for a copy and no reload of a register in a loop), not from measurements.
``CANDIDATES`` is what a tuner on a GPU should try.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

CAPABILITIES = (80, 86, 90, 100, 120)
"""Ten times the compute capability. 86 stands for 89 too, 120 for 121."""
SMALL_SHARED = (86, 120)
"""Rows of chips with 99 KiB of shared memory."""
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


# Per capability and launch the fields of LaunchConfig: of V1 (Dv = 2 D) for head_dim up to 32, 64,
# 96 and 128, then of V2 (Dv = D) likewise. ``None``: the launch does not fit the registers, and the
# next of ``FORWARD_FORMS`` or ``BACKWARD_FORMS`` takes its place. Softmax attention has bwd for the
# widths it is compared at. A line NAME_padding holds the tiles of padded rows, whose mask takes
# registers too; ``None``: those of NAME. tools/records/compile_gate.md shows what
# rows cost; it does not see that ``bwd`` adds dQ to memory once per block of keys. On an H100 that
# takes longer than the products it saves, for DIFF and softmax attention at every width that was
# timed, so that row 90 has no ``bwd``; on other chips it is not measured.
_Tile = tuple[int, int, int, int]
_SEEDS: dict[int, dict[str, tuple[_Tile | None, ...]]] = {
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
# Its shared memory is as small as that of 86, but the assembler spills more.
_SEEDS[120] = _SEEDS[86] | {
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
"""Tiles in a line of the table."""
PREPROCESS = LaunchConfig(32, 0, 4, 1)
_FLOAT32 = LaunchConfig(16, 16, 8, 1)
"""Small: products in full float32 use no tensor cores and hold both operands in registers."""
_INTERPRETED = LaunchConfig(16, 32, 1, 1)
"""Small and unequal, so that a few tokens already have edges in both directions."""
FORWARD_FORMS = (("fwd",), ("fwd_by_map",))
"""The launches of a forward pass: both maps in one loop, or one after the other."""
BACKWARD_FORMS = (("bwd",), ("dkq", "dv"), ("dkv", "dq"), ("dk", "dv", "dq"))
"""The launches of a backward pass, the form with the fewest products first."""
GRADIENTS = {
    "bwd": ("DK", "DV", "DQ"), "dkq": ("DK", "DQ"), "dkv": ("DK", "DV"), "dk": ("DK",),
    "dv": ("DV",),
}  # fmt: skip
"""The gradients that each launch of the kernel by keys computes."""

CANDIDATES: dict[str, tuple[LaunchConfig, ...]] = {
    launch: tuple(LaunchConfig(*tile) for tile in tiles)
    for launch, tiles in {
        "fwd": (
            (16, 64, 4, 2), (32, 64, 8, 2), (64, 32, 4, 2), (64, 32, 4, 3), (64, 32, 8, 3),
            (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 8, 2), (128, 16, 8, 2), (128, 32, 8, 2),
            (128, 32, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3),
        ),
        "fwd_by_map": (
            (32, 64, 8, 2), (64, 32, 4, 2), (64, 64, 4, 2), (64, 64, 4, 3), (128, 32, 8, 3),
            (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 1), (128, 128, 8, 2),
        ),
        "bwd": (
            (16, 128, 8, 2), (32, 16, 4, 2), (32, 32, 2, 2), (32, 32, 4, 2), (32, 64, 4, 2),
            (32, 64, 8, 2), (32, 128, 8, 1), (32, 128, 8, 2), (64, 32, 8, 2), (64, 64, 4, 2),
            (64, 64, 8, 2), (64, 128, 8, 1), (64, 128, 8, 2),
        ),
        "dkq": ((16, 128, 8, 2), (32, 32, 4, 2), (32, 64, 8, 2), (64, 32, 8, 2), (64, 64, 8, 2)),
        "dkv": (
            (16, 128, 8, 2), (32, 32, 4, 2), (32, 64, 4, 2), (32, 64, 8, 2), (32, 128, 8, 2),
            (64, 16, 8, 2), (64, 32, 8, 2), (64, 64, 4, 2), (64, 64, 8, 2), (64, 128, 8, 1),
            (64, 128, 8, 2),
        ),
        "dk": (
            (16, 128, 8, 2), (32, 64, 4, 2), (32, 128, 8, 2), (64, 32, 8, 2), (64, 64, 4, 2),
            (64, 64, 8, 2), (64, 128, 8, 1),
        ),
        "dv": (
            (32, 64, 4, 2), (32, 128, 8, 2), (64, 32, 8, 2), (64, 64, 4, 2), (64, 128, 8, 2),
        ),
        "dq": (
            (16, 64, 4, 2), (32, 64, 8, 2), (64, 32, 4, 2), (64, 32, 4, 3), (64, 32, 8, 2),
            (64, 64, 4, 2), (64, 64, 8, 2), (128, 16, 8, 2), (128, 32, 8, 2), (128, 32, 8, 3),
            (128, 64, 8, 1), (128, 64, 8, 2), (128, 64, 8, 3),
        ),
        "softmax_fwd": (
            (64, 32, 4, 2), (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 8, 2), (64, 128, 8, 2),
            (128, 32, 8, 3), (128, 64, 4, 2), (128, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3),
            (128, 128, 8, 2),
        ),
        "softmax_bwd": (
            (16, 128, 8, 2), (32, 64, 4, 2), (32, 128, 8, 2), (64, 64, 4, 2), (64, 64, 8, 2),
            (64, 128, 8, 1), (64, 128, 8, 2), (128, 128, 8, 2),
        ),
        "softmax_dkv": (
            (16, 128, 8, 2), (32, 64, 8, 2), (32, 128, 8, 2), (64, 32, 8, 2), (64, 64, 4, 2),
            (64, 64, 8, 2), (64, 128, 8, 1), (64, 128, 8, 2),
        ),
        "softmax_dq": (
            (64, 32, 4, 2), (64, 32, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 8, 2),
            (128, 32, 8, 2), (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2),
        ),
    }.items()
}  # fmt: skip
"""The tiles that ``tools/tune.py`` times, the smallest first; a tile that does not fit a
chip fails to launch there."""
_IN_PLACE: dict[str, LaunchConfig | None] = {}


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors."""
    return bool(triton.knobs.runtime.interpret)


def capability_row(major: int, minor: int) -> int:
    """The row of the table for a chip: its own, or the nearest older one that fits."""
    capability = 10 * major + minor
    if capability in (86, 89):
        return 86
    return max((row for row in CAPABILITIES if row <= capability and row != 86), default=80)


def device_row(device: torch.device) -> int | None:
    """The row of a device's chip; ``None`` in the interpreter, which stands for no chip."""
    if interpreted():
        return None
    return capability_row(*torch.cuda.get_device_capability(device))


def launch_config(
    launch: str, q: Tensor, value_dim: int, *, shared_keys: bool = False, padding: bool = False
) -> LaunchConfig | None:
    """Tile sizes, warps and stages of one launch; ``None`` if it does not fit the device.

    Args:
        launch: A name in ``FORWARD_FORMS`` or ``BACKWARD_FORMS``; those of
            softmax attention begin with ``"softmax_"``.
        q: The queries: their dtype, last axis and device decide.
        value_dim: Dv.
        shared_keys: Whether both maps read the same keys. What fits keys of their own fits these.
        padding: Whether keys may be padding.
    """
    if launch in _IN_PLACE:
        return _IN_PLACE[launch]
    row = device_row(q.device)
    if row is None:
        return _INTERPRETED
    if q.dtype == torch.float32:
        return _FLOAT32
    return seed(launch, q.shape[-1], value_dim, row, shared_keys, padding)


@contextmanager
def launched_with(rows: Mapping[str, LaunchConfig | None]) -> Iterator[None]:
    """Put rows in the place of the table's: how a tuner tries what it may write into the table.

    For every shape, dtype and device, and for every thread: autograd has one of its own.

    Args:
        rows: By launch; ``None`` leaves the pass to the forms without this launch.

    Yields:
        Nothing.
    """
    before = dict(_IN_PLACE)
    _IN_PLACE.update(rows)
    try:
        yield
    finally:
        _IN_PLACE.clear()
        _IN_PLACE.update(before)


@contextmanager
def seeded_with(capability: int, lines: Mapping[str, tuple[_Tile | None, ...]]) -> Iterator[None]:
    """Put lines in the place of a row of the table: what a tuner found, before it stands there.

    Args:
        capability: One of :data:`CAPABILITIES`.
        lines: By launch, as :func:`table_row` gives them.

    Yields:
        Nothing; inside, the lines hold for every thread: autograd has one of its own.
    """
    shipped = _SEEDS[capability]
    _SEEDS[capability] = dict(lines)
    try:
        yield
    finally:
        _SEEDS[capability] = shipped


def forward_configs(
    op: str, q: Tensor, value_dim: int, *, shared_keys: bool = False
) -> dict[str, LaunchConfig]:
    """The launch of a forward pass by name. Arguments as in :func:`backward_configs`."""
    return choose(
        FORWARD_FORMS, lambda x: launch_config(op + x, q, value_dim, shared_keys=shared_keys)
    )


def backward_configs(
    op: str, q: Tensor, value_dim: int, *, shared_keys: bool = False, padding: bool = False
) -> dict[str, LaunchConfig]:
    """The launches of a backward pass by name: the one place that chooses its form.

    In units of one N × N product over all heads, ``"bwd"`` takes 5: logits, dP, dV, dK, dQ.
    ``"dkq"`` and ``"dv"``, for chips whose registers do not hold all three, take 6; ``"dkv"`` and
    ``"dq"``, which both need logits and dP, 7; 8 with dK and dV apart.

    Args:
        op: ``""``, or ``"softmax_"`` for softmax attention.
        q: The queries: their dtype, last axis and device decide.
        value_dim: Dv.
        shared_keys: Whether both maps read the same keys.
        padding: Whether keys may be padding.

    Returns:
        Tile sizes, warps and stages of each launch, in the order of the launches.
    """

    def row_of(launch: str) -> LaunchConfig | None:
        return launch_config(op + launch, q, value_dim, shared_keys=shared_keys, padding=padding)

    return choose(BACKWARD_FORMS, row_of, adds_in_order(q))


def choose(
    forms: tuple[tuple[str, ...], ...],
    row_of: Callable[[str], LaunchConfig | None],
    in_order: bool = False,
) -> dict[str, LaunchConfig]:
    """The first form whose launches all have a row.

    Args:
        forms: ``FORWARD_FORMS`` or ``BACKWARD_FORMS``.
        row_of: Tiles, warps and stages of a launch, ``None`` if the table has none.
        in_order: Leave out the forms in which programs add to one number, in any order.

    Returns:
        The rows by launch, in the order of the launches.
    """
    for form in forms:
        if in_order and adds_up(form):
            continue
        rows = {launch: config for launch in form if (config := row_of(launch))}
        if len(rows) == len(form):
            return rows
    raise AssertionError("the table has rows for one form of every pass")


def adds_up(form: tuple[str, ...]) -> bool:
    """Whether programs of a launch of ``BACKWARD_FORMS`` add to one number, in any order."""
    return any("DQ" in GRADIENTS.get(launch, ()) for launch in form)


def adds_in_order(q: Tensor) -> bool:
    """Whether no two programs may add to one number, so that runs repeat bit for bit.

    Asked for by ``torch.use_deterministic_algorithms(True)``. Float32 outside the interpreter
    always is: the table has no rows for it, and its tiles are so small that atomics would abound.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    return deterministic or (q.dtype == torch.float32 and not interpreted())


def num_multiprocessors(device: torch.device) -> int:
    """Number for a device; 1 in the interpreter, which runs one program at a time."""
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
    """The table's entry, ``None`` if there is none for this launch.

    The tiles of V2 stand on its one tile of keys as much as on its narrow values: differential
    attention with keys of their own takes those of V1, which hold more.
    """
    if launch.endswith("preprocess"):
        return PREPROCESS
    at = column(launch, head_dim, value_dim, shared_keys)
    row, none = _SEEDS[capability], (None,) * NUM_COLUMNS
    tile = row.get(launch, none)[at]
    if tile and padding:
        tile = row.get(f"{launch}_padding", none)[at] or tile
    return LaunchConfig(*tile) if tile else None


def column(launch: str, head_dim: int, value_dim: int, shared_keys: bool = False) -> int:
    """Where the table has a launch's tiles for these widths: index into a line of its row."""
    narrow = value_dim == head_dim and (shared_keys or launch.startswith("softmax_"))
    return (4 if narrow else 0) + (head_dim > 32) + (head_dim > 64) + (head_dim > 96)


def table_row(capability: int) -> dict[str, tuple[_Tile | None, ...]]:
    """The table's lines of one of :data:`CAPABILITIES`, by launch."""
    return dict(_SEEDS[capability])
