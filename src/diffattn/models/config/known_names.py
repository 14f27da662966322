"""One check for every name a caller can misspell."""

from collections.abc import Iterable

from diffattn.errors import ConfigError, did_you_mean, short


def check_known(where: str, what: str, name: str, known: Iterable[str]) -> None:
    """Raise ConfigError with the known names, and the nearest one, unless ``name`` is known.

    Args:
        where: Who asks, first in the message.
        what: What kind of name it is.
        name: The caller's.
        known: All that exist.
    """
    known = tuple(known)
    if name not in known:
        hint = did_you_mean(name, known) if isinstance(name, str) else ""
        raise ConfigError(
            f"{where}: {what} must be in {{{', '.join(known)}}}, got {short(name)}.{hint}"
        )
