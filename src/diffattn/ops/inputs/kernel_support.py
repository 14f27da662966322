"""Where the Triton kernels run, and for which inputs; loads none of them, nor torch."""

from __future__ import annotations

import importlib.util
import os
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

TRITON_VERSIONS = ((3, 6), (3, 9))
"""First and last minor version that is accepted; :data:`TESTED` says which ones a GPU has run."""
LEAST_CAPABILITY = (8, 0)
"""The first compute capability with bfloat16 matrix products and asynchronous copies."""
HOPPER_CAPABILITY = (9, 0)
HEAD_DIMS = (32, 64, 96, 128)  # of a query or key
DTYPES = ("bfloat16", "float16", "float32")
MAX_DECODE_QUERIES = 16  # in one call of the backend triton_decode
VARIABLE = "DIFFATTN_UNVERIFIED_KERNELS"
"""Environment variable for GPUs on which the kernels were not tested. 0: ``auto`` does not choose
the kernels. 1: ``auto`` chooses them without a warning, and :mod:`diffattn.ops.layer_parts` uses
its kernels, which no GPU has run. Not set: ``auto`` chooses them and warns once."""
TESTED: dict[tuple[int, int], tuple[str, ...]] = {(9, 0): ("3.6",)}
"""Compute capability -> minor versions of triton whose kernels passed all tests there. The runs are
in ``docs/reference/verified_devices.md``."""
_CAPABILITIES: dict[int, tuple[int, int]] = {}
"""Device index -> compute capability. Kept, because asking is slow and every call needs it."""
HOPPER_TESTED: dict[str, tuple[tuple[int, int], ...]] = {"3.6": ((64, 128), (128, 256), (64, 64))}
"""Minor version of triton -> (head_dim, value_dim) at which ``hopper`` passed tests on an H200."""
HOPPER_BACKWARD_TESTED: dict[str, tuple[tuple[int, int], ...]] = {}
"""The same for its backward pass. No GPU has run that, so ``auto`` takes the backward of
``triton``."""
BY_MAP = "DIFFATTN_HOPPER_BY_MAP"
"""Environment variable. 1: forward by ``ops/hopper/by_map.py``, which no GPU has run."""
_WARNED: set[tuple[int, int]] = set()  # compute capabilities
_FALSE = ("0", "false", "off", "no", "n")
_TRUE = ("1", "true", "on", "yes", "y")
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in _TRUE
"""Triton reads it when a kernel is defined, thus we read it at import."""


def why_unavailable() -> str | None:
    """Why the Triton kernels cannot run on this machine, or ``None``."""
    if _WRONG_VERSION:
        return _WRONG_VERSION
    if _INTERPRETED or _CAPABILITIES:  # a CUDA GPU was there before
        return None
    import torch

    if torch.version.hip:
        return "needs a CUDA device, got ROCm"
    if not torch.cuda.is_available():
        return "needs a CUDA device, or TRITON_INTERPRET=1 set before Python starts, got neither"
    return None


def compute_capability(device: torch.device) -> tuple[int, int] | None:
    """Major and minor of the GPU that ``device`` names, ``None`` if it is no CUDA GPU."""
    if device.type != "cuda":
        return None
    index = device.index
    if index in _CAPABILITIES:
        return _CAPABILITIES[index]
    import torch

    # ROCm has device type "cuda" and other numbers. A fake tensor may name a GPU that is missing.
    if torch.version.hip or not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(device)  # torch.compile makes it a constant
    capability = (properties.major, properties.minor)
    if index is not None:  # without an index: the current device, which changes
        _CAPABILITIES[index] = capability
    return capability


def auto_says(capability: tuple[int, int]) -> str:
    """Say whether ``auto`` chooses the kernels on a GPU of this capability, and why."""
    reason = why_unavailable()
    if reason is None and capability < LEAST_CAPABILITY:
        reason = f"needs compute capability {dotted(LEAST_CAPABILITY)} or above"
    if reason is not None:
        return f"auto cannot choose the Triton kernels: backend 'triton' {reason}."
    reason = why_untested(capability)
    if reason is not None and _setting() in _FALSE:
        return f"auto does not choose the Triton kernels: {reason}, and {VARIABLE} is 0."
    if reason is not None:
        return f"auto chooses the Triton kernels: {reason}. {VARIABLE}=0 does without them."
    return (
        f"auto chooses the Triton kernels: all tests passed on compute capability "
        f"{dotted(capability)} under triton {minor_of(_INSTALLED)}."
    )


def takes_kernels(capability: tuple[int, int] | None) -> bool:
    """Whether ``auto`` may choose the kernels on a GPU; warns once if it is an untested one."""
    reason = why_untested(capability)
    if capability is None or reason is None:
        return reason is None
    if capability < LEAST_CAPABILITY or _setting() in _FALSE:
        return False
    import torch

    if torch.compiler.is_compiling() or capability in _WARNED:
        return True
    _WARNED.add(capability)
    if not untested_are_wanted():
        warnings.warn(
            f"diffattn: auto chooses the Triton kernels: {reason}. 'diffattn check' compares them "
            f"with the definition on this GPU. {VARIABLE}=1 silences this warning, 0 does without "
            "them.",
            stacklevel=2,
        )
    return True


def untested_are_wanted() -> bool:
    """Whether the user asks for kernels that no GPU has run."""
    return _setting() in _TRUE


def _setting() -> str:
    return os.environ.get(VARIABLE, "").lower()


def takes_hopper(
    tested: dict[str, tuple[tuple[int, int], ...]], head_dim: int, value_dim: int
) -> bool:
    """Whether these widths are in a table of tests of ``hopper`` for the installed triton."""
    return (head_dim, value_dim) in tested.get(minor_of(_INSTALLED), ())


def why_untested(capability: tuple[int, int] | None) -> str | None:
    """Why the kernels count as untested on a GPU of this capability, or ``None``.

    Tests tell only about the machine code that their minor version of triton makes. Without triton,
    any version counts.
    """
    if capability is None:
        return "its compute capability is unknown"
    versions = TESTED.get(capability, ())
    if versions and (_INSTALLED is None or minor_of(_INSTALLED) in versions):
        return None
    reason = f"they were not tested on compute capability {dotted(capability)}"
    if versions:
        reason += f" under triton {_INSTALLED}, only under {', '.join(versions)}"
    return reason


def dotted(capability: tuple[int, int] | None) -> str:
    """A compute capability in words."""
    return "none" if capability is None else f"{capability[0]}.{capability[1]}"


def installed_version() -> str | None:
    """The version of triton, or ``None``."""
    try:
        # A blocked import, or a module without package metadata, counts as missing.
        return version("triton") if importlib.util.find_spec("triton") else None
    except (ModuleNotFoundError, PackageNotFoundError):
        return None


def why_refused(installed: str | None) -> str | None:
    """Why a version of triton cannot be used, or ``None``."""
    (major, first), (_, last) = TRITON_VERSIONS
    needs = f"needs triton {major}.{first} to {major}.{last}"
    if installed is None:
        return f"{needs}, which is not installed"
    if not (major, first) <= tuple(map(int, minor_of(installed).split("."))) <= (major, last):
        return f"{needs}, got {installed}"
    return None


def minor_of(version: str | None) -> str:
    """Major and minor of a version: "3.7" for "3.7.1"."""
    return ".".join((version or "").split(".")[:2])


_INSTALLED = installed_version()
"""Read once: every call needs it and it searches the file system. torch.compile would warn of a
``functools.cache``."""
_WRONG_VERSION = why_refused(_INSTALLED)


def devices() -> tuple[str, ...]:
    """Device types that the kernels accept: "meta" for shapes alone, "cpu" if interpreted."""
    return ("cpu", "cuda", "meta") if _INTERPRETED else ("cuda", "meta")


def accepts_widths(head_dim: int, value_dim: int) -> bool:
    """Whether the Triton kernels accept these widths of a query and of a value head."""
    return head_dim in HEAD_DIMS and value_dim in (head_dim, 2 * head_dim)
