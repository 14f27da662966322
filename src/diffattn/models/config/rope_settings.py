"""Checks of the rotary parameters of a configuration. Needs no torch."""

from collections.abc import Mapping
from typing import Any

from diffattn.errors import ConfigError, check_known
from diffattn.ops.inputs.numbers import is_number, is_whole

# rope_type -> required and optional fields, besides ``rope_type`` and ``rope_theta``.
_TYPES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ("original_max_position_embeddings",)),
    "yarn": (
        ("factor",),
        (
            "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
            "mscale", "mscale_all_dim", "truncate",
        ),
    ),
    "longrope": (
        ("short_factor", "long_factor"),
        ("factor", "original_max_position_embeddings", "attention_factor"),
    ),
    "llama3": (
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), (),
    ),
}  # fmt: skip
_RANGES: dict[str, tuple[float, float]] = {
    "rope_theta": (1.0, 1e12),
    "factor": (1.0, 1e6),
    "original_max_position_embeddings": (1, 2**31 - 1),
    "partial_rotary_factor": (1.0, 1.0),  # our layers rotate all channels of a head
    **dict.fromkeys(("attention_factor", "mscale", "mscale_all_dim"), (1e-3, 1e3)),
    **dict.fromkeys(("beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor"), (1e-3, 1e6)),
    **dict.fromkeys(("short_factor", "long_factor"), (1e-3, 1e6)),
}
"""Field -> smallest and largest number; for lists, of each entry."""


def check_rope_parameters(where: str, parameters: object, head_dim: int) -> None:
    """Raise a ConfigError for rotary parameters that are incomplete, unknown or impossible.

    Transformers only logs most of these faults, or fails later.
    """
    if parameters is None or parameters == {}:
        return
    if not isinstance(parameters, Mapping):
        raise ConfigError(f"{where}: rope_parameters must be a JSON object, got {parameters!r}.")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    check_known(where, "rope_parameters: rope_type", kind, _TYPES)
    required, optional = _TYPES[kind]
    for name in required:
        if parameters.get(name) is None:
            raise ConfigError(
                f"{where}: rope_parameters: {kind!r} must have {name}, got {sorted(parameters)}."
            )
    known = ("rope_type", "type", "rope_theta", "partial_rotary_factor", *required, *optional)
    for name, value in parameters.items():
        check_known(where, "rope_parameters: field", name, known)
        field = f"{where}: rope_parameters: {name}"
        if name == "truncate" and not isinstance(value, bool):
            raise ConfigError(f"{field} must be true or false, got {value!r}.")
        if name in _RANGES and (value is not None or name == "rope_theta"):
            _check_numbers(field, name, value, head_dim)


def steady_positions(config: Any) -> tuple[str, int] | None:
    """``rope_type``, and the tokens up to which all texts have the same rotary frequencies.

    ``None``: frequencies never depend on the text. ``"longrope"`` and ``"dynamic"`` choose them by
    the longest text of a forward pass, so cached keys of shorter texts no longer fit. ``config`` is
    of any model of transformers. If layers differ, the smallest length counts.
    """
    config = config.get_text_config()
    parameters = getattr(config, "rope_parameters", None)
    parameters = parameters or getattr(config, "rope_scaling", None) or {}
    per_layer = [value for value in parameters.values() if isinstance(value, Mapping)]
    limits: list[tuple[int, str]] = []
    for layer in per_layer or [parameters]:
        kind = str(layer.get("rope_type", layer.get("type", "default")))
        longest = getattr(config, "max_position_embeddings", None)
        if kind == "longrope":
            original = layer.get("original_max_position_embeddings")
            longest = original or getattr(config, "original_max_position_embeddings", longest)
        # Transformers, too, looks for "dynamic" anywhere in the name.
        if longest is not None and (kind == "longrope" or "dynamic" in kind):
            limits.append((int(longest), kind))
    return (min(limits)[1], min(limits)[0]) if limits else None


def _check_numbers(where: str, name: str, value: Any, head_dim: int) -> None:
    is_list = name in ("short_factor", "long_factor")
    if is_list and (not isinstance(value, list) or len(value) != head_dim // 2):
        raise ConfigError(f"{where} must be a list of {head_dim // 2} numbers, got {value!r}.")
    least, most = _RANGES[name]
    whole = name == "original_max_position_embeddings"
    for number in value if is_list else [value]:
        fits = is_whole(number) if whole else is_number(number)
        if not fits or not least <= number <= most:
            kind = "a whole number" if whole else "a number"
            raise ConfigError(f"{where} must be {kind} from {least:g} to {most:g}, got {number!r}.")
