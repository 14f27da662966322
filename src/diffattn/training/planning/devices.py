"""Accelerators by name: memory and peak of bfloat16 products. Loads without torch."""

from dataclasses import dataclass
from types import MappingProxyType

from diffattn.errors import ConfigError
from diffattn.models.known_names import check_known


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One accelerator as its vendor's datasheet states it."""

    name: str
    product: str
    memory_bytes: int | None
    """Gigabytes of the datasheet read as 10**9 bytes: what a driver keeps for itself is about what
    binary gigabytes would add. ``None``: of this machine, asked when it is planned for."""
    bfloat16_flops: float | None
    """Peak of dense matrix products per second: half of what is printed "with sparsity". ``None``
    where there is no datasheet to cite."""
    source: str


_NVIDIA = "NVIDIA {} datasheet"
_ROWS = (
    Device(
        name="a100", product="NVIDIA A100 SXM 80 GB", memory_bytes=80 * 10**9,
        bfloat16_flops=312e12, source=_NVIDIA.format("A100 Tensor Core GPU"),
    ),
    Device(
        name="a100-40gb", product="NVIDIA A100 SXM 40 GB", memory_bytes=40 * 10**9,
        bfloat16_flops=312e12, source=_NVIDIA.format("A100 Tensor Core GPU"),
    ),
    Device(
        name="h100", product="NVIDIA H100 SXM", memory_bytes=80 * 10**9,
        bfloat16_flops=989.5e12, source=_NVIDIA.format("H100 Tensor Core GPU"),
    ),
    Device(
        name="h200", product="NVIDIA H200 SXM", memory_bytes=141 * 10**9,
        bfloat16_flops=989.5e12, source=_NVIDIA.format("H200 Tensor Core GPU"),
    ),
    Device(
        name="b200", product="NVIDIA B200 (HGX)", memory_bytes=180 * 10**9,
        bfloat16_flops=2_250e12, source=_NVIDIA.format("Blackwell (HGX B200)"),
    ),
    Device(
        name="mi300x", product="AMD Instinct MI300X", memory_bytes=192 * 10**9,
        bfloat16_flops=1_307.4e12, source="AMD Instinct MI300X datasheet",
    ),
    Device(
        name="cpu", product="this machine's main memory", memory_bytes=None,
        bfloat16_flops=None, source="no datasheet: no speed is estimated",
    ),
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
