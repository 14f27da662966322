"""Available main memory, and an early error if a task needs more."""

import os
import resource
from collections.abc import Mapping
from pathlib import Path

from diffattn.errors import ConfigError


def require_memory(where: str, parts: Mapping[str, int], *, available: int | None = None) -> None:
    """Raise a ConfigError if less memory is ``available`` than ``parts``, lower bounds of all that
    is in memory at the same time, by name, in bytes."""
    available = available_bytes() if available is None else available
    needed = sum(parts.values())
    if available is None or needed <= available:
        return
    name, most = max(parts.items(), key=lambda part: part[1])
    raise ConfigError(
        f"{where}: memory must hold {format_bytes(needed)} or more "
        f"({name}: {format_bytes(most)}), got {format_bytes(available)} available. "
        "Choose smaller sizes."
    )


def available_bytes() -> int | None:
    """Main memory that this process can still get, in bytes; ``None`` if it is unknown."""
    bounds = [_machine_bytes(), _container_bytes(), _process_bytes()]
    return min((bound for bound in bounds if bound is not None), default=None)


def _machine_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        return 1024 * (kib["MemAvailable"] + kib["SwapFree"])
    except (OSError, KeyError, ValueError, IndexError):  # another system than Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _container_bytes() -> int | None:
    """Limit of cgroup v2 or v1. Its use is not subtracted: it includes droppable file caches."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return int(Path(path).read_text())
        except (OSError, ValueError):  # none, or "max"
            continue
    return None


def _process_bytes() -> int | None:
    """Bytes that the limit ``ulimit -v`` still leaves."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        used = 0
    return max(0, limit - used)


def format_bytes(count: int) -> str:
    """A number of bytes with a unit, for example ``"1.5 GB"``."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}" if count < 10**18 else f"{count // size:,} {unit}"
    return f"{count:,} bytes"
