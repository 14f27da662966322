"""One check for every name a caller can misspell."""

from collections.abc import Iterable

from diffattn.errors import ConfigError, did_you_mean, short


def check_known(where: str, kind: str, name: str, known: Iterable[str]) -> None:
    """Raise a ConfigError with the known names, and the nearest, unless ``name`` is known.

    ``where``, the caller, begins the message.
    """
    known = tuple(known)
    if name not in known:
        hint = did_you_mean(name, known) if isinstance(name, str) else ""
        raise ConfigError(
            f"{where}: {kind} must be in {{{', '.join(known)}}}, got {short(name)}.{hint}"
        )
