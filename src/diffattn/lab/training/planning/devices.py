"""Accelerators by name: memory and peak of bfloat16 products. Loads without torch.

None of the figures was checked against a vendor's datasheet; ``source`` says how each was had.
"""

from dataclasses import dataclass
from types import MappingProxyType

from diffattn.errors import ConfigError
from diffattn.models.config.known_names import check_known


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator."""

    name: str
    product: str
    memory_bytes: int | None
    """Printed gigabytes read as 10**9 bytes: what a driver keeps for itself is about what binary
    gigabytes would add. ``None``: of this machine, asked when it is planned for."""
    bfloat16_flops: float | None
    """Peak of dense matrix products per second: half of what is printed "with sparsity". ``None``
    where no speed is estimated."""
    source: str
    """How the figures were had."""
    capability: tuple[int, int] | None = None
    """Compute capability of a CUDA device, major and minor. ``None``: of another device, on which
    the Triton kernels do not run."""


_A100 = "glennklockwood.com/garden/processors/A100; not checked against the datasheet"
_H100 = "glennklockwood.com/garden/processors/h100 (989.4); not checked against the datasheet"
_PAGES = "secondary pages; not checked against the datasheet"
_GB = 10**9
_ROWS = (
    Device("a100", "NVIDIA A100 SXM 80 GB", 80 * _GB, 312e12, _A100, (8, 0)),
    Device("a100-40gb", "NVIDIA A100 SXM 40 GB", 40 * _GB, 312e12, _A100, (8, 0)),
    Device("h100", "NVIDIA H100 SXM", 80 * _GB, 989.5e12, _H100, (9, 0)),
    Device("h200", "NVIDIA H200 SXM", 141 * _GB, 989.5e12, _PAGES, (9, 0)),
    Device("b200", "NVIDIA B200 (HGX)", 180 * _GB, 2_250e12, _PAGES, (10, 0)),
    Device(
        "mi300x", "AMD Instinct MI300X", 192 * _GB, 1_307.4e12,
        "memory: secondary pages; peak: from memory, a secondary page has about 1.3e15; "
        "not checked against the datasheet",
    ),
    Device("cpu", "CPU process on this machine", None, None, "asked; no speed is estimated"),
)  # fmt: skip
DEVICES = MappingProxyType({row.name: row for row in _ROWS})
"""Name to facts."""


def device(name: str) -> Device:
    """The facts of an accelerator.

    Args:
        name: A name from :data:`DEVICES`, in small or capital letters.

    Raises:
        ConfigError: No such device.
    """
    check_known("plan", "gpu", name.lower(), DEVICES)
    return DEVICES[name.lower()]


def check_positive(option: str, value: float | None, most: float = 1e12) -> None:
    """Refuse a number that is not above 0 and at most ``most``; ``None`` is not given.

    Raises:
        ConfigError: It is not; names the option.
    """
    if value is not None and not 0 < value <= most:
        raise ConfigError(f"plan: {option} must be above 0 and at most {most:g}, got {value:g}.")
