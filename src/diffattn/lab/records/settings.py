"""``KEY=VALUE`` settings as a user types them: the one parser of every command."""

import json
import math
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

from diffattn.errors import ConfigError, did_you_mean
from diffattn.lab.records.fields import checked_setting

LARGEST_COUNT = 10_000_000
"""Largest whole number in a protocol's settings: of items, tokens, documents and so on."""
LARGEST_SEED = 2**32 - 1


def read_settings(
    settings: Iterable[str],
    kinds: Mapping[str, Any],
    *,
    option: str = "--set",
    form: str = "KEY=VALUE",
) -> dict[str, Any]:
    """Keys and values in the order given; the last of equal keys counts.

    A value is parsed as JSON (``2e-3``, ``true``, ``null``, ``[0.2, 0.3]``), or else is text. If a
    setting takes text, all JSON but ``null`` stays text: a folder may be called 2024. Lists become
    tuples, and whole numbers floats, if the annotation in ``kinds`` says so.
    """
    values: dict[str, Any] = {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        key = key.strip()
        if not separator:
            raise ConfigError(f"{option}: must be {form}, got {setting!r}.")
        if key not in kinds:
            near = did_you_mean(key, kinds) or f" Keys: {', '.join(kinds)}."
            raise ConfigError(f"{option}: unknown key {key!r}.{near}")
        values[key] = _value(f"{option}: {key}", kinds[key], text.strip())
    return values


def require_counts(key: str, name: str, value: Any) -> None:
    """Refuse whole numbers that are too large to count anything, or to seed a generator.

    ``value`` is a number, or nested lists and mappings of numbers; other values pass. ``name`` is
    that of the field: ``"seed"`` has another limit.
    """
    if isinstance(value, dict):
        for inner, item in value.items():
            require_counts(key, inner, item)
    elif isinstance(value, tuple | list):
        for item in value:
            require_counts(key, name, item)
    elif isinstance(value, int):
        most = LARGEST_SEED if name == "seed" else LARGEST_COUNT
        if not 0 <= value <= most:
            raise ConfigError(f"--set: {key} must be from 0 to {most}, got {value}.")


def _value(where: str, kind: Any, text: str) -> Any:
    """A value as JSON, else as text, that fits its annotation."""

    def finite(number: str) -> float:
        if math.isfinite(float(number)):
            return float(number)
        raise ConfigError(f"{where} must be finite, got {number}.")

    def whole(number: str) -> int:
        if len(number) > 20 or abs(int(number)) >= 2**63:
            raise ConfigError(f"{where} must be below 2**63 in size, got {number[:40]}.")
        return int(number)

    try:
        value = json.loads(text, parse_float=finite, parse_constant=finite, parse_int=whole)
    except json.JSONDecodeError:
        value = text
    except RecursionError as error:
        raise ConfigError(f"{where} must not be nested so deeply, got {text[:40]}.") from error
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if str in choices and value is not None:
        if not text:
            raise ConfigError(f"{where} must not be empty.")
        return value if isinstance(value, str) else text
    spelling = {"True": "true", "False": "false", "None": "null"}.get(text)
    try:
        value = checked_setting(kind, value, where)
    except ConfigError as error:
        raise ConfigError(f"{error} Did you mean {spelling}?" if spelling else str(error)) from None
    is_whole = type(value) is int and float in choices and int not in choices
    return float(value) if is_whole else value
