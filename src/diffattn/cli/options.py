"""Options that several commands have, and how their values are read."""

from typing import Annotated

import typer

from diffattn.errors import ConfigError

VerifyOption = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify", help="compare files with their hashes first (a second per GB)"
    ),
]


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Read ``0,1,2``.

    Raises:
        ConfigError: Not whole numbers; names the option.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"{option}: must be whole numbers separated by commas, got {text!r}."
        ) from error
