"""The launches of a chip that is not here, in Triton's interpreter."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def launched_as_on(capability: int) -> Iterator[None]:
    """Let kernels take the tiles of a chip instead of the interpreter's small ones.

    Args:
        capability: Ten times the compute capability of the chip.

    Yields:
        Nothing; inside, the table answers as for this chip on every device.
    """
    from diffattn.ops.triton import configs

    row = configs.capability_row(*divmod(capability, 10))

    def row_of_the_chip(device: torch.device) -> int:
        return row

    device_row = configs.device_row
    configs.device_row = row_of_the_chip
    try:
        yield
    finally:
        configs.device_row = device_row
