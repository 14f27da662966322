"""Resident memory of this process, as records of costs give it."""

import ctypes
import gc
import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def highest() -> int:
    """Peak of resident bytes since :func:`reset_highest`; outside Linux since process start."""
    if _STATUS.exists():
        return resident("VmHWM")
    value = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return value if sys.platform == "darwin" else 1024 * value


def reset_highest() -> bool:
    """Start a new peak at the bytes held now; returns whether the system can do this (Linux)."""
    try:
        _CLEAR.write_text("5", encoding="ascii")
    except OSError:
        return False
    return _STATUS.exists()


def resident(key: str) -> int:
    """Bytes of an entry in ``/proc/self/status``, such as ``VmRSS``."""
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def give_back() -> None:
    """Return freed memory to the system, where the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
