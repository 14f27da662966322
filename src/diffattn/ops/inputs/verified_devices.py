"""GPUs that the kernels were tested on: what ``auto`` asks before it chooses a kernel.

The list is package data beside this file, written by whatever runs the tests on a GPU. Read once,
without torch.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, ConfigError, shown

PATH = Path(__file__).with_name("verified_devices.json")
"""The package's own list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedDevice:
    """One run of the kernels' tests on one GPU, passed or not.

    Raises:
        ConfigError: A field is not what its description says.
    """

    capability: tuple[int, int]
    """Compute capability, major and minor: what tells one family of GPUs from another."""
    device: str
    """Name of the GPU as its driver gives it."""
    torch: str
    """Version."""
    triton: str
    """Version: another minor one makes other machine code, of which this run says nothing."""
    ptxas: str
    """Version of the assembler that triton called."""
    commit: str
    """Of diffattn, 7 to 40 hexadecimal digits."""
    date: str
    """Day of the run, ``YYYY-MM-DD``."""
    passed: int
    """Number of tests."""
    failed: int
    """Number of tests; errors count."""
    skipped: int
    """Number of tests."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "capability", _pair(self.capability))
        for name in ("device", "torch", "triton", "ptxas", "commit", "date"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ConfigError(f"VerifiedDevice: {name} must be text, got {shown(value)}.")
        if not re.match(r"\d+\.\d+", self.triton):
            raise ConfigError(
                f"VerifiedDevice: triton must be a version, got {shown(self.triton)}."
            )
        if not (7 <= len(self.commit) <= 40 and set(self.commit) <= set("0123456789abcdef")):
            raise ConfigError(
                "VerifiedDevice: commit must be 7 to 40 hexadecimal digits, "
                f"got {shown(self.commit)}."
            )
        try:
            right = date.fromisoformat(self.date).isoformat() == self.date
        except ValueError:
            right = False
        if not right:
            raise ConfigError(f"VerifiedDevice: date must be YYYY-MM-DD, got {shown(self.date)}.")
        for name in ("passed", "failed", "skipped"):
            if not _is_count(getattr(self, name)):
                raise ConfigError(
                    f"VerifiedDevice: {name} must be a number of tests, "
                    f"got {shown(getattr(self, name))}."
                )

    @property
    def verified(self) -> bool:
        """Whether tests ran and none failed."""
        return self.passed > 0 and self.failed == 0


def read(path: Path = PATH) -> tuple[VerifiedDevice, ...]:
    """The runs in a file, the older ones first.

    Args:
        path: Default: the package's own list.

    Raises:
        CheckpointError: The file is missing, damaged, or holds something else.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: must hold a list of tested GPUs, got {error}.") from error
    if not isinstance(entries, list):
        raise CheckpointError(
            f"{path}: must hold a list of tested GPUs, got {type(entries).__name__}."
        )
    return _sorted(_entry(path, entry) for entry in entries)


def write(devices: Iterable[VerifiedDevice], path: Path = PATH) -> None:
    """Write the runs to a file, one a line, the older ones first.

    Args:
        devices: All runs that the file is to hold.
        path: Default: the package's own list.
    """
    lines = ",\n".join(f"  {json.dumps(asdict(device))}" for device in _sorted(devices))
    path.write_text(f"[\n{lines}\n]\n" if lines else "[]\n", encoding="utf-8")


def latest(
    capability: tuple[int, int], triton: str | None, devices: Iterable[VerifiedDevice]
) -> VerifiedDevice | None:
    """The last run on a GPU of this compute capability under this minor triton, or ``None``.

    Args:
        capability: Major and minor.
        triton: A version, of which major and minor count, or ``None``: no run is under none.
        devices: The older ones first, as :func:`read` gives them.
    """
    wanted = None if triton is None else minor_of(triton)
    runs = [
        device
        for device in devices
        if device.capability == capability and minor_of(device.triton) == wanted
    ]
    return runs[-1] if runs else None


def minor_of(version: str) -> tuple[int, int]:
    """Major and minor of a version such as ``"3.7.1"``."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _entry(path: Path, entry: Any) -> VerifiedDevice:
    names = [field.name for field in fields(VerifiedDevice)]
    if not isinstance(entry, dict) or sorted(entry) != sorted(names):
        got = ", ".join(sorted(entry)) if isinstance(entry, dict) else type(entry).__name__
        raise CheckpointError(f"{path}: an entry must have {', '.join(names)}, got {got}.")
    try:
        return VerifiedDevice(**entry)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _sorted(devices: Iterable[VerifiedDevice]) -> tuple[VerifiedDevice, ...]:
    """By date; runs of one day keep their order."""
    return tuple(sorted(devices, key=lambda device: device.date))


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_count, value)):
        return (value[0], value[1])
    raise ConfigError(f"VerifiedDevice: capability must be (major, minor), got {shown(value)}.")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
