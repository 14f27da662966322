"""Multiply-adds of the kernels, counted by the tiles that they visit.

``python -m tools.counted_work`` prints the table of docs/records/counted_work.md:
differential attention against softmax attention by kernels of the same make, under a causal mask.
"""

from triton import cdiv

from diffattn.ops.triton.configs import (
    BACKWARD_FORMS,
    CAPABILITIES,
    FORWARD_FORMS,
    GRADIENTS,
    LaunchConfig,
    choose,
    seed,
)
from diffattn.ops.triton.launch import block_width

PRODUCTS = {
    "fwd": (2, 2), "fwd_by_map": (2, 2),
    "bwd": (6, 2), "dkv": (4, 2), "dk": (4, 1), "dv": (2, 1), "dq": (4, 1),
    "softmax_fwd": (1, 1), "softmax_bwd": (3, 2), "softmax_dkv": (2, 2), "softmax_dq": (2, 1),
}  # fmt: skip
"""Per launch, the products of a tile whose third side is D, and those whose third side is Dv."""
NUM_TOKENS = 4096
"""T and S of the table."""


def causal_tiles(launch: str, config: LaunchConfig, num_queries: int, num_keys: int) -> int:
    """Tiles that a launch visits for one head under a causal mask, those on the diagonal whole."""
    ahead = num_keys - num_queries
    if launch.removeprefix("softmax_") in GRADIENTS:  # a program owns keys, and goes over queries
        starts = range(0, num_keys, config.block_n)
        first = [max(key - ahead, 0) // config.block_m * config.block_m for key in starts]
        return sum(max(0, cdiv(num_queries - query, config.block_m)) for query in first)
    ends = [min(query + config.block_m, num_queries) for query in
            range(0, num_queries, config.block_m)]  # fmt: skip
    return sum(cdiv(max(end + ahead, 0), config.block_n) for end in ends)


def multiply_adds(
    launches: dict[str, LaunchConfig], head_dim: int, value_dim: int, num_queries: int,
    num_keys: int,
) -> int:  # fmt: skip
    """Multiply-adds of one query head under a causal mask, padding of tiles included.

    ``launches`` are tile sizes by the names of ``PRODUCTS``.
    """
    total = 0
    for launch, config in launches.items():
        per_d, per_dv = PRODUCTS[launch]
        width = per_d * block_width(head_dim) + per_dv * block_width(value_dim)
        tiles = causal_tiles(launch, config, num_queries, num_keys)
        total += tiles * config.block_m * config.block_n * width
    return total


def planned(
    op: str, head_dim: int, value_dim: int, capability: int, *, in_order: bool = False
) -> tuple[dict[str, LaunchConfig], dict[str, LaunchConfig]]:
    """The launches of forward and backward in 16-bit dtypes, as the table has them for a chip.

    Args:
        op: ``""``, or ``"softmax_"`` for softmax attention.
        head_dim, value_dim, capability: D, Dv, and a row of the table.
        in_order: As under ``torch.use_deterministic_algorithms``.
    """

    def row_of(launch: str) -> LaunchConfig | None:
        return seed(op + launch, head_dim, value_dim, capability, value_dim == head_dim)

    forward, backward = (
        {op + launch: row for launch, row in chosen.items()}
        for chosen in (choose(FORWARD_FORMS, row_of), choose(BACKWARD_FORMS, row_of, in_order))
    )
    return forward, backward


def table() -> str:
    """The counted work in Markdown, in U of the causal half; see docs/records/counted_work.md.

    Softmax attention has two heads of width D for each of differential attention, as its twin in
    V1 and as V2 is run by its authors.
    """
    lines = [
        "| chip | DIFF and its backward | DIFF, U | softmax, U | ratio | in one order |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for capability in CAPABILITIES:
        for head_dim in (64, 128):
            for form, value_dim in (("V1", 2 * head_dim), ("V2", head_dim)):
                cells, ratios = [], []
                for in_order in (False, True):
                    diff = _in_units("", head_dim, value_dim, capability, in_order)
                    softmax = _in_units("softmax_", head_dim, head_dim, capability, in_order)
                    cells += [f"{x:.2f} + {y:.2f} = {x + y:.2f}" for x, y in (diff, softmax)]
                    ratios.append(f"{sum(diff) / sum(softmax):.2f}")
                launches = planned("", head_dim, value_dim, capability)[1]
                name = f"{form}, d {head_dim}: {', '.join(launches)}"
                lines.append(
                    f"| sm_{capability} | {name} | {cells[0]} | {cells[1]} | {ratios[0]} "
                    f"| {ratios[1]} |"
                )
    return "\n".join(lines)


def _in_units(
    op: str, head_dim: int, value_dim: int, capability: int, in_order: bool
) -> tuple[float, float]:
    """Forward and backward; U is one product over the pairs that causality leaves, two maps."""
    unit = NUM_TOKENS * (NUM_TOKENS + 1) // 2 * head_dim * 2
    forward, backward = (
        multiply_adds(launches, head_dim, value_dim, NUM_TOKENS, NUM_TOKENS) / unit
        for launches in planned(op, head_dim, value_dim, capability, in_order=in_order)
    )
    heads = 2 if op else 1
    return heads * forward, heads * backward


if __name__ == "__main__":
    print(table())
