"""The table of parameters saved by Shared DIFF is what the accounting counts."""

from pathlib import Path

from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.twins import attention_parameters

PAGE = Path(__file__).parents[2] / "docs" / "records" / "shared_rank.md"
RANKS = (1, 2, 4, 8, 16, 32, 64)
SIZES = ((32, 1, 16), (64, 2, 16), (128, 2, 32), (256, 4, 32), (768, 6, 64), (2048, 8, 128),
         (4096, 16, 128))  # fmt: skip
"""Width, heads and width of a query."""


def parameters(attention_type, width, heads, head_dim, rank=None):
    config = DiffTransformerConfig(
        attention_type=attention_type, hidden_size=width, num_heads=heads, head_dim=head_dim,
        **({} if rank is None else {"shared_rank": rank}),
    )  # fmt: skip
    return attention_parameters(config)


def row(width, heads, head_dim):
    """Share of V1's attention parameters that each rank saves, and the rank that saves nothing."""
    before = parameters("diff", width, heads, head_dim)
    saved = [1 - parameters("shared_diff", width, heads, head_dim, r) / before for r in RANKS]
    cells = [f"{100 * x:.0f} %".replace("-", "−") for x in saved]
    equal = width * head_dim / (2 * (width + head_dim))
    return f"| {width:,} | {heads} × {head_dim} | {equal:.1f} | {' | '.join(cells)} |"


def test_the_table_is_counted():
    head = "| width | heads | equal at rank | " + " | ".join(f"r = {r}" for r in RANKS) + " |"
    table = [head, "| --- " * (3 + len(RANKS)) + "|", *(row(*size) for size in SIZES)]
    assert "\n".join(table) in PAGE.read_text("utf-8")
