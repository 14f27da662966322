"""What a scaling study says, in one sentence per axis, or why it says nothing."""

from collections.abc import Mapping
from typing import Any

from diffattn.lab.catalog.models import BASELINE, FLOOR, UNIFORM_SECOND, VARIANTS, type_name
from diffattn.lab.report.page.wording import listing, number
from diffattn.lab.studies.limits import MARGIN

_NEEDS = {"parameters": "parameters", "tokens": "training tokens"}


def verdict(axes: Mapping[str, Any]) -> dict[str, Any]:
    """What every type needs for the loss that it has at the point where the axis is read.

    It is uninformative where softmax attention does not beat no attention at that point, or no
    attention is not shown to need more: then what is compared is not what attention does.

    Args:
        axes: Of the results.

    Returns:
        ``sentence``; and by axis ``informative`` and ``sentence``.
    """
    of_axes = {axis: _of_axis(axis, of) for axis, of in axes.items()}
    return {
        "sentence": " ".join(
            [_headline(axes, of_axes), *(of["sentence"] for of in of_axes.values())]
        ),
        "axes": of_axes,
    }


def _headline(axes: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    """The differential types that need less than the Transformer and the blind second map."""
    informative = [axis for axis in axes if said[axis]["informative"]]
    if not informative:
        return "Nothing can be said of attention types."
    saves = [
        f"fewer {_NEEDS[axis]} are needed by {listing(names)}"
        for axis in informative
        if (names := [type_name(name) for name in axes[axis]["types"] if _saves(axes[axis], name)])
    ]
    against = "the Transformer and a control whose second map sees nothing"
    if saves:
        return f"For the loss of {against}, {listing(saves)}."
    needs = " or ".join(f"fewer {_NEEDS[axis]}" for axis in informative)
    return f"No differential type is shown to need {needs} than both {against}."


def _saves(of: Mapping[str, Any], name: str) -> bool:
    others = (BASELINE, UNIFORM_SECOND)
    return VARIANTS[name].role == "type" and all(
        _side(read(of, name, other)) == "fewer" for other in others
    )


def _of_axis(axis: str, of: Mapping[str, Any]) -> dict[str, Any]:
    reason = _reason(of)
    if reason:
        sentence = f"Over {axis}, uninformative about attention types: {reason}."
        return {"informative": False, "sentence": sentence}
    shares: dict[str, list[str]] = {"fewer": [], "none": [], "more": [], "refused": []}
    for name in of["types"]:
        if name in (BASELINE, FLOOR):
            continue
        row = read(of, name, BASELINE)
        shares[_side(row)].append(_said(of, name, row))
    head = f"For equal loss, of the Transformer's {_NEEDS[axis]} (95 % interval"
    if of["unbent"]:
        names = listing(type_name(name) for name in of["unbent"])
        head += f"; by fits of a x⁻ᵇ, as for {names} none of a x⁻ᵇ + c was possible"
    head += "): "
    parts = [
        f"{words} {listing(shares[side])}"
        for side, words in (
            ("fewer", "fewer are needed by"),
            ("more", "more are needed by"),
            ("none", "no difference is shown for"),
            ("refused", "nothing can be said of"),
        )
        if shares[side]
    ]
    return {"informative": True, "sentence": head + "; ".join(parts) + "."}


def read(of: Mapping[str, Any], name: str, baseline: str) -> dict[str, Any] | None:
    """The equivalent of a pair at the point where an axis is read."""
    for row in of["equivalents"]:
        if (row["type"], row["baseline"], row["point"]) == (name, baseline, of["read_at"]):
            return dict(row)
    return None


def _reason(of: Mapping[str, Any]) -> str:
    """Why an axis says nothing of types."""
    if FLOOR not in of["types"]:
        return "no model without attention was trained beside them"
    floor, softmax = (
        of["types"][name]["points"][of["read_at"]]["loss"]["mean"] for name in (FLOOR, BASELINE)
    )
    if softmax >= floor:
        return (
            "where it is read, softmax attention does not beat no attention "
            f"({number(softmax, 3)} against {number(floor, 3)} nats)"
        )
    row = read(of, FLOOR, BASELINE)
    if of["types"][FLOOR]["fit"]["refused"] and floor - softmax < MARGIN:
        return (
            f"{type_name(FLOOR)} has no fit, and softmax attention beats it by less than {MARGIN} "
            f"nats where it is read ({number(softmax, 3)} against {number(floor, 3)})"
        )
    if _side(row) in ("more", "refused"):  # refused: beyond all that softmax attention was given
        return ""
    return (
        f"by its fits not even {_said(of, FLOOR, row)} is shown to need more than the Transformer"
    )


def _side(row: Mapping[str, Any] | None) -> str:
    if row is None or row["refused"]:
        return "refused"
    if row["low"] is None or row["low"] <= 1 <= row["high"]:
        return "none"
    return "fewer" if row["high"] < 1 else "more"


def _said(of: Mapping[str, Any], name: str, row: Mapping[str, Any] | None) -> str:
    """A model with its share, and whether the control does as well."""
    what = f"the control {type_name(name)}" if VARIANTS[name].role == "control" else type_name(name)
    if row is None or row["refused"]:
        return f"{what} ({'not compared' if row is None else row['refused']})"
    said = f"{number(100 * row['ratio'], 0)} %"
    if row["low"] is None:
        said += ", no interval"
    else:
        said += f", {number(100 * row['low'], 0)} to {number(100 * row['high'], 0)} %"
    if row["extrapolated"]:
        said += ", extrapolated"
    if _side(row) == "fewer" and name != UNIFORM_SECOND:
        against = read(of, name, UNIFORM_SECOND)
        if against is None:
            said += ", without a control that would explain it"
        elif _side(against) != "fewer":
            said += f", not shown to need fewer than {type_name(UNIFORM_SECOND)}"
    return f"{what} ({said})"
