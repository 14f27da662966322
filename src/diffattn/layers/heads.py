"""What every attention layer asks of its head counts."""

from diffattn.errors import ConfigError


def resolve_kv_heads(where: str, num_heads: int, num_kv_heads: int | None, head_dim: int) -> int:
    """The number of key/value heads, ``num_heads`` by default.

    Raises:
        ConfigError: A count is below 1 or the key/value heads do not divide the heads.
    """
    if num_heads < 1 or head_dim < 1:
        raise ConfigError(
            f"{where}: num_heads and head_dim must be 1 or more, got {num_heads} and {head_dim}."
        )
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ConfigError(
            f"{where}: num_kv_heads must divide num_heads = {num_heads}, got {num_kv_heads}."
        )
    return num_kv_heads
