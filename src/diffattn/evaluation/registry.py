"""Protocols by name with their parameters, ready to run."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from diffattn.errors import ConfigError, did_you_mean
from diffattn.evaluation.catalog import PRESETS, PROTOCOLS
from diffattn.evaluation.protocol import Part, Protocol
from diffattn.records.settings import parse_value, read_settings


def protocol_class(name: str) -> type[Protocol]:
    """The class of a protocol.

    Raises:
        ConfigError: No protocol has this name.
    """
    _require_known(name)
    module, _, attribute = PROTOCOLS[name].path.partition(":")
    loaded = import_module(f"diffattn.evaluation.{module}")
    protocol: type[Protocol] = getattr(loaded, attribute)
    return protocol


def parts(names: Iterable[str], settings: Sequence[str] = (), *, quick: bool = False) -> list[Part]:
    """Protocols and presets by name, with their parameters.

    Args:
        names: Of protocols or presets; ``"all"`` is every protocol.
        settings: ``PROTOCOL.KEY=VALUE``, for every part that runs this protocol; values are JSON,
            else text.
        quick: Take the parameters of the reduced size where they are not set.

    Raises:
        ConfigError: An unknown name, key or value, or a part asked for twice.
    """
    chosen: dict[str, tuple[str, dict[str, Any]]] = {}
    asked = [protocol for name in names for protocol in (PROTOCOLS if name == "all" else [name])]
    for name in asked:
        if name not in PRESETS:
            _require_known(name)  # of all names, before the first protocol and PyTorch are loaded
        wanted = PRESETS.get(name) or {name: (name, {})}
        for variant, (protocol, parameters) in wanted.items():
            if variant in chosen and chosen[variant] != (protocol, parameters):
                raise ConfigError(f"evaluate: {variant!r} must be asked for once, got it twice.")
            chosen[variant] = (protocol, parameters)
    changes = _read(settings, {protocol for protocol, _ in chosen.values()})
    built = []
    for variant, (name, parameters) in chosen.items():
        kind = protocol_class(name)
        values = parameters | (dict(kind.quick) if quick else {}) | changes.get(name, {})
        built.append(Part(variant=variant, protocol=_build(kind, values)))
    return built


def _require_known(name: str) -> None:
    if name not in PROTOCOLS:
        hint = did_you_mean(name, [*PROTOCOLS, *PRESETS])
        raise ConfigError(f"Unknown protocol {name!r}.{hint} See 'diffattn list protocols'.")


def _read(settings: Sequence[str], protocols: set[str]) -> dict[str, dict[str, Any]]:
    """Values by protocol and field."""
    changes: dict[str, dict[str, Any]] = {}
    for setting in settings:
        protocol = setting.partition("=")[0].strip().partition(".")[0]
        if "=" not in setting or "." not in setting.partition("=")[0]:
            raise ConfigError(f"--set: must be PROTOCOL.KEY=VALUE, got {setting!r}.")
        if protocol not in protocols:
            raise ConfigError(
                f"--set: {protocol!r} must be a protocol of this run "
                f"({', '.join(sorted(protocols))}), got {setting!r}."
            )
        kind = protocol_class(protocol)
        known = [f"{protocol}.{field.name}" for field in dataclasses.fields(kind)]
        for key, text in read_settings([setting], known, form="PROTOCOL.KEY=VALUE").items():
            field = key.partition(".")[2]
            changes.setdefault(protocol, {})[field] = setting_value(kind, field, key, text)
    return changes


def _build(kind: type[Protocol], values: Mapping[str, Any]) -> Protocol:
    try:
        return kind(**values)
    except ConfigError:
        raise
    except (TypeError, ValueError, AttributeError) as error:  # a value of the wrong type
        raise ConfigError(
            f"{kind.name}: settings must have the right types, got {error}."
        ) from error


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
        ConfigError: The value is not of the field's declared type, or no finite number.
    """
    wanted = get_type_hints(owner)[name]
    value = _tuples(parse_value(key, text))
    if not isinstance(value, str) and value is not None and str in _choices(wanted):
        return text  # a folder may be called 2024
    if not _fits(value, wanted):
        raise ConfigError(f"--set: {key} must be {_wording(wanted)}, got {text!r}.{_hint(text)}")
    return value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


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
