"""What a comparison says, in one sentence, or why it says nothing."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from diffattn.report.page import phase
from diffattn.report.page.wording import IMITATIONS, OWN_IMITATIONS, listing, type_name
from diffattn.studies.limits import MARGIN
from diffattn.studies.text.rows import LEVEL, rows_said
from diffattn.studies.variants import BASELINE, FLOOR, VARIANTS, WIDER_FLOOR, WITHOUT_NORM


def verdict(results: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the comparison is informative, and its result.

    It is not if the softmax model does not beat the models without attention by :data:`MARGIN`
    (with its whole interval), if a type does not beat one at all, or if one type has passed the
    induction phase in most seeds and another has not: then what is compared is who leaves a
    plateau first. Rows of an ablation are asked that one by one.

    Args:
        results: Of :func:`diffattn.studies.text.results.comparison_results`.

    Returns:
        ``sentence`` and, of an informative comparison of types, ``details``: every difference that
        it sums up, and how they were tested.
    """
    reasons, of_rows = list(_reasons(results)), "rows" in results
    details = [] if reasons or of_rows else [*_said(results), _tested(results)]
    said = rows_said(results) if of_rows else _lead(results)
    sentence = (
        f"Uninformative about attention types: {reasons[0]}."
        if reasons
        else f"{_setting(results)}: {'; '.join(said)}."
    )
    return {
        "informative": not reasons,
        "sentence": sentence,
        "details": [f"{said[0].upper()}{said[1:]}." for said in details],
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
    for name in (FLOOR, WIDER_FLOOR):
        yield from _not_above(results, name)
    if "rows" in results:  # whose phases are looked at row by row
        return
    shares = {
        name: phase.share_passed(results["variants"][name]["at"]["best"])
        for name in (BASELINE, *_types(results))
    }
    passed = {name: share for name, share in shares.items() if share is not None}
    late = [type_name(name) for name, share in passed.items() if share < phase.MOST]
    if late and len(late) < len(passed):
        early = [type_name(name) for name, share in passed.items() if share >= phase.MOST]
        yield (
            f"{' and '.join(early)} passed the induction phase and {' and '.join(late)} did not: "
            "the losses rank who got there within these steps"
        )


def _not_above(results: Mapping[str, Any], control: str) -> Iterator[str]:
    """What attention does not gain over a control without it, where that takes part."""
    floor = difference(results, control, BASELINE)
    if floor is None:
        return
    what = _control(control)
    least = floor["mean"] if floor["low"] is None else floor["low"]
    if least < MARGIN:
        yield (
            f"softmax attention does not beat {what} by {MARGIN} nats "
            f"({_interval(floor, flip=True)})"
        )
    for name in _types(results):
        row = difference(results, name, control)
        assert row is not None, "every type is compared with the control"
        most = row["mean"] if row["high"] is None else row["high"]
        if most >= 0:
            yield f"{type_name(name)} does not beat {what} ({_interval(row)})"


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


def _lead(results: Mapping[str, Any]) -> Iterator[str]:
    """Of every type what its chosen rate shows, with what explains a lead: controls, or the rate;
    then the controls that beat softmax attention."""
    alike: list[str] = []
    apart: dict[str, list[str]] = {}
    for name in _types(results):
        row, label = _to_baseline(results, name), type_name(name)
        if why := phase.gap(results["variants"], name, BASELINE):
            apart.setdefault(why, []).append(label)
        elif _is_alike(results, row):
            alike.append(label)
        elif row["low"] is None:
            yield _of_type(results, row)
        else:
            yield f"{_by(row)} ({_interval(row)}){_but(_explained_at_all(results, row))}"
    if alike:
        yield f"no difference to softmax attention is shown for {listing(alike)}"
    for why, names in apart.items():
        yield f"not compared with softmax attention, as {why}: {listing(names)}"
    yield from _leading_controls(results)


def _said(results: Mapping[str, Any]) -> Iterator[str]:
    """The same in full, at both rates."""
    for name in _types(results):
        yield _of_type(results, _to_baseline(results, name))
        if "common" in results["variants"][name]["at"]:
            at_common = _of_type(results, _to_baseline(results, name, "common"))
            yield f"at the common learning rate {at_common}"
    yield from _leading_controls(results)


def _to_baseline(results: Mapping[str, Any], name: str, at: str = "best") -> Mapping[str, Any]:
    row = difference(results, name, BASELINE, at)
    assert row is not None, "every type is compared with the baseline, at every rate that it has"
    return row


def _leading_controls(results: Mapping[str, Any]) -> Iterator[str]:
    leading = [
        f"{_control(name)} ({_interval(row)})"
        for name in IMITATIONS
        if (row := difference(results, name, BASELINE)) is not None
        and row["mean"] < 0
        and _is_shown(results, row)
    ]
    if leading:
        yield f"softmax attention is beaten without a second map that learns: {listing(leading)}"


def _of_type(results: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """A type beside softmax attention, at one rate."""
    label, found = type_name(row["variant"]), _found(results, row)
    if why := phase.gap(results["variants"], row["variant"], BASELINE, row["at"]):
        return f"{label} is not compared with softmax attention, as {why} ({found})"
    if row["low"] is None:
        side = "below" if row["mean"] < 0 else "above"
        size = f"{abs(row['mean']):.3f} nats per token"
        return f"{label} ends {size} {side} softmax attention (one seed: this may be chance)"
    if _is_alike(results, row):
        return f"no difference to softmax attention is shown for {label} ({found})"
    return f"{_by(row)} ({found}){_but(_explained(results, row))}"


def _by(row: Mapping[str, Any]) -> str:
    """A type, and by how much it differs."""
    side = "worse" if row["mean"] > 0 else "better"
    size = f"{abs(row['mean']):.3f} nats per token"
    return f"{type_name(row['variant'])} is {size} {side} than softmax attention"


def _but(explained: Sequence[str]) -> str:
    return f", not shown to be better {listing(explained)}" if explained else ""


def _explained_at_all(results: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """What explains a lead at the chosen rate, and what at the common one; or that rate itself."""
    explained = _explained(results, row)
    at_common = difference(results, row["variant"], BASELINE, "common")
    if at_common is None or row["mean"] > 0:
        return explained
    where = "at the common learning rate"
    if not (at_common["mean"] < 0 and _is_shown(results, at_common)):
        return [*explained, where]
    there = _explained(results, at_common)
    return explained + [f"{what} {where}" for what in there if what not in explained]


def _explained(results: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Than which controls a type's lead at one rate is not shown to be better, and without what."""
    if row["mean"] > 0:
        return []
    name = row["variant"]
    asked = [(control, row["at"]) for control in IMITATIONS]
    asked += [(control, "best") for control in OWN_IMITATIONS.get(name, ())]
    explained = [
        f"than {_control(control)}"
        for control, at in asked
        if (against := difference(results, name, control, at)) is not None
        and not (against["mean"] < 0 and _is_shown(results, against))
    ]
    if name == "diff":
        bare = difference(results, WITHOUT_NORM, BASELINE)
        if bare is not None and not (bare["mean"] < 0 and _is_shown(results, bare)):
            explained.append("without its head norm")
    return explained


def _found(results: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """A difference to softmax attention; what of it lies on tokens new to the context, where no
    copying helps; and when the models passed the induction phase: a lead in time is one in loss
    as long as all still learn."""
    said = _interval(row)
    new = difference(results, row["variant"], BASELINE, row["at"], "first_occurrence")
    if new is not None and not _is_alike(results, row):
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


def _is_alike(results: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether two or more seeds show no difference."""
    return row["low"] is not None and not _is_shown(results, row)


def _is_shown(results: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a difference stands after the adjustment over all that the sentence rests on."""
    names = ("variant", "baseline", "at")
    return any(
        test["shown"] for test in results["tests"] if all(test[name] == row[name] for name in names)
    )


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
    """Where the result holds."""
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


def _tested(results: Mapping[str, Any]) -> str:
    """What stands in brackets, and what "shown" means."""
    level = 100 * results["differences"][0]["level"]
    return (
        f"nats per token, {level:.0f} % intervals, unadjusted; what is shown stands among "
        f"{_counted(results['tests'])}"
    )


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
