"""What a comparison says, in one sentence, or why it says nothing."""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from diffattn.report.page.wording import IMITATIONS, listing, type_name
from diffattn.studies.text.rows import LEVEL, rows_said
from diffattn.studies.variants import BASELINE, FLOOR, VARIANTS

MARGIN = 0.1
"""Nats per token by which softmax attention must beat no attention before types are compared."""


def verdict(results: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the comparison is informative, and its result.

    It is not if the softmax model does not beat the model without attention by :data:`MARGIN`
    (with its whole interval), if a type does not beat it at all, or if one type has passed the
    induction phase in most seeds and another has not: then what is compared is who leaves a
    plateau first.

    Args:
        results: Of :func:`diffattn.studies.text.results.comparison_results`.
    """
    reasons = list(_reasons(results))
    said = rows_said(results) if "rows" in results else _said(results)
    sentence = (
        f"Uninformative about attention types: {reasons[0]}."
        if reasons
        else f"{_setting(results)}: {'; '.join(said)}."
    )
    return {
        "informative": not reasons,
        "sentence": sentence,
        "reasons": reasons + list(_warnings(results)),
        "margin": MARGIN,
    }


def _types(results: Mapping[str, Any]) -> list[str]:
    return [name for name in results["variants"] if VARIANTS[name].role == "type"]


def difference(
    results: Mapping[str, Any],
    variant: str,
    baseline: str,
    at: str = "best",
    metric: str = "validation_loss",
) -> Mapping[str, Any] | None:
    """The paired difference of validation losses, or of those of a part; or ``None``."""
    wanted = (variant, baseline, at, metric)
    return next(
        (
            row
            for row in results["differences"]
            if (row["variant"], row["baseline"], row["at"], row["metric"]) == wanted
        ),
        None,
    )


def _reasons(results: Mapping[str, Any]) -> Iterator[str]:
    """Why nothing can be said of the types."""
    if FLOOR not in results["variants"]:
        yield "no model without attention was trained beside them"
        return
    floor = difference(results, FLOOR, BASELINE)
    assert floor is not None, "the control is compared with the baseline"
    least = floor["mean"] if floor["low"] is None else floor["low"]
    if least < MARGIN:
        yield (
            f"softmax attention does not beat no attention by {MARGIN} nats "
            f"({_interval(floor, flip=True)})"
        )
    for name in _types(results):
        row = difference(results, name, FLOOR)
        assert row is not None, "every type is compared with the control"
        most = row["mean"] if row["high"] is None else row["high"]
        if most >= 0:
            yield f"{type_name(name)} does not beat no attention ({_interval(row)})"
    passed = {
        name: sum(step is not None for step in steps) / len(steps)
        for name in (BASELINE, *_types(results))
        if (steps := results["variants"][name]["at"]["best"]["phase_steps"])
    }
    late = [type_name(name) for name, share in passed.items() if share < 0.5]
    if late and len(late) < len(passed):
        early = [type_name(name) for name, share in passed.items() if share >= 0.5]
        yield (
            f"{' and '.join(early)} passed the induction phase and {' and '.join(late)} did not: "
            "the losses rank who got there within these steps"
        )


def _warnings(results: Mapping[str, Any]) -> Iterator[str]:
    """What a reader must know besides."""
    for name, sweep in results["rates"]["variants"].items():
        if not sweep["inside"]:
            yield f"the chosen learning rate of {type_name(name)} lies at the edge of its sweep"
    for name in _types(results):
        at = results["variants"][name]["at"]
        if "common" in at and _mean_loss(at["common"]) < _mean_loss(at["best"]):
            yield (
                f"{type_name(name)} ends lower at the common learning rate than at the one that "
                "was chosen for it"
            )


def _mean_loss(group: Mapping[str, Any]) -> float:
    return float(group["validation_loss"]["mean"])


def _said(results: Mapping[str, Any]) -> Iterator[str]:
    """What is said of the types, then of the controls that beat softmax attention."""
    alike, other = [], []
    for name in _types(results):
        row = difference(results, name, BASELINE)
        assert row is not None, "every type is compared with the baseline"
        if _side(row) == "":
            alike.append(f"{type_name(name)} ({_interval(row)})")
        else:
            yield _of_type(results, name, row)
        common = difference(results, name, BASELINE, "common")
        if common is not None and _side(common) != _side(row):
            other.append(f"{type_name(name)} is {_side(common) or 'alike'} ({_interval(common)})")
    if alike:
        yield f"no difference to softmax attention is shown for {listing(alike)}"
    if other:
        yield f"at the common learning rate {listing(other)}"
    leading = [
        f"{_control(name)} ({_interval(row)})"
        for name in IMITATIONS
        if (row := difference(results, name, BASELINE)) is not None
        and row["high"] is not None
        and row["high"] < 0
    ]
    if leading:
        yield f"better than softmax attention without a second map that learns: {listing(leading)}"


def _of_type(results: Mapping[str, Any], name: str, row: Mapping[str, Any]) -> str:
    """A type that ends better or worse than softmax attention, or that has one seed."""
    label, size = type_name(name), f"{abs(row['mean']):.3f} nats"
    if row["low"] is None:
        side = "below" if row["mean"] < 0 else "above"
        return f"{label} ends {size} {side} softmax attention (one seed: this may be chance)"
    side = _side(row)
    explained = [
        _control(control)
        for control in IMITATIONS
        if side == "better"
        and (against := difference(results, name, control)) is not None
        and (against["high"] is None or against["high"] >= 0)
    ]
    but = f", not shown to be better than {listing(explained)}" if explained else ""
    found = f"{_interval(row)}{_where(results, name)}"
    return f"{label} is {size} {side} than softmax attention ({found}){but}"


def _where(results: Mapping[str, Any], name: str) -> str:
    """What of a difference lies on tokens new to the context, where no copying helps, and when the
    models passed the induction phase: a lead in time is one in loss as long as all still learn."""
    said = ""
    new = difference(results, name, BASELINE, metric="first_occurrence")
    if new is not None:
        said += f"; on tokens new to the context {_ends(new)}"
    steps = [results["variants"][of]["at"]["best"]["phase_steps"] for of in (name, BASELINE)]
    if all(step is not None for of in steps for step in of):
        here, there = (f"{median(of):,.0f}" for of in steps)
        said += f"; phase passed at step {here} against {there}, medians"
    return said


def _side(row: Mapping[str, Any]) -> str:
    """``"better"``, ``"worse"``, or nothing where the interval holds 0."""
    if row["low"] is not None and row["low"] <= 0 <= row["high"]:
        return ""
    return "better" if row["mean"] < 0 else "worse"


def _control(name: str) -> str:
    return VARIANTS[name].what.split(":")[0]


def _interval(row: Mapping[str, Any], *, flip: bool = False) -> str:
    """A difference in words: its mean and interval, or that there is none."""
    if row["low"] is None:
        return f"{_ends(row, flip=flip)}, one seed"
    return f"{_ends(row, flip=flip)}, {len(row['values'])} seeds"


def _ends(row: Mapping[str, Any], *, flip: bool = False) -> str:
    """A mean and its interval."""
    sign = -1 if flip else 1
    said = f"{sign * row['mean']:+.3f}"
    if row["low"] is not None:
        low, high = sorted((sign * row["low"], sign * row["high"]))
        said += f", {low:+.3f} to {high:+.3f}"
    return said.replace("-", "−")


def _setting(results: Mapping[str, Any]) -> str:
    """Where the result holds, and what stands in brackets."""
    base, swept = results["variants"][BASELINE], results["rates"]["variants"]
    rates = "each type at the learning rate chosen for it" if swept else "all at one learning rate"
    level = 100 * results["differences"][0]["level"]
    tested = f"{level:.0f} % interval"
    if "rows" in results:
        tested = f"{len(results['rows'])} comparisons, p at most {LEVEL:g} after Holm's adjustment"
    return (
        f"At {base['parameters'] / 1e6:.1f} million parameters and {results['tokens']:,} tokens, "
        f"{rates} (nats per token, {tested})"
    )
