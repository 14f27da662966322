"""``KEY=VALUE`` settings as a user types them."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from diffattn.errors import ConfigError, did_you_mean


def read_settings(
    settings: Iterable[str], known: Sequence[str], *, form: str = "KEY=VALUE"
) -> dict[str, str]:
    """Keys and the text of their values, in the order given; the last of equal keys counts.

    Args:
        settings: What stood after ``--set``.
        known: All keys there are.
        form: What a setting must look like, for messages.

    Raises:
        ConfigError: No ``=``, or an unknown key.
    """
    values: dict[str, str] = {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        key = key.strip()
        if not separator:
            raise ConfigError(f"--set: must be {form}, got {setting!r}.")
        if key not in known:
            near = did_you_mean(key, known) or f" Keys: {', '.join(known)}."
            raise ConfigError(f"--set: unknown key {key!r}.{near}")
        values[key] = text.strip()
    return values


def parse_value(key: str, text: str) -> Any:
    """A value as JSON (``2e-3``, ``true``, ``null``, ``[0.2, 0.3]``), else as text.

    Args:
        key: Of the setting, for messages.
        text: Its value.

    Raises:
        ConfigError: A number that is not finite or beyond 64 bits, or lists nested too deeply.
    """

    def finite(number: str) -> float:
        if math.isfinite(float(number)):
            return float(number)
        raise ConfigError(f"--set: {key} must be finite, got {number}.")

    def whole(number: str) -> int:
        if len(number) > 20 or abs(int(number)) >= 2**63:
            raise ConfigError(f"--set: {key} must be below 2**63 in size, got {number[:40]}.")
        return int(number)

    try:
        return json.loads(text, parse_float=finite, parse_constant=finite, parse_int=whole)
    except json.JSONDecodeError:
        return text
    except RecursionError as error:
        raise ConfigError(f"--set: {key} must not be nested so deeply, got {text[:40]}.") from error
