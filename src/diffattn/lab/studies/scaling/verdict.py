"""The verdict of a scaling study: one sentence per axis, or why an axis is uninformative."""

from collections.abc import Mapping
from enum import Enum

from diffattn.lab.catalog.models import BASELINE, FLOOR, UNIFORM_SECOND, VARIANTS, type_name
from diffattn.lab.records.study_results import Equivalent, ScalingAxis, ScalingVerdict
from diffattn.lab.records.text_results import Outcome
from diffattn.lab.report.page.wording import listing, number
from diffattn.lab.stats.scaling import equivalent_at
from diffattn.lab.studies.limits import MARGIN

_NEEDS = {"parameters": "parameters", "tokens": "training tokens"}


class Need(Enum):
    """How many parameters or tokens a model needs for the loss of another, as words."""

    FEWER = "fewer are needed by"
    MORE = "more are needed by"
    SAME = "no difference is shown for"
    UNKNOWN = "nothing can be said of"


def verdict(axes: Mapping[str, ScalingAxis]) -> ScalingVerdict:
    """Judge how much every type needs for equal loss, at the point ``read_at`` of each axis.

    An axis is uninformative if softmax attention does not beat no attention at that point, or if no
    attention does not need more. Then differences need not be due to attention.
    """
    verdicts = {name: _axis_verdict(name, axis) for name, axis in axes.items()}
    sentences = [_headline(axes, verdicts), *(entry["sentence"] for entry in verdicts.values())]
    return {"sentence": " ".join(sentences), "axes": verdicts}


def _headline(axes: Mapping[str, ScalingAxis], verdicts: Mapping[str, Outcome]) -> str:
    """Sentence on the types that need less than the Transformer and the uniform second map."""
    informative = [name for name in axes if verdicts[name]["informative"]]
    if not informative:
        return "Nothing can be said of attention types."
    savings = []
    for name in informative:
        types = [type_name(kind) for kind in axes[name]["types"] if _saves(axes[name], kind)]
        if types:
            savings.append(f"fewer {_NEEDS[name]} are needed by {listing(types)}")
    against = "the Transformer and a control whose second map sees nothing"
    if savings:
        return f"For the loss of {against}, {listing(savings)}."
    needs = " or ".join(f"fewer {_NEEDS[name]}" for name in informative)
    return f"No differential type is shown to need {needs} than both {against}."


def _saves(axis: ScalingAxis, name: str) -> bool:
    rows = [equivalent_at(axis, name, other) for other in (BASELINE, UNIFORM_SECOND)]
    return VARIANTS[name].role == "type" and all(_need(row) is Need.FEWER for row in rows)


def _axis_verdict(name: str, axis: ScalingAxis) -> Outcome:
    reason = _uninformative(axis)
    if reason:
        sentence = f"Over {name}, uninformative about attention types: {reason}."
        return {"informative": False, "sentence": sentence}
    shares: dict[Need, list[str]] = {need: [] for need in Need}
    for model in axis["types"]:
        if model not in (BASELINE, FLOOR):
            row = equivalent_at(axis, model, BASELINE)
            shares[_need(row)].append(_format_share(axis, model, row))
    head = f"For equal loss, of the Transformer's {_NEEDS[name]} (95 % interval"
    if axis["unbent"]:
        names = listing(map(type_name, axis["unbent"]))
        head += f"; by fits of a x⁻ᵇ, as for {names} none of a x⁻ᵇ + c was possible"
    parts = [f"{need.value} {listing(models)}" for need, models in shares.items() if models]
    return {"informative": True, "sentence": f"{head}): {'; '.join(parts)}."}


def _uninformative(axis: ScalingAxis) -> str:
    """The reason why an axis is uninformative about types; empty if it is informative."""
    types = axis["types"]
    if FLOOR not in types:
        return "no model without attention was trained beside them"
    floor, softmax = (
        types[name]["points"][axis["read_at"]]["loss"]["mean"] for name in (FLOOR, BASELINE)
    )
    losses = f"({number(softmax, 3)} against {number(floor, 3)} nats)"
    if softmax >= floor:
        return f"where it is read, softmax attention does not beat no attention {losses}"
    row = equivalent_at(axis, FLOOR, BASELINE)
    if types[FLOOR]["fit"]["refused"] and floor - softmax < MARGIN:
        return (
            f"{type_name(FLOOR)} has no fit, and softmax attention beats it by less than {MARGIN} "
            f"nats where it is read {losses}"
        )
    if _need(row) in (Need.MORE, Need.UNKNOWN):  # unknown: outside softmax's points, or no fit
        return ""
    share = _format_share(axis, FLOOR, row)
    return f"by its fits not even {share} is shown to need more than the Transformer"


def _need(row: Equivalent | None) -> Need:
    if row is None or row["refused"]:
        return Need.UNKNOWN
    low, high = row["low"], row["high"]
    if low is None or high is None or low <= 1 <= high:
        return Need.SAME
    return Need.FEWER if high < 1 else Need.MORE


def _format_share(axis: ScalingAxis, name: str, row: Equivalent | None) -> str:
    """A model with its share of the Transformer's needs, and whether a control needs as little."""
    is_control = VARIANTS[name].role == "control"
    label = f"the control {type_name(name)}" if is_control else type_name(name)
    if row is None or row["ratio"] is None:
        return f"{label} ({'not compared' if row is None else row['refused']})"
    text = f"{number(100 * row['ratio'], 0)} %"
    if row["low"] is None or row["high"] is None:
        text += ", no interval"
    else:
        text += f", {number(100 * row['low'], 0)} to {number(100 * row['high'], 0)} %"
    if row["extrapolated"]:
        text += ", extrapolated"
    if _need(row) is Need.FEWER and name != UNIFORM_SECOND:
        against = equivalent_at(axis, name, UNIFORM_SECOND)
        if against is None:
            text += ", without a control that would explain it"
        elif _need(against) is not Need.FEWER:
            text += f", not shown to need fewer than {type_name(UNIFORM_SECOND)}"
    return f"{label} ({text})"
