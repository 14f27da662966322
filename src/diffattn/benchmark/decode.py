"""``bench decode``: one query per row against cached keys and values."""

from diffattn.benchmark.config import BenchConfig, Case

_SHAPES = ((1, 4, 64), (4, 4, 64), (1, 12, 128), (4, 12, 128))


def plan(config: BenchConfig) -> list[Case]:
    """The cases of one call."""
    full, cuda = config.scale == "full", config.device == "cuda"
    dtypes: tuple[str, ...] = ("bfloat16",) if cuda else ("float32", "bfloat16")
    lengths: tuple[int, ...] = (4_096, 16_384) if cuda and full else (4_096,)
    return [
        Case(
            suite="decode",
            device=config.device,
            dtype=dtype,
            mode="decode",
            shape={"B": batch, "H": num_heads, "d": head_dim, "N": 1, "S": length}
            | ({"attention": "v2"} if config.attention == "v2" else {}),
        )
        for length in config.lengths or lengths
        for batch, num_heads, head_dim in (_SHAPES if full else _SHAPES[:1])
        for dtype in config.dtypes or (dtypes if full else dtypes[:1])
    ]
