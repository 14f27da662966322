"""The launches of the Hopper backward: their gradients, tiles and registers."""

from dataclasses import dataclass

from diffattn.ops.hopper.numbers import CHUNK, NUM_NUMBERS

ROWS = CHUNK
"""Rows of a warpgroup's matrix product."""
NUM_GROUPS = 2
_MOST_COLUMNS = 256
"""Most columns of a warpgroup's sums: 64 rows of 256 columns take 128 registers of each thread."""
_REGISTERS, _REGISTERS_WITH_Q = (232, 40), (240, 24)
"""Registers of a thread that multiplies, and of a thread that copies."""
MAX_REGISTERS = 168
"""Registers per thread at launch: 12 warps * 168 = 4 * 40 + 8 * 232 = 4 * 24 + 8 * 240."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of the kernel. ``by_keys``: rows of a program are keys, not queries."""

    name: str
    by_keys: bool
    with_x: bool
    """Whether it computes the gradient of its rows: dK, or dQ if rows are queries."""
    with_v: bool
    exchange: bool = False
    """Whether both warpgroups have the same rows, and exchange parts of each other's operands."""
    with_q: bool = False
    """Whether it also adds to dQ, in float32 and in an order that varies."""

    @property
    def num_rows(self) -> int:
        """Number of rows of a program."""
        return ROWS if self.exchange else NUM_GROUPS * ROWS

    def width(self, head_dim: int, value_dim: int) -> int:
        """Multiply-adds per query-key pair: for scores and dQ, for dP and dK or dQ, and for dV."""
        per_x = 2 * head_dim + value_dim
        width = (2 + 2 * self.with_q) * head_dim
        return width + self.with_x * per_x + self.with_v * value_dim


_LAUNCHES = {
    "dkv": Launch("dkv", True, True, True),
    "one_pass": Launch("one_pass", True, True, True, with_q=True),
    "exchange": Launch("exchange", True, True, True, exchange=True),
    "dk": Launch("dk", True, True, False),
    "dv": Launch("dv", True, False, True),
    "dq": Launch("dq", False, True, False),
}


def launches(
    head_dim: int, value_dim: int, shared_keys: bool, deterministic: bool
) -> tuple[Launch, ...]:
    """The launches of a backward pass: the fewest whose sums fit the registers."""
    if _columns(_LAUNCHES["dkv"], head_dim, value_dim, shared_keys) <= _MOST_COLUMNS:
        names = ["dkv", "dq"] if deterministic else ["one_pass"]
    else:
        names = ["dk", "dv", "dq"] if shared_keys else ["exchange", "dq"]
    return tuple(_LAUNCHES[name] for name in names)


def _columns(launch: Launch, head_dim: int, value_dim: int, shared_keys: bool) -> int:
    """Columns of a warpgroup's sums in a launch."""
    num_sums = 1 if shared_keys and launch.by_keys else 2
    return launch.with_x * num_sums * head_dim + launch.with_v * value_dim


def kernel_constants(
    launch: Launch, group: int, head_dim: int, value_dim: int, causal: bool, shared_keys: bool
) -> dict[str, int]:
    """The compile-time constants of a launch. A tile has as many rows, and the ring as many slots,
    as fit the registers besides the sums."""
    narrow = _columns(launch, head_dim, value_dim, shared_keys) <= _MOST_COLUMNS // 2
    block, stages = (64, 2) if narrow or not launch.with_x else (32, 3)
    if launch.exchange:  # two tiles per turn
        block, stages = 32, 4
    consumer, producer = _REGISTERS_WITH_Q if launch.with_q else _REGISTERS
    return {
        "BY_KEYS": launch.by_keys, "WITH_X": launch.with_x, "WITH_V": launch.with_v,
        "WITH_Q": launch.with_q, "EXCHANGE": launch.exchange, "CAUSAL": causal,
        "SHARED_KEYS": shared_keys, "GROUP": group,
        "HEAD_DIM": head_dim, "VALUE_DIM": value_dim, "ROWS": ROWS, "NUM_GROUPS": NUM_GROUPS,
        "BLOCK": block, "STAGES": stages, "NUM_NUMBERS": NUM_NUMBERS,
        "CONSUMER_REGISTERS": consumer, "PRODUCER_REGISTERS": producer,
    }  # fmt: skip


def block_shapes(launch: Launch, head_dim: int, value_dim: int, block: int) -> list[list[int]]:
    """Block shapes of the kernel's descriptors: two for rows, two for tiles, one for numbers."""
    sides = [[[1, n, 1, 1, head_dim], [1, n, 1, value_dim]] for n in (ROWS, block)]
    return [*sides[0], *sides[1], [1, 1, block if launch.by_keys else ROWS]]
