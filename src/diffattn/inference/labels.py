"""Names that a user gives to models. Needs no torch."""

from collections.abc import Sequence
from pathlib import Path

from diffattn.errors import ConfigError


def labelled(models: Sequence[str], where: str = "--model") -> dict[str, str]:
    """``[LABEL=]PATH`` to paths by label; a label is by default the last part of the path.

    Args:
        models: As the user typed them.
        where: The option or argument, first in messages.

    Raises:
        ConfigError: A label is missing, given twice, or no folder name.
    """
    paths: dict[str, str] = {}
    for text in models:
        label, separator, path = text.partition("=")
        if not separator or Path(text).exists():
            label, path = Path(text).name, text
        if not label or not path or label.startswith(".") or "/" in label:
            raise ConfigError(f"{where}: must be [LABEL=]PATH, LABEL a folder name, got {text!r}.")
        if label in paths:
            raise ConfigError(
                f"{where}: labels must differ, got {label!r} twice. Name them: LABEL=PATH."
            )
        paths[label] = path
    if not paths:
        raise ConfigError(f"{where}: one model or more is needed, got none.")
    return paths
