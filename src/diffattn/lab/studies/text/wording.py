"""A comparison in words: differences with their intervals, and why some are not compared."""

from collections.abc import Iterator

from diffattn.lab.catalog.models import (
    BASELINE,
    SIDE_EFFECTS,
    VARIANTS,
    WITHOUT_NORM,
    own_side_effects,
    type_name,
)
from diffattn.lab.records.text_results import At, Row, TextDifference, TextResults
from diffattn.lab.report.page import phase
from diffattn.lab.report.page.wording import listing, number, p_value, plural
from diffattn.lab.studies.text.endpoints import LEVEL

_PARTS = {
    "repeated_bigram": "on bigrams that the context repeats",
    "first_occurrence": "on tokens new to the context",
}


def type_names(results: TextResults) -> list[str]:
    """Names of the types that were compared, in the order of tables."""
    return [name for name in results["variants"] if VARIANTS[name].role == "type"]


def difference(
    results: TextResults,
    variant: str,
    baseline: str,
    at: At = "best",
    metric: str = "validation_loss",
) -> TextDifference | None:
    """The paired difference in one metric, or ``None``. ``metric``: the loss, or a part's name."""
    key = (variant, baseline, at, metric)
    for entry in results["differences"]:
        if (entry["variant"], entry["baseline"], entry["at"], entry["metric"]) == key:
            return entry
    return None


def format_difference(entry: TextDifference, *, flip: bool = False) -> str:
    """A difference with its interval, e.g. ``"−0.216 (−0.241 to −0.191)"``."""
    sign = -1 if flip else 1
    text = f"{sign * entry['mean']:+.3f}"
    if entry["low"] is None or entry["high"] is None:
        text += " (one seed: this may be chance)"
    else:
        low, high = sorted((sign * entry["low"], sign * entry["high"]))
        text += f" ({low:+.3f} to {high:+.3f})"
    return text.replace("-", "−")


def control_name(name: str) -> str:
    """The first part of a control's summary."""
    return VARIANTS[name].summary.split(":")[0]


def type_clauses(results: TextResults) -> Iterator[str]:
    """Clauses for each type minus the Transformer, and for the control with the lowest loss."""
    names = sorted(type_names(results), key=lambda name: _mean(results, name))
    compared = [
        name for name in names if not phase.explain_gap(results["variants"], name, BASELINE)
    ]
    if compared:
        yield ", ".join(
            f"{type_name(name)} {_against(results, name, BASELINE)}" for name in compared
        )
    for name in names:
        if name not in compared:
            why = phase.explain_gap(results["variants"], name, BASELINE)
            yield f"{type_name(name)} is not compared, as {why}"
    controls = [name for name in SIDE_EFFECTS if difference(results, name, BASELINE)]
    if controls:
        lowest = min(controls, key=lambda name: _mean(results, name))
        yield f"{control_name(lowest)} {_against(results, lowest, BASELINE)}"


def type_details(results: TextResults) -> list[str]:
    """One sentence per type with all of its numbers, one for the controls, one on the tests."""
    sentences = [_describe_type(results, name) for name in type_names(results)]
    controls = [
        f"{control_name(name)} {_against(results, name, BASELINE)}"
        for name in (*SIDE_EFFECTS, WITHOUT_NORM)
        if difference(results, name, BASELINE)
    ]
    if controls:
        sentences.append(f"Controls minus the Transformer: {'; '.join(controls)}")
    level = 100 * results["differences"][0]["level"]
    sentences.append(
        f"Nats per token, {level:.0f} % intervals, not adjusted. p is adjusted by Holm over the "
        f"{len(results['endpoints'])} tests of types by loss and by tokens; {LEVEL:g} counts"
    )
    return [f"{sentence}." for sentence in sentences]


def row_clauses(results: TextResults) -> Iterator[str]:
    """Clauses: rows whose interval excludes 0, number of other rows, number of rows left out."""
    compared, apart = _split_rows(results)
    with_spread = [(row, entry) for row, entry in compared if entry["low"] is not None]
    if compared and not with_spread:
        yield f"{plural(len(results['rows']), 'row')} with one seed each: any of them may be chance"
        return
    apart_from_zero = [pair for pair in with_spread if _leaves_out_zero(pair[1])]
    if apart_from_zero:
        yield "intervals that leave out 0: " + "; ".join(
            f"{_row_name(row)} {format_difference(entry)}" for row, entry in apart_from_zero
        )
    if others := len(with_spread) - len(apart_from_zero):
        yield f"{others} of {plural(len(results['rows']), 'interval')} hold 0"
    if count := sum(map(len, apart.values())):
        yield f"{count} {'is' if count == 1 else 'are'} not compared"


def row_details(results: TextResults) -> list[str]:
    """The rows that are not compared, by reason."""
    _, apart = _split_rows(results)
    return [f"Not compared, as {why}: {'; '.join(rows)}." for why, rows in apart.items()]


def _mean(results: TextResults, name: str) -> float:
    entry = difference(results, name, BASELINE)
    assert entry is not None, "every variant of a table is compared with softmax attention"
    return entry["mean"]


def _against(results: TextResults, name: str, other: str, at: At = "best") -> str:
    entry = difference(results, name, other, at)
    assert entry is not None, f"{name} is compared with {other}"
    return format_difference(entry)


def _describe_type(results: TextResults, name: str) -> str:
    clauses = [*_measured(results, name), *_at_common_rate(results, name)]
    return f"{type_name(name)}: {'; '.join([*clauses, *_against_controls(results, name)])}"


def _measured(results: TextResults, name: str) -> Iterator[str]:
    """Both endpoints, the parts of the loss, and the lead in copying."""
    variants = results["variants"]
    if why := phase.explain_gap(variants, name, BASELINE):
        yield f"not compared with the Transformer, as {why}"
    tests = {entry["measure"]: entry for entry in results["endpoints"] if entry["variant"] == name}
    for measure, entry in tests.items():
        p = "" if entry["p_holm"] is None else f", p {p_value(entry['p_holm'])}"
        if measure == "loss":
            yield f"{_against(results, name, BASELINE)}{p}"
        elif min(entry["values"]) >= 1:
            yield f"the Transformer's loss in no run{p}"
        else:
            share = f"{100 * entry['mean']:.0f} %"
            if entry["low"] is not None and entry["high"] is not None:
                share += f" ({100 * entry['low']:.0f} to {100 * entry['high']:.0f})"
            reached = sum(value < 1 for value in entry["values"])
            runs = "" if reached == entry["n"] else f", in {reached} of {entry['n']} runs"
            yield f"the Transformer's loss with {share} of the tokens{runs}{p}"
    for part, words in _PARTS.items():
        if of_part := difference(results, name, BASELINE, metric=part):
            yield f"{words} {format_difference(of_part)}"
    passed = [phase.when_passed(variants[side]["at"]["best"]) for side in (name, BASELINE)]
    if any(passed):
        yield f"begins to copy {passed[0] or 'in no run'}, the Transformer {passed[1] or 'in none'}"
    for lead in results.get("adjusted_leads", ()):
        if lead["variant"] == name:
            mean, low, high = (number(lead[k], 3, signed=True) for k in ("mean", "low", "high"))
            yield f"among runs that begin to copy at the same step {mean} ({low} to {high})"


def _at_common_rate(results: TextResults, name: str) -> Iterator[str]:
    if difference(results, name, BASELINE, "common") is None:
        return
    if why := phase.explain_gap(results["variants"], name, BASELINE, "common"):
        yield f"not compared at the Transformer's learning rate, as {why}"
    yield f"at the Transformer's learning rate {_against(results, name, BASELINE, 'common')}"


def _against_controls(results: TextResults, name: str) -> Iterator[str]:
    controls = [
        other
        for other in (*own_side_effects(name), *SIDE_EFFECTS)
        if difference(results, name, other)
    ]
    if controls:
        yield "minus its controls: " + listing(
            f"{control_name(other)} {_against(results, name, other)}" for other in controls
        )


def _split_rows(
    results: TextResults,
) -> tuple[list[tuple[Row, TextDifference]], dict[str, list[str]]]:
    """Rows that are compared, with their differences; and reason -> names of the other rows.

    A row is not compared if a side diverged. Nor if a side has not passed the induction phase
    while another model has: then the losses only show which models copy already."""
    compared: list[tuple[Row, TextDifference]] = []
    apart: dict[str, list[str]] = {}
    for row in results["rows"]:
        pair = (row["variant"], row["baseline"])
        why = phase.explain_divergence(results.get("diverged", {}), *pair)
        if why := why or phase.explain_gap(results["variants"], *pair, row["at"]):
            apart.setdefault(why, []).append(_row_name(row))
            continue
        entry = difference(results, *pair, row["at"])
        assert entry is not None, "a row that did not diverge has a difference"
        compared.append((row, entry))
    return compared, apart


def _leaves_out_zero(entry: TextDifference) -> bool:
    assert entry["low"] is not None
    assert entry["high"] is not None
    return not entry["low"] <= 0 <= entry["high"]


def _row_name(row: Row) -> str:
    where = " at the common learning rate" if row["at"] == "common" else ""
    return f"{type_name(row['variant'])} against {type_name(row['baseline'])}{where}"
