"""Where the Triton kernels run, and for which inputs; loads none of them, nor torch."""

import functools
import importlib.util
import os
from importlib.metadata import PackageNotFoundError, version

TRITON_VERSIONS = ((3, 6), (3, 9))
"""First and last minor version the kernels are tested with."""
HEAD_DIMS = (32, 64, 96, 128)
DTYPES = ("bfloat16", "float16", "float32")
MAX_DECODE_QUERIES = 16


def available() -> str | None:
    """Why the Triton kernels cannot run on this machine, or ``None``."""
    (major, first), (_, last) = TRITON_VERSIONS
    wanted = f"needs triton {major}.{first} to {major}.{last}"
    installed = installed_version()
    if installed is None:
        return f"{wanted}, which is not installed"
    numbers = tuple(int(part) for part in installed.split(".")[:2])
    if not (major, first) <= numbers <= (major, last):
        return f"{wanted}, got {installed}"
    import torch

    if not (_interpreted() or torch.cuda.is_available()):
        return "needs a CUDA device, or TRITON_INTERPRET=1 set before Python starts, got neither"
    return None


@functools.cache  # asked on every call, and a search of the file system each time
def installed_version() -> str | None:
    """The version of triton, or ``None``."""
    try:
        # A module that is blocked, or there without its package, counts as missing.
        return version("triton") if importlib.util.find_spec("triton") else None
    except (ModuleNotFoundError, PackageNotFoundError):
        return None


def devices() -> tuple[str, ...]:
    """Device types the kernels take here: CPU tensors only in Triton's interpreter."""
    return ("cpu", "cuda", "meta") if _interpreted() else ("cuda", "meta")


def accepts_widths(head_dim: int, value_dim: int) -> bool:
    """Whether the kernels take these widths."""
    return head_dim in HEAD_DIMS and value_dim in (head_dim, 2 * head_dim)


def hopper_available() -> str | None:
    """Why the Hopper kernel cannot run on this machine, or ``None``."""
    missing = available()
    if missing:
        return missing
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        return "needs a CUDA device of compute capability 9.0"
    return None


def hopper_accepts_widths(head_dim: int, value_dim: int) -> bool:
    """Whether the Hopper kernel takes these widths."""
    return head_dim in (64, 128) and value_dim in (head_dim, 2 * head_dim)


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")
