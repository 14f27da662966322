"""Resident memory of this process, as records of costs give it."""

import ctypes
import gc
import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def highest() -> int:
    """Most bytes held at once since :func:`reset_highest`.

    Where nothing sets the mark back, and outside Linux, that of the process so far.
    """
    if _STATUS.exists():
        return resident("VmHWM")
    value = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return value if sys.platform == "darwin" else 1024 * value


def reset_highest() -> bool:
    """Set the mark back to what is held now; whether that is possible here (on Linux)."""
    try:
        _CLEAR.write_text("5", encoding="ascii")
    except OSError:
        return False
    return _STATUS.exists()


def resident(key: str) -> int:
    """Bytes that Linux gives for a process under this name, such as ``VmRSS``."""
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise AssertionError(f"{_STATUS} must name {key}")


def give_back() -> None:
    """Return freed memory to the system, where the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
