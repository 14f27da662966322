"""Check a name against those that are known."""

from collections.abc import Iterable

from diffattn.errors import ConfigError, did_you_mean, short


def check_known(where: str, kind: str, name: str, known: Iterable[str]) -> None:
    """Raise a ConfigError unless ``name``, the value of the setting ``kind``, is in ``known``."""
    known = tuple(known)
    if name not in known:
        hint = did_you_mean(name, known) if isinstance(name, str) else ""
        raise ConfigError(
            f"{where}: {kind} must be in {{{', '.join(known)}}}, got {short(name)}.{hint}"
        )
