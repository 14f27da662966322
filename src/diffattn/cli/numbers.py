"""Lists of numbers as a user types them."""

from diffattn.errors import ConfigError


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
