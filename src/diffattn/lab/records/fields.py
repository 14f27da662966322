"""Check values against annotations: fields of records on disk, and ``KEY=VALUE`` of a user."""

import contextlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from diffattn.errors import CheckpointError, ConfigError, did_you_mean, short
from diffattn.files.io import read_record, write_json

Record = TypeVar("Record")

_DEEPEST = 64
"""Levels of lists and objects; the standard library writes and shows values recursively."""
_LARGEST = 1e305
"""Largest absolute value of a number. Perplexities reach e^700. Percentages and sums of larger
numbers would overflow a float."""
_SMALLEST = 2.0**-126
"""The smallest normal number of float32."""
LARGEST_COUNT = 10_000_000
"""Largest whole number in a protocol's settings: of items, tokens, documents and so on."""
_LARGEST_SEED = 2**32 - 1
_WORDS: dict[Any, str] = {
    str: "text",
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    type(None): "null",
    list: "a list",
    tuple: "a list",
    dict: "an object",
}
_PLAIN = {list: list[Any], dict: dict[str, Any], float: float, int: int}
"""Type of a value -> annotation that it must fulfil where any value is allowed."""


@dataclass(frozen=True, slots=True)
class AtLeast:
    """In ``Annotated``: the smallest number, or the fewest entries of a list."""

    least: float


@dataclass(frozen=True, slots=True)
class AtMost:
    """In ``Annotated``: the largest number."""

    most: int


Probability = Annotated[float, AtLeast(0), AtMost(1)]


class _Fault(Exception):
    """A fault of a value, and its ``place`` in the file as in ``.key[0]``."""

    place = ""


def checked(kind: type[Record], value: Any, where: str) -> Record:
    """Check a value from the file ``where``; objects become dataclasses if ``kind`` is one.

    ``kind`` is a dataclass, which allows no further keys; a ``TypedDict``, which allows further
    keys with any JSON values; or an annotation of one of their fields. ``float`` means a finite
    number, whole or not. The error names the place of the first value that does not fit.
    """
    try:
        made: Record = _made(kind, value, 0)
    except _Fault as fault:
        place = fault.place.removeprefix(".")
        raise CheckpointError(f"{where}: {place}{' ' if place else ''}{fault}.") from None
    return made


class FileRecord:
    """A dataclass that is stored as one JSON file, with a kind and a schema version."""

    FILE = ""
    """Name of the file in its folder. Empty: ``path`` names the file, not the folder."""
    KIND = ""
    SCHEMA = 1

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all. ``path``: its folder, or the file; see ``FILE``."""
        record: Any = self
        head = {"schema": self.SCHEMA, "kind": self.KIND}
        write_json(Path(path) / self.FILE, head | asdict(record))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file; refuse it if it is damaged, or of another kind or schema version."""
        file = Path(path) / cls.FILE
        return read_record(file, cls.KIND, cls.SCHEMA, lambda value: checked(cls, value, str(file)))


def checked_setting(kind: Any, value: Any, name: str) -> Any:
    """Check a setting against an annotation; lists become tuples if ``kind`` is a tuple.

    Numbers below the smallest normal float32 in size, but not 0, are refused: models compute in
    float32.
    """
    try:
        made = _made(kind, value, 0)
        if isinstance(made, float) and 0 < abs(made) < _SMALLEST:
            raise _Fault(f"must be 0 or at least {_SMALLEST:.3g} in size, got {made}")
        return made
    except _Fault as fault:
        raise ConfigError(f"{name}{fault.place} {fault}.") from None


def require(where: str, holds: bool, condition: str, value: Any) -> None:
    """Raise ``ConfigError`` unless ``holds``; ``condition`` says in words what must hold."""
    if not holds:
        raise ConfigError(f"{where}: {condition}, got {value!r}.")


def check_settings(config: Any) -> None:
    """Check all fields of a dataclass against their annotations; ``ConfigError`` for the first."""
    owner: Any = type(config)
    kinds = _fields_of(owner)[0]
    for name in (field.name for field in fields(config)):
        checked_setting(kinds[name], getattr(config, name), f"{owner.__name__}: {name}")


def _made(kind: Any, value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise _Fault(f"must be nested at most {_DEEPEST} deep, got more")
    if kind is Any:
        plain = _PLAIN.get(type(value))
        return value if plain is None else _made(plain, value, depth)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is NotRequired:
        return _made(arguments[0], value, depth)
    if origin is Annotated:
        return _limited(_made(arguments[0], value, depth), arguments[1:])
    if origin in (Union, UnionType):
        return _any_of(arguments, value, depth)
    if origin is Literal:
        if value not in arguments:
            raise _Fault(f"must be {' or '.join(map(repr, arguments))}, got {short(value)}")
        return value
    if is_typeddict(kind) or is_dataclass(kind):
        return _object(kind, value, depth)
    if origin is tuple:
        return _tuple(arguments, value, depth)
    _require(origin or kind, value)
    if origin is list:
        return [_inner(arguments[0], entry, depth, i) for i, entry in enumerate(value)]
    if origin is dict:
        return {key: _inner(arguments[1], entry, depth, key) for key, entry in value.items()}
    return value


def _tuple(kinds: tuple[Any, ...], value: Any, depth: int) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _Fault(f"must be a list, got {short(value)}")
    if kinds[-1] is ...:
        kinds = kinds[:1] * len(value)
    if len(value) != len(kinds):
        raise _Fault(f"must be a list of {len(kinds)}, got {short(value)}")
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(_inner(kind, entry, depth, number) for number, (kind, entry) in pairs)


def _require(kind: Any, value: Any) -> None:
    """Check the type of a value, but not of its entries."""
    allowed = int | float if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind in (int, float)):
        raise _Fault(f"must be {_WORDS[kind]}, got {short(value)}")
    if kind in (int, float) and not abs(value) <= _LARGEST:  # false for NaN too
        raise _Fault(f"must be finite, up to {_LARGEST} in size, got {short(value)}")


def _inner(kind: Any, value: Any, depth: int, step: str | int) -> Any:
    try:
        return _made(kind, value, depth + 1)
    except _Fault as fault:
        fault.place = (f"[{step}]" if isinstance(step, int) else f".{_name(step)}") + fault.place
        raise


def _object(kind: Any, value: Any, depth: int) -> Any:
    _require(dict, value)
    hints, needed = _fields_of(kind)
    for name in needed:
        if name not in value:
            raise _Fault(f"must hold {name}, got {short(list(value))}")
    made = {key: _inner(hints.get(key, Any), entry, depth, key) for key, entry in value.items()}
    if is_typeddict(kind):
        return made
    if other := [name for name in value if name not in hints]:
        raise _Fault(f"must hold {', '.join(hints)} alone, got {short(other[0])} too")
    return kind(**made)


@cache
def _fields_of(kind: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Field -> annotation, and the names of the required fields."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        return hints, tuple(name for name in hints if name in kind.__required_keys__)
    needed = [
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    ]
    return hints, tuple(needed)


def _any_of(kinds: tuple[Any, ...], value: Any, depth: int) -> Any:
    if value is None and type(None) in kinds:
        return None
    others = [kind for kind in kinds if kind is not type(None)]
    if len(others) == 1:  # so that for ``X | None`` the message is that of X alone
        return _made(others[0], value, depth)
    for kind in others:
        with contextlib.suppress(_Fault):
            return _made(kind, value, depth)
    words = " or ".join(_WORDS[get_origin(kind) or kind] for kind in others)
    raise _Fault(f"must be {words}, got {short(value)}")


def _limited(value: Any, limits: tuple[Any, ...]) -> Any:
    for limit in limits:
        if isinstance(limit, AtLeast):
            size, unit = (len(value), " entries") if isinstance(value, list) else (value, "")
            if size < limit.least:
                raise _Fault(f"must be at least {limit.least}{unit}, got {short(size)}")
        if isinstance(limit, AtMost) and value > limit.most:
            raise _Fault(f"must be at most {limit.most}, got {short(value)}")
    return value


def _name(key: str) -> str:
    is_name = key.isascii() and key.replace("-", "_").isidentifier() and len(key) <= 60
    return key if is_name else short(key)


def read_settings(settings: Iterable[str], kinds: Mapping[str, Any]) -> dict[str, Any]:
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
            raise ConfigError(f"--set: must be KEY=VALUE, got {setting!r}.")
        if key not in kinds:
            near = did_you_mean(key, kinds) or f" Keys: {', '.join(kinds)}."
            raise ConfigError(f"--set: unknown key {key!r}.{near}")
        values[key] = _value(f"--set: {key}", kinds[key], text.strip())
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
        most = _LARGEST_SEED if name == "seed" else LARGEST_COUNT
        if not 0 <= value <= most:
            raise ConfigError(f"--set: {key} must be from 0 to {most}, got {value}.")


def _value(where: str, kind: Any, text: str) -> Any:
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
