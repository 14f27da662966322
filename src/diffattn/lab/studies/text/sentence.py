"""What an informative comparison of types says: one sentence, and every difference behind it."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from diffattn.lab.catalog.models import (
    BASELINE,
    SIDE_EFFECTS,
    VARIANTS,
    WITHOUT_NORM,
    own_side_effects,
    type_name,
)
from diffattn.lab.report.page import phase
from diffattn.lab.report.page.wording import listing
from diffattn.lab.studies.text.rows import LEVEL

_COMMON = "at the common learning rate"
_BETTER, _WORSE = "better", "worse"
_ALIKE, _APART = "no difference is shown", "not compared"


def types_of(results: Mapping[str, Any]) -> list[str]:
    """Names of the types that were compared, in the order of tables."""
    return [name for name in results["variants"] if VARIANTS[name].role == "type"]


def control_name(name: str) -> str:
    """What a control is, without what it stands for."""
    return VARIANTS[name].summary.split(":")[0]


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


def setting(results: Mapping[str, Any]) -> str:
    """Where the result holds.

    Args:
        results: Of :func:`diffattn.lab.studies.text.results.comparison_results`.
    """
    base, swept = results["variants"][BASELINE], results["rates"]["variants"]
    used = {entry["at"]["best"]["learning_rate"] for entry in results["variants"].values()}
    one = not swept and len(used) == 1
    rates = "all at one learning rate" if one else "each type at the learning rate chosen for it"
    where = "" if _passed(results) else ", none of them past the induction phase"
    tested = f" (nats per token, {_counted(results['rows'])})" if "rows" in results else ""
    return (
        f"At {base['parameters'] / 1e6:.1f} million parameters and {results['tokens']:,} tokens, "
        f"{rates}{where}{tested}"
    )


def lead(results: Mapping[str, Any]) -> Iterator[str]:
    """Of every type what its chosen rate shows, what explains a lead, and where the common rate
    shows something else; then the controls that beat softmax attention.

    Args:
        results: Of :func:`diffattn.lab.studies.text.results.comparison_results`, of types.
    """
    alike: list[str] = []
    apart: dict[str, list[str]] = {}
    for name in types_of(results):
        row, label = _to_baseline(results, name), type_name(name)
        aside = _aside(results, name)
        shown = _shows(results, row)
        if shown == _APART:
            why = phase.gap(results["variants"], name, BASELINE)
            apart.setdefault(why, []).append(label + (f" ({aside})" if aside else ""))
        elif row["low"] is None:
            yield _of_type(results, row)
        elif shown == _ALIKE:
            alike.append(label + (f" ({aside})" if aside else ""))
        else:
            explained = _explained_at_all(results, row) if shown == _BETTER else []
            but = _but(explained) + (f", {aside}" if aside else "")
            closest = _over_own(results, row)[:1] if shown == _BETTER else []
            yield f"{_by(row)} ({interval_in_words(row)}){''.join(closest)}{but}"
    if alike:
        yield f"no difference to softmax attention is shown for {listing(alike)}"
    for why, names in apart.items():
        yield f"not compared with softmax attention, as {why}: {listing(names)}"
    yield from _leading_controls(results)


def details(results: Mapping[str, Any]) -> list[str]:
    """The same in full, at both rates, and how it was tested.

    Args:
        results: Of :func:`diffattn.lab.studies.text.results.comparison_results`, of types.
    """
    said = []
    for name in types_of(results):
        said.append(_of_type(results, _to_baseline(results, name)))
        if "common" in results["variants"][name]["at"]:
            at_common = _of_type(results, _to_baseline(results, name, "common"))
            said.append(f"{_COMMON} {at_common}")
    level = 100 * results["differences"][0]["level"]
    tested = (
        f"nats per token, {level:.0f} % intervals, unadjusted; what is shown stands among "
        f"{_counted(results['tests'])}"
    )
    return [f"{of[0].upper()}{of[1:]}." for of in (*said, *_leading_controls(results), tested)]


def interval_in_words(row: Mapping[str, Any], *, flip: bool = False) -> str:
    """A difference: its mean and interval, or that there is none.

    Args:
        row: One of ``differences``.
        flip: With the other sign.
    """
    if row["low"] is None:
        return f"{_ends(row, flip=flip)}, one seed"
    return f"{_ends(row, flip=flip)}, {len(row['values'])} seeds"


def _to_baseline(results: Mapping[str, Any], name: str, at: str = "best") -> Mapping[str, Any]:
    row = difference(results, name, BASELINE, at)
    assert row is not None, "every type is compared with the baseline, at every rate that it has"
    return row


def _shows(results: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """What a type's difference to softmax attention at one rate shows."""
    if phase.gap(results["variants"], row["variant"], BASELINE, row["at"]):
        return _APART
    if not _is_shown(results, row):
        return _ALIKE
    return _BETTER if row["mean"] < 0 else _WORSE


def _aside(results: Mapping[str, Any], name: str) -> str:
    """What the common rate shows, where that is not what the chosen one shows."""
    at_common = difference(results, name, BASELINE, "common")
    if at_common is None or at_common["low"] is None:
        return ""
    at_best, there = (_shows(results, row) for row in (_to_baseline(results, name), at_common))
    return "" if there == at_best else f"{there} {_COMMON}"


def _leading_controls(results: Mapping[str, Any]) -> Iterator[str]:
    leading = [
        f"{control_name(name)} ({interval_in_words(row)})"
        for name in SIDE_EFFECTS
        if (row := difference(results, name, BASELINE)) is not None
        and row["mean"] < 0
        and _is_shown(results, row)
    ]
    if leading:
        yield f"softmax attention is beaten without a second map that learns: {listing(leading)}"


def _of_type(results: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """A type beside softmax attention, at one rate."""
    label, found = type_name(row["variant"]), _found(results, row)
    shown = _shows(results, row)
    if shown == _APART:
        why = phase.gap(results["variants"], row["variant"], BASELINE, row["at"])
        return f"{label} is not compared with softmax attention, as {why} ({found})"
    if row["low"] is None:
        side = "below" if row["mean"] < 0 else "above"
        size = f"{abs(row['mean']):.3f} nats per token"
        return f"{label} ends {size} {side} softmax attention (one seed: this may be chance)"
    if shown == _ALIKE:
        return f"no difference to softmax attention is shown for {label} ({found})"
    if shown == _WORSE:
        return f"{_by(row)} ({found})"
    beyond = "".join(_over_own(results, row))
    return f"{_by(row)} ({found}){beyond}{_but(_explained(results, row))}"


def _by(row: Mapping[str, Any]) -> str:
    """A type, and by how much it differs."""
    side = _WORSE if row["mean"] > 0 else _BETTER
    size = f"{abs(row['mean']):.3f} nats per token"
    return f"{type_name(row['variant'])} is {size} {side} than softmax attention"


def _but(explained: Sequence[str]) -> str:
    return f", not shown to be better {listing(explained)}" if explained else ""


def _explained_at_all(results: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """What explains a lead at the chosen rate, and what explains it at the common one."""
    explained = _explained(results, row)
    at_common = difference(results, row["variant"], BASELINE, "common")
    if at_common is None or _shows(results, at_common) != _BETTER:
        return explained
    there = _explained(results, at_common)
    return explained + [f"{what} {_COMMON}" for what in there if what not in explained]


def _explained(results: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Than which controls a type's lead at one rate is not shown to be better, and without what.

    A control that does not take part has not been shown to be worse.
    """
    name, at = row["variant"], row["at"]
    own = own_side_effects(name) if at == "best" else ()
    explained = []
    for control in (*SIDE_EFFECTS, *own):
        against = difference(results, name, control, at)
        if against is None:
            explained.append(f"than {control_name(control)} (not trained)")
        elif not (against["mean"] < 0 and _is_shown(results, against)):
            explained.append(f"than {control_name(control)}")
    if name == "diff":
        bare = difference(results, WITHOUT_NORM, BASELINE)
        if bare is not None and not (bare["mean"] < 0 and _is_shown(results, bare)):
            explained.append("without its head norm")
    return explained


def _over_own(results: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """By how much a leading type is better than models that share most of what it is, the closest
    first: only so much of its lead can be its difference."""
    name = row["variant"]
    own = own_side_effects(name) if row["at"] == "best" else ()
    ahead = [against for of in own if (against := difference(results, name, of)) is not None]
    return [
        f", {-against['mean']:.3f} better than {control_name(against['baseline'])} "
        f"({interval_in_words(against)})"
        for against in sorted(ahead, key=lambda against: -against["mean"])
        if against["mean"] < 0 and _is_shown(results, against)
    ]


def _found(results: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """A difference to softmax attention; what of it lies on tokens new to the context, where no
    copying helps; and when the models passed the induction phase: a lead in time is one in loss
    as long as all still learn."""
    said = interval_in_words(row)
    new = difference(results, row["variant"], BASELINE, row["at"], "first_occurrence")
    if new is not None and (row["low"] is None or _is_shown(results, row)):
        said += f"; on tokens new to the context {_ends(new)}"
    groups = [results["variants"][row["variant"]]["at"][row["at"]]]
    groups.append(results["variants"][BASELINE]["at"]["best"])
    steps = [group["phase_steps"] for group in groups]
    if all(step is not None for of in steps for step in of):
        here, there = (f"{median(of):,.0f}" for of in steps)
        said += f"; phase passed at step {here} against {there}, medians"
    elif any(step is not None for of in steps for step in of):
        here, there = (f"{sum(x is not None for x in of)} of {len(of)}" for of in steps)
        said += f"; phase passed in {here} runs against {there}"
    return said


def _is_shown(results: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a difference stands after the adjustment over all that the sentence rests on."""
    names = ("variant", "baseline", "at")
    return any(
        test["shown"] for test in results["tests"] if all(test[name] == row[name] for name in names)
    )


def _ends(row: Mapping[str, Any], *, flip: bool = False) -> str:
    """A mean and its interval."""
    sign = -1 if flip else 1
    said = f"{sign * row['mean']:+.3f}"
    if row["low"] is not None:
        low, high = sorted((sign * row["low"], sign * row["high"]))
        said += f", {low:+.3f} to {high:+.3f}"
    return said.replace("-", "−")


def _counted(tests: Sequence[Any]) -> str:
    return f"{len(tests)} comparisons, p at most {LEVEL:g} after Holm's adjustment"


def _passed(results: Mapping[str, Any]) -> bool:
    """Whether any run has passed the induction phase."""
    return any(
        step is not None
        for entry in results["variants"].values()
        for group in entry["at"].values()
        for step in group["phase_steps"]
    )
