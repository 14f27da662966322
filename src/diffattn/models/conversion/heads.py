"""Where the heads and their maps lie in the rows of a projection, and the channels in a head.

Our rows lie head by head, both maps of a head beside each other, and rotary positions pair channel
c with c + D/2. Every other order is a permutation of rows, here in both directions.
"""

from torch import Tensor

from diffattn.models.conversion.layouts import Pairs, Rope


def rows_to_ours(x: Tensor, heads: int, maps: int, pairs: Pairs, rope: Rope) -> Tensor:
    """Rows of a weight ``[heads * maps * D, ...]`` or a bias, in our order.

    Args:
        x: In another layout's order.
        heads: Heads of the operator.
        maps: Maps of one head: 2, or 1 where they share or there is one.
        pairs: How that layout orders them.
        rope: How it orders channels; ``"none"`` where nothing is rotated.
    """
    width = x.shape[0] // (heads * maps)
    if pairs == "split":
        x = x.unflatten(0, (maps, heads, width)).transpose(0, 1)
    else:
        x = x.unflatten(0, (heads, maps, width))
    if rope == "interleaved":
        x = x.unflatten(2, (width // 2, 2)).transpose(2, 3).flatten(2, 3)
    return x.flatten(0, 2)


def rows_from_ours(x: Tensor, heads: int, maps: int, pairs: Pairs, rope: Rope) -> Tensor:
    """The inverse of :func:`rows_to_ours`."""
    width = x.shape[0] // (heads * maps)
    x = x.unflatten(0, (heads, maps, width))
    if rope == "interleaved":
        x = x.unflatten(2, (2, width // 2)).transpose(2, 3).flatten(2, 3)
    if pairs == "split":
        x = x.transpose(0, 1)
    return x.flatten(0, 2)
