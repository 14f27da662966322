"""One check for every name a caller can misspell."""

from collections.abc import Iterable
from difflib import get_close_matches

from diffattn.errors import ConfigError


def check_known(where: str, what: str, name: str, known: Iterable[str]) -> None:
    """Raise ConfigError with the known names, and the nearest one, unless ``name`` is known.

    Args:
        where: Who asks, first in the message.
        what: What kind of name it is.
        name: The caller's.
        known: All that exist.
    """
    known = tuple(known)
    if name in known:
        return
    near = get_close_matches(name, known, n=1) or [k for k in known if name and name in k]
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"{where}: {what} must be in {{{', '.join(known)}}}, got {name!r}.{hint}")
