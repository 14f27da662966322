"""Values of ``--set`` and whether they are of the type their parameter declares."""

from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from diffattn.errors import ConfigError
from diffattn.lab.records.settings import parse_value

LARGEST_NUMBER = 10_000_000
"""Of items, tokens, documents and whatever else a whole number of a protocol counts."""
LARGEST_SEED = 2**32 - 1
_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a JSON object",
}


def setting_value(owner: type, name: str, key: str, text: str) -> Any:
    """The value of one parameter as a user wrote it: JSON, else text. Lists become tuples.

    Args:
        owner: The class whose field it is.
        name: Of the field.
        key: As the user wrote it, for messages.
        text: What stood after ``=``.

    Raises:
        ConfigError: The value is not of the field's declared type, no finite number, or a whole
            number beyond :data:`LARGEST_NUMBER` (a seed: :data:`LARGEST_SEED`).
    """
    wanted = get_type_hints(owner)[name]
    value = tuples(parse_value(key, text))
    if text == "" and str in _choices(wanted):
        raise ConfigError(f"--set: {key} must not be empty.")
    if not isinstance(value, str) and value is not None and str in _choices(wanted):
        return text  # a folder may be called 2024
    if not _fits(value, wanted):
        raise ConfigError(f"--set: {key} must be {_wording(wanted)}, got {text!r}.{_hint(text)}")
    _check_ranges(key, name, value)
    return value


def _check_ranges(key: str, name: str, value: Any) -> None:
    """Whole numbers count something that is asked or read, or seed a generator."""
    if isinstance(value, dict):
        for inner, item in value.items():
            _check_ranges(key, inner, item)
    elif isinstance(value, tuple | list):
        for item in value:
            _check_ranges(key, name, item)
    elif isinstance(value, int):
        most = LARGEST_SEED if name == "seed" else LARGEST_NUMBER
        if not 0 <= value <= most:
            raise ConfigError(f"--set: {key} must be from 0 to {most}, got {value}.")


def tuples(value: Any) -> Any:
    """Settings as a protocol is given them: JSON has lists alone."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def _choices(wanted: Any) -> tuple[Any, ...]:
    return get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)


def _fits(value: Any, wanted: Any) -> bool:
    if wanted is Any:
        return True
    if len(_choices(wanted)) > 1:
        return any(_fits(value, choice) for choice in _choices(wanted))
    if get_origin(wanted) is tuple:
        inner = get_args(wanted)
        if not isinstance(value, tuple):
            return False
        if inner[-1] is ...:
            return all(_fits(item, inner[0]) for item in value)
        return len(value) == len(inner) and all(map(_fits, value, inner))
    if isinstance(value, bool):  # no number, though Python counts true as 1
        return wanted is bool
    if wanted is float:
        return isinstance(value, (int, float))
    return isinstance(value, get_origin(wanted) or wanted)


def _wording(wanted: Any) -> str:
    words = []
    for choice in _choices(wanted):
        if choice is type(None):
            words.append("null")
        elif get_origin(choice) is tuple:
            words.append(f"a list such as {_example(choice)}")
        else:
            words.append(_WORDS[get_origin(choice) or choice])
    return " or ".join(words)


def _example(wanted: Any) -> str:
    if get_origin(wanted) is not tuple:
        return {str: '"a"', int: "1", float: "0.5"}[wanted]
    return f"[{', '.join(_example(part) for part in get_args(wanted) if part is not ...)}]"


def _hint(text: str) -> str:
    """What was probably meant, if it is Python's spelling."""
    spelling = {"True": "true", "False": "false", "None": "null"}.get(text)
    return f" Did you mean {spelling}?" if spelling else ""
