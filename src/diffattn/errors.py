"""The errors that diffattn raises on purpose, and helpers for their messages."""

from collections.abc import Iterable
from reprlib import Repr

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60
short = _SHORT.repr
"""``repr`` of a value for a message; strings are cut to 60 characters."""


class DiffAttnError(Exception):
    """Base class of all errors raised on purpose."""


class ShapeError(DiffAttnError, ValueError):
    """A tensor does not have the documented shape, dtype or device."""


class ConfigError(DiffAttnError, ValueError):
    """A setting is impossible, unknown, or contradicts another one."""


class CheckpointError(DiffAttnError):
    """Files on disk are missing, damaged, of another format, or of another run."""


class BackendError(DiffAttnError):
    """The named backend cannot run these inputs on this machine."""


def shown(value: object) -> str:
    """A wrong value for a message: numbers and strings cut to 60 characters, else the type."""
    plain = value is None or isinstance(value, bool | float | str)
    if plain or (isinstance(value, int) and value.bit_length() < 64):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:60]}..."
    return f"an object of type {type(value).__name__}"


def first_line(error: BaseException) -> str:
    """First line of another package's error message, without a full stop, for our message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(" .:")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """End of a message about an unknown name: ``" Did you mean 'x'?"``, or ``""``.

    Initials find names too: ``lr`` finds ``learning_rate``.
    """
    from difflib import get_close_matches  # slow to import, and needed for errors only

    known, field = list(known), name.rpartition(".")[2]
    near = [k for k in known if field == "".join(w[:1] for w in k.rpartition(".")[2].split("_"))]
    near = near or get_close_matches(name, known, n=1) or [k for k in known if name and name in k]
    return f" Did you mean {near[0]!r}?" if near else ""


def check_known(where: str, kind: str, name: str, known: Iterable[str]) -> None:
    """Raise a ConfigError unless ``name``, the value of the setting ``kind``, is in ``known``."""
    known = tuple(known)
    if name not in known:
        hint = did_you_mean(name, known) if isinstance(name, str) else ""
        raise ConfigError(
            f"{where}: {kind} must be in {{{', '.join(known)}}}, got {short(name)}.{hint}"
        )
