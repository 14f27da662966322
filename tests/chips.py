"""The launches of a chip that is not here, in Triton's interpreter."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def launched_as_on(capability: int) -> Iterator[None]:
    """Let kernels take the tiles of a chip instead of the interpreter's small ones.

    Args:
        capability: Ten times the compute capability of the chip.
    """
    from diffattn.ops.triton import configs

    row = configs.capability_row(*divmod(capability, 10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configs, "device_row", lambda device: row)
        yield
