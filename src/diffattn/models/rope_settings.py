"""Rotary settings: what each kind of scaling takes, and what of it is possible."""

from collections.abc import Callable, Mapping
from typing import Any

from diffattn.models.known_names import check_known

MOST = 2**31 - 1
"""No count, length or id is larger: torch indexes with 32 bits in places."""
_LARGEST = 1e12
"""Of a number: what is larger underflows in float32 once it is inverted."""

_SCALED = ("factor",)
_LENGTH = "original_max_position_embeddings"
_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (_SCALED, ()),
    "dynamic": (_SCALED, ()),
    "yarn": (
        (*_SCALED, _LENGTH),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": (("short_factor", "long_factor", _LENGTH), (*_SCALED, "attention_factor")),
    "llama3": ((*_SCALED, _LENGTH, "low_freq_factor", "high_freq_factor"), ()),
}
"""Names that a kind needs, and those that it may have, besides ``rope_theta``."""
_LISTS = ("short_factor", "long_factor")


def check_rope(
    where: str, rope: Any, head_dim: int, error: Callable[[str, object], Exception]
) -> None:
    """Refuse rotary settings from which no finite angle can be computed.

    Args:
        where: Who asks, first in the message about an unknown name.
        rope: ``rope_parameters`` as in Hugging Face, or ``None``.
        head_dim: D.
        error: Makes the error from what must hold and what was got.

    Raises:
        ConfigError: A kind or name is unknown, a name is missing, or a value is impossible.
    """
    if rope is None:
        return
    if not isinstance(rope, Mapping):
        raise error("rope_parameters must be a mapping", rope)
    kind = rope.get("rope_type", rope.get("type", "default"))
    check_known(where, "rope_parameters.rope_type", str(kind), _KINDS)
    needed, possible = _KINDS[kind]
    # The original length is filled in by Hugging Face where it is missing.
    if missing := [name for name in needed if name not in rope and name != _LENGTH]:
        raise error(f"rope_parameters of {kind!r} must hold {missing[0]}", sorted(map(str, rope)))
    names = ("rope_type", "type", "rope_theta", "partial_rotary_factor", *needed, *possible)
    for name, value in rope.items():
        check_known(where, f"a name in rope_parameters of {kind!r}", str(name), names)
        if name not in ("rope_type", "type") and (value is not None or name in needed):
            _check_value(f"rope_parameters.{name}", value, head_dim, error)
    if kind == "dynamic" and head_dim < 4:
        raise error("rope_parameters of 'dynamic' must have a head_dim of 4 or more", head_dim)
    for low, high, smaller, larger in (
        ("beta_slow", "beta_fast", 1, 32),
        ("low_freq_factor", "high_freq_factor", 0, 1),
    ):
        at_least, at_most = rope.get(low) or smaller, rope.get(high) or larger
        if low in names and not at_least < at_most:
            raise error(f"rope_parameters.{low} must be below {high} = {at_most}", at_least)
    if kind in ("yarn", "longrope") and rope.get("rope_theta") == 1:
        raise error(f"rope_parameters.rope_theta of {kind!r} must be above 1", 1)


def _check_value(
    name: str, value: Any, head_dim: int, error: Callable[[str, object], Exception]
) -> None:
    """One value of the mapping."""
    last = name.rpartition(".")[2]
    if last == "truncate":
        if not isinstance(value, bool):
            raise error(f"{name} must be true or false", value)
    elif last in _LISTS:
        if not isinstance(value, list | tuple) or len(value) != head_dim // 2:
            got = len(value) if isinstance(value, list | tuple) else value
            raise error(f"{name} must list {head_dim // 2} numbers, head_dim / 2", got)
        for number in value:
            _check_number(f"{name}: each", number, 1e-6, _LARGEST, error)
    elif last == _LENGTH:
        if not isinstance(value, int) or isinstance(value, bool) or not 2 <= value <= MOST:
            raise error(f"{name} must be a whole number from 2 to {MOST}", value)
    elif last == "partial_rotary_factor":
        _check_number(name, value, 1, 1, error)  # every channel is rotated
    else:
        least = 1 if last in ("rope_theta", "factor") else 1e-6
        _check_number(name, value, least, _LARGEST, error)


def _check_number(
    name: str, value: Any, least: float, most: float, error: Callable[[str, object], Exception]
) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most:  # false for NaN
        span = f"{least:g}" if least == most else f"a number from {least:g} to {most:g}"
        raise error(f"{name} must be {span}", value)
