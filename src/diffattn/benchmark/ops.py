"""``bench ops``: the attention operator, forward and with backward."""

from diffattn.benchmark.config import BenchConfig, Case

_CPU_HEADS = ((4, 64), (8, 128))
_CUDA_HEADS = ((16, 64), (12, 128))
_MODES = {
    "cpu": ("forward", "forward_backward"),
    "cuda": ("forward", "backward", "forward_backward"),
}


def plan(config: BenchConfig) -> list[Case]:
    """The cases of one call: small shapes first, so that a mistake shows early."""
    full, cuda = config.scale == "full", config.device == "cuda"
    lengths: tuple[int, ...] = (512, 1_024, 2_048, 4_096) if full else (512,)
    if cuda:
        lengths = (2_048, 4_096, 8_192, 16_384) if full else (2_048,)
    dtypes: tuple[str, ...] = ("bfloat16",) if cuda else ("float32", "bfloat16")
    dtypes = dtypes if full else dtypes[:1]
    heads = _CUDA_HEADS if cuda else _CPU_HEADS
    return [
        Case(
            suite="ops",
            device=config.device,
            dtype=dtype,
            mode=mode,
            shape={"B": 1, "H": num_heads, "d": head_dim, "N": length}
            | ({"attention": "v2"} if config.attention == "v2" else {}),
        )
        for length in config.lengths or lengths
        for num_heads, head_dim in (heads if full else heads[:1])
        for dtype in config.dtypes or dtypes
        for mode in _MODES[config.device]
    ]
