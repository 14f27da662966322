"""Models by label, as a user names several of them. Needs no torch."""

from collections.abc import Sequence
from pathlib import Path

from diffattn.errors import ConfigError


def labelled(models: Sequence[str], *, option: str = "--model") -> dict[str, str]:
    """``[LABEL=]PATH`` to paths by label; a label is by default the last part of the path."""
    paths: dict[str, str] = {}
    for text in models:
        label, separator, path = text.partition("=")
        if not separator or Path(text).exists():
            label, path = Path(text).name, text
        if not label or not path or label.startswith(".") or "/" in label:
            raise ConfigError(f"{option}: must be [LABEL=]PATH, LABEL a folder name, got {text!r}.")
        if label in paths:
            raise ConfigError(
                f"{option}: labels must differ, got {label!r} twice. Name them: LABEL=PATH."
            )
        paths[label] = path
    if not paths:
        raise ConfigError(f"{option}: one model or more is needed, got none.")
    return paths
