"""Every error that diffattn raises on purpose, and the hint where a name is misspelt."""

from collections.abc import Iterable


class DiffAttnError(Exception):
    """Base of all errors raised on purpose: catch this one to catch them all."""


class ShapeError(DiffAttnError, ValueError):
    """A tensor does not have the documented shape, dtype or device."""


class ConfigError(DiffAttnError, ValueError):
    """A setting is impossible, unknown, or contradicts another one."""


class CheckpointError(DiffAttnError):
    """Files on disk are missing, foreign, damaged, or of another run."""


class BackendError(DiffAttnError):
    """The named backend cannot run these inputs on this machine."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, or nothing.

    Args:
        name: What was asked for.
        known: All names that exist.
    """
    from difflib import get_close_matches  # slow to import, and needed for errors only

    known = list(known)
    near = get_close_matches(name, known, n=1) or [k for k in known if name and name in k]
    return f" Did you mean {near[0]!r}?" if near else ""
