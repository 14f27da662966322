"""Settings hold the types that they declare."""

import math
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

from diffattn.errors import ConfigError
from diffattn.models.config.known_names import check_known
from diffattn.models.config.numbers import in_float32


def check_types(config: Any) -> None:
    """Refuse a field that does not hold its declared type: what a user types need not.

    Args:
        config: A dataclass of settings: numbers, texts, truth values and choices, or ``None``.

    Raises:
        ConfigError: A field holds another type, a choice that there is not, or a number that is
            not finite or too large.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        if get_origin(field.type) is Literal:
            check_known(type(config).__name__, field.name, value, get_args(field.type))
            continue
        kinds = get_args(field.type) or (field.type,)
        allowed = (*kinds, int) if float in kinds else kinds
        where = f"{type(config).__name__}: {field.name} must be"
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise ConfigError(f"{where} {names}, got {value!r}.")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{where} finite, got {value}.")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ConfigError(f"{where} below 2**63 in size, got {value}.")
        if isinstance(value, float) and not in_float32(value):
            raise ConfigError(f"{where} a number that float32 can hold, got {value}.")
        if isinstance(value, str) and value.encode("utf-8", "replace").decode() != value:
            raise ConfigError(f"{where} valid UTF-8, got {value!r}.")
