"""Devices by name: memory, peak speed, and the measured share of the peak. Loads without torch."""

from dataclasses import dataclass
from math import log
from types import MappingProxyType

from diffattn.errors import ConfigError, check_known
from diffattn.models.config.attention_types import ATTENTION


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or this machine's CPU."""

    name: str
    product: str
    memory_bytes: int | None
    """The vendor's gigabytes, read as 10**9 bytes. Binary gigabytes would add about the memory
    that a driver keeps for itself. ``None``: this machine's memory, read when a run is planned."""
    peak_flops: float | None
    """FLOP/s of dense matrix products. For a GPU in bfloat16, half of the number "with sparsity".
    ``None``: a CPU's peak, measured when a run is planned."""
    capability: tuple[int, int] | None = None
    """Compute capability of a CUDA device, major and minor. ``None``: the device has no CUDA, and
    the Triton kernels were not tested on it."""


GPU_HERE = Device("here", "a GPU of this machine", None, None)
_GB = 10**9
# No peak was checked against a vendor's datasheet. A100, H100: glennklockwood.com/garden/processors
# (the H100 has 989.4 there). H200, B200: secondary pages. MI300X: memory from secondary pages, of
# which one has a peak of about 1.3e15.
_ROWS = (
    Device("a100", "NVIDIA A100 SXM 80 GB", 80 * _GB, 312e12, (8, 0)),
    Device("a100-40gb", "NVIDIA A100 SXM 40 GB", 40 * _GB, 312e12, (8, 0)),
    Device("h100", "NVIDIA H100 SXM", 80 * _GB, 989.5e12, (9, 0)),
    Device("h200", "NVIDIA H200 SXM", 141 * _GB, 989.5e12, (9, 0)),
    Device("b200", "NVIDIA B200 (HGX)", 180 * _GB, 2_250e12, (10, 0)),
    Device("mi300x", "AMD Instinct MI300X", 192 * _GB, 1_307.4e12),
    Device("cpu", "CPU process on this machine", None, None),
)
DEVICES = MappingProxyType({row.name: row for row in _ROWS})
"""Name to facts."""


def device(name: str) -> Device:
    """The facts of an accelerator in :data:`DEVICES`, named in small or capital letters."""
    check_known("plan", "gpu", name.lower(), DEVICES)
    return DEVICES[name.lower()]


_H100_RECORD = "measured on an H100, size 3b, 4,096 tokens per pass (benchmarks/results/h100.json)"
_CPU_RECORD = "measured on an AMD EPYC, size {} (benchmarks/results/cpu.json)"
_TYPES = ("softmax", "diff", "diff_v2", "shared_diff")
MEASURED: dict[tuple[str, str, int], tuple[str, tuple[float, ...]]] = {
    ("h100", "bfloat16", 3_072): (_H100_RECORD, (0.487, 0.403, 0.438)),
    ("cpu", "float32", 128): (_CPU_RECORD.format("laptop"), (0.509, 0.459, 0.415, 0.428)),
    ("cpu", "float32", 256): (_CPU_RECORD.format("study"), (0.671, 0.618, 0.563, 0.596)),
    ("cpu", "float32", 512): (_CPU_RECORD.format("wide"), (0.783, 0.766, 0.756, 0.759)),
    ("cpu", "bfloat16", 128): (_CPU_RECORD.format("laptop"), (0.303, 0.278, 0.246, 0.253)),
    ("cpu", "bfloat16", 256): (_CPU_RECORD.format("study"), (0.476, 0.449, 0.372, 0.414)),
    ("cpu", "bfloat16", 512): (_CPU_RECORD.format("wide"), (0.666, 0.639, 0.604, 0.627)),
}
"""Device, precision and hidden size -> record, and share of the peak for each of :data:`_TYPES`,
forward and backward. The H100 has no Shared DIFF. Softmax has its faster implementation."""


def measured_utilisation(
    device: Device, precision: str, attention_type: str, hidden_size: int
) -> tuple[float, str] | None:
    """The share of the peak that a type reached at the nearest size, and a phrase on its source.

    GPUs without a record take the H100's. Types without a record take that of DIFF V1, or of
    softmax if they have one map. Several types take the least. ``None``: neither CPUs for a CPU,
    nor GPUs for a GPU, were measured in this precision."""
    if "," in attention_type:
        names = sorted(set(attention_type.split(",")))
        of_types = [measured_utilisation(device, precision, name, hidden_size) for name in names]
        return min((x for x in of_types if x is not None), default=None)
    kind = "cpu" if device.name == "cpu" else "h100"
    sizes = [key for key in MEASURED if key[:2] == (kind, precision)]
    if not sizes:
        return None
    nearest = min(sizes, key=lambda key: abs(log(key[2] / hidden_size)))
    source, (*values,) = MEASURED[nearest]
    shares = dict(zip(_TYPES, values, strict=False))
    if device.name != kind:
        source += ", assumed for this device"
    if attention_type in shares:
        return shares[attention_type], source
    other = "softmax" if ATTENTION[attention_type].op == "softmax_attention" else "diff"
    return shares[other], f"{source}; {attention_type} is assumed to reach that of {other}"


def check_positive(option: str, value: float | None, most: float = 1e12) -> None:
    """Refuse a number that is not above 0 and at most ``most``; ``None`` is not given."""
    if value is not None and not 0 < value <= most:
        raise ConfigError(f"plan: {option} must be above 0 and at most {most:g}, got {value:g}.")
