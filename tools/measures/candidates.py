"""The tiles that a tuner on a GPU should try, and how to launch a kernel with them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from diffattn.ops.triton import configs
from diffattn.ops.triton.configs import LaunchConfig

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
"""Launch -> tiles for ``tools/tune.py`` to time, smallest first; some do not fit every chip."""


@contextmanager
def launched_with(rows: Mapping[str, LaunchConfig | None]) -> Iterator[None]:
    """A context in which some launches use other settings than the table's.

    They hold for every shape, dtype, device and thread, as autograd runs in another thread.

    Args:
        rows: Launch -> settings; ``None``: forms with this launch are not used.
    """
    before = configs.launch_config

    def launch_config(launch: str, *arguments: Any, **options: Any) -> LaunchConfig | None:
        return rows[launch] if launch in rows else before(launch, *arguments, **options)

    configs.launch_config = launch_config
    try:
        yield
    finally:
        configs.launch_config = before
