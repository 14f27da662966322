"""Build protocols from their names and settings."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any, get_type_hints

from diffattn.errors import ConfigError, did_you_mean
from diffattn.lab.evaluation.catalog import PRESETS, PROTOCOLS
from diffattn.lab.evaluation.protocol import Part, Protocol
from diffattn.lab.records.settings import read_settings, require_counts


def protocol_class(name: str) -> type[Protocol]:
    """Import the class of a protocol by the protocol's name."""
    require_known(name, PROTOCOLS)
    module, _, attribute = PROTOCOLS[name].path.partition(":")
    protocol: type[Protocol] = getattr(import_module(f"{__package__}.{module}"), attribute)
    return protocol


def parts(
    names: Iterable[str],
    settings: Sequence[str] = (),
    *,
    quick: bool = False,
    longest: int | None = None,
) -> list[Part]:
    """Build the parts that protocols and presets name; ``"all"`` is every protocol.

    ``settings`` are ``PROTOCOL.KEY=VALUE``, a value in JSON or as text; they override the
    parameters of ``quick``, which are adapted to a context of ``longest`` tokens.
    """
    chosen: dict[str, tuple[str, dict[str, Any]]] = {}
    asked = [protocol for name in names for protocol in (PROTOCOLS if name == "all" else [name])]
    for name in asked:
        require_known(name)  # check all names before PyTorch is loaded
        wanted = PRESETS.get(name) or {name: (name, {})}
        for variant, (protocol, parameters) in wanted.items():
            if variant in chosen and chosen[variant] != (protocol, parameters):
                raise ConfigError(f"evaluate: {variant!r} must be asked for once, got it twice.")
            chosen[variant] = (protocol, parameters)
    changes = _read(settings, {protocol for protocol, _ in chosen.values()})
    built = []
    for variant, (name, parameters) in chosen.items():
        kind = protocol_class(name)
        values = parameters | (kind.quick_for(longest) if quick else {}) | changes.get(name, {})
        try:
            built.append(Part(variant=variant, protocol=kind(**values)))
        except ConfigError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{name}: settings must have the right types, got {error}."
            ) from error
    return built


def require_known(name: str, known: Iterable[str] = (*PROTOCOLS, *PRESETS, "all")) -> None:
    """Raise ``ConfigError`` if ``name`` is not among the ``known`` protocols and presets."""
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(f"Unknown protocol {name!r}.{hint} See 'diffattn list protocols'.")


def _read(settings: Sequence[str], protocols: set[str]) -> dict[str, dict[str, Any]]:
    """Protocol to field to value."""
    changes: dict[str, dict[str, Any]] = {}
    for setting in settings:
        name, separator, _ = setting.partition("=")
        protocol, dot, _ = name.strip().partition(".")
        if not separator or not dot:
            raise ConfigError(f"--set: must be PROTOCOL.KEY=VALUE, got {setting!r}.")
        if protocol not in protocols:
            raise ConfigError(
                f"--set: {protocol!r} must be a protocol of this run "
                f"({', '.join(sorted(protocols))}), got {setting!r}."
            )
        kind = protocol_class(protocol)
        hints = get_type_hints(kind)
        kinds = {f"{protocol}.{field.name}": hints[field.name] for field in fields(kind)}
        for key, value in read_settings([setting], kinds).items():
            field = key.partition(".")[2]
            require_counts(key, field, value)
            changes.setdefault(protocol, {})[field] = value
    return changes
