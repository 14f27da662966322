"""Tables of a study of models on text: losses, differences and tests."""

from collections.abc import Iterable, Sequence
from typing import Any

from diffattn.lab.catalog.models import FLOOR
from diffattn.lab.report.page.phase import explain_divergence
from diffattn.lab.report.page.runs import BASELINE
from diffattn.lab.report.page.tables import (
    Cell,
    Table,
    number_cell,
    run_cell,
    table,
    type_cell,
    word_cell,
)
from diffattn.lab.report.page.wording import (
    MISSING,
    brief_names,
    count,
    ends,
    listing,
    number,
    p_value,
    plural,
    rate_name,
    ratio,
    span,
    type_name,
)
from diffattn.lab.report.paper import table_6
from diffattn.lab.report.study.files import TextStudy
from diffattn.lab.report.study.summary import (
    COMPARED,
    NOT_COMPARED,
    RATES,
    Group,
    Variant,
    at_equal_time,
    baseline_of,
    difference,
    in_words,
    rows_of,
    train_losses,
    variants_of,
)
from diffattn.lab.stats.intervals import Interval
from diffattn.lab.stats.paired import paired_difference

_CAPTIONS = {
    "control": "Controls: models that lack the part which a lead is said to come from.",
    "ablation": "Ablations: one part changed at a time.",
    "match": "The same types, matched in another way.",
}
_MATCHED_BY = {"": "parameters", "_heads": "heads", "_flops": "training FLOPs"}


def results_table(study: TextStudy, at: str = "best") -> Table | None:
    """The baseline and the types at one learning rate; ``None`` before the study has finished."""
    every = variants_of(study)
    shown = [variant for variant in every.values() if variant.role in COMPARED]
    if study.results is None or (at == "common" and all(v.common is None for v in shown)):
        return None
    floors = [FLOOR] if FLOOR in every else []
    rows = []
    for variant in shown:
        row = [type_cell(variant.name), size_cell(variant, every), loss_cell(variant.group(at))]
        row += [difference_cell(study, variant, other, at) for other in (BASELINE, *floors)]
        rows.append([*row, _train_cell(study, variant)] if at == "best" else row)
    headers = ["Model", "Parameters, FLOPs per token", "Loss", "Minus Transformer"]
    headers += ["Minus no attention"] * len(floors)
    headers += ["Training loss, minus Transformer"] if at == "best" else []
    rate = "" if at == "best" else " All models at the Transformer's learning rate."
    caption = (
        f"Validation loss in nats per token, mean over {_seeds(shown)}. Lower is better."
        f"{_interval_words(study)}{rate}"
    )
    return table(caption, headers, rows)


def other_tables(study: TextStudy) -> list[Table]:
    """Controls, ablations and other matches, each against the model it stands beside."""
    tested = {row["variant"] for row in rows_of(study)}
    others = [v for v in variants_of(study).values() if v.best and v.name not in tested]
    roles = dict.fromkeys((*_CAPTIONS, *(variant.role for variant in others)))
    groups = {role: [v for v in others if v.role == role] for role in roles if role not in COMPARED}
    return [_role_table(study, role, shown) for role, shown in groups.items() if shown]


def rows_table(study: TextStudy) -> Table | None:
    """The rows of a study of ablations beside the paper's; else ``None``."""
    rows = rows_of(study)
    if not rows:
        return None
    every = variants_of(study)
    diverged = (study.results or {}).get("diverged") or {}
    printed = study.info.get("kind") == "ablations"
    cells = []
    for row in rows:
        variant = every.get(row["variant"]) or Variant(row["variant"], "ablation")
        baseline, at = row["baseline"], row["at"]
        entry = difference(study, variant.name, baseline, at)
        reason = explain_divergence(diverged, variant.name, baseline)
        words = in_words(study, entry) if entry else f"{NOT_COMPARED}: {reason}" if reason else ""
        rate = "" if at == "best" else f", {RATES[at]} rate"
        cells.append(
            [
                type_cell(variant.name, variant.summary),
                size_cell(variant, every),
                _attention_cell(variant, every.get("diff")),
                loss_cell(variant.group(at)),
                word_cell(f"{type_name(baseline)}{rate}"),
                difference_cell(study, variant, baseline, at),
                *([number_cell(_printed(variant.name, baseline))] if printed else []),
                word_cell(words or MISSING),
            ]
        )
    headers = ["Model", "Parameters, FLOPs per token", "Attention's parameters", "Loss"]
    headers += ["Compared with", "Difference"]
    caption = f"Differences in validation loss, seed by seed.{_interval_words(study)}"
    if printed:
        headers.append("Table 6")
        caption += (
            " Table 6: the same difference in arXiv:2410.05258v2, of 1.4B parameters, 10B tokens "
            "and one seed."
        )
    return table(caption, [*headers, "In words"], cells)


def endpoints_table(study: TextStudy) -> Table | None:
    """The tests of the types by loss and by tokens; ``None`` if there are none."""
    results = study.results or {}
    if not results.get("endpoints"):
        return None
    leads = {entry["variant"]: entry for entry in results.get("adjusted_leads", ())}
    rows = []
    for name in dict.fromkeys(entry["variant"] for entry in results["endpoints"]):
        tests = {
            entry["measure"]: entry for entry in results["endpoints"] if entry["variant"] == name
        }
        rows.append(
            [
                type_cell(name),
                *_test_cells(tests.get("loss"), signed=True),
                *_test_cells(tests.get("tokens"), factor=100),
                _estimate_cell(_recorded(at_equal_time(study, name)), signed=True),
                _estimate_cell(leads.get(name), signed=True),
            ]
        )
    headers = ["Model", "Loss", "p", "Tokens to the Transformer's loss, %", "p"]
    headers += ["Loss at equal processor time", "Loss if both began to copy at the same step"]
    caption = (
        f"Each type beside the Transformer.{_interval_words(study)} p: paired t tests, adjusted by "
        f"Holm over these {len(results['endpoints'])}; a pair that is not compared counts with 1. "
        "Where all tokens do not suffice they count as 100 %. "
        "At equal processor time a slower model has not finished its schedule. The last column is "
        "an estimate from all runs, by least squares."
    )
    return table(caption, headers, rows)


def matching_table(study: TextStudy) -> Table | None:
    """Every type matched by parameters, heads and FLOPs; ``None`` if there is one way only."""
    every = variants_of(study)
    types = [name for name, variant in every.items() if variant.role == "type"]
    pairs = [
        (name, way, every[name + ending])
        for name in types
        for ending, way in _MATCHED_BY.items()
        if name + ending in every and every[name + ending].best
    ]
    if len(pairs) <= len(types):
        return None
    rows = []
    for name, way, matched in pairs:
        runs = study.runs_of(matched.name)
        shape = runs[0].record.config["model"] if runs else {}
        other = BASELINE if difference(study, matched.name, BASELINE) else None
        other = other or baseline_of(study, matched.name)
        rows.append(
            [
                type_cell(name),
                word_cell(way),
                *(number_cell(count(shape.get(key))) for key in ("num_heads", "head_dim")),
                number_cell(count(shape.get("intermediate_size"))),
                size_cell(matched, every),
                loss_cell(matched.best),
                word_cell(type_name(other) if other else MISSING),
                difference_cell(study, matched, other),
                run_cell(brief_names(matched.best.runs if matched.best else ())),
            ]
        )
    headers = ["Model", "Equal", "Heads", "Head width", "FFN width", "Parameters, FLOPs per token"]
    headers += ["Loss", "Compared with", "Difference", "Runs"]
    caption = (
        "Each type at equal parameters, heads and training FLOPs, at the rate chosen for the type. "
        "Where equal parameters or heads give equal FLOPs too, no other model was trained."
    )
    return table(caption, headers, rows)


def size_cell(variant: Variant, every: dict[str, Variant]) -> Cell:
    """Parameters, and below them FLOPs per token as a factor of the baseline's."""
    base = every.get(BASELINE)
    flops = ratio(variant.train_flops_per_token, base.train_flops_per_token if base else None)
    return number_cell(count(variant.parameters), note=flops)


def loss_cell(group: Group | None) -> Cell:
    """A mean loss with its interval."""
    if group is None:
        return number_cell(MISSING)
    return number_cell(number(group.loss.mean), group.runs, note=ends(group.loss))


def difference_cell(
    study: TextStudy, variant: Variant, other: str | None, at: str = "best"
) -> Cell:
    """A mean difference with its interval."""
    entry = None if other is None else difference(study, variant.name, other, at)
    if entry is None:
        return number_cell(MISSING)
    names = [run for pair in entry.runs for run in pair]
    text = number(entry.interval.mean, signed=True)
    return number_cell(text, names, note=ends(entry.interval, signed=True))


def level_of(study: TextStudy) -> str:
    """Coverage of the intervals, e.g. ``"95 %"``; empty if there are none."""
    groups = [v.group(at) for v in variants_of(study).values() for at in RATES]
    levels = {group.loss.level for group in groups if group and group.loss.low is not None}
    return listing(f"{100 * level:g} %" for level in sorted(levels))


def _interval_words(study: TextStudy) -> str:
    level = level_of(study)
    return f" Below each mean stands its {level} interval, which is not adjusted." if level else ""


def _seeds(shown: Iterable[Variant]) -> str:
    sizes = {len(variant.best.runs) for variant in shown if variant.best is not None}
    if len(sizes) == 1:
        return plural(sizes.pop(), "seed")
    return f"{min(sizes)} to {max(sizes)} seeds" if sizes else "seeds"


def _role_table(study: TextStudy, role: str, shown: Sequence[Variant]) -> Table:
    every, rates = variants_of(study), list(RATES)
    if all(variant.common is None for variant in shown):
        rates = ["best"]
    rows = []
    for variant in shown:
        baseline = baseline_of(study, variant.name)
        entry = None if baseline is None else difference(study, variant.name, baseline)
        words = in_words(study, entry) if entry else "no finished pair"
        rows.append(
            [
                type_cell(variant.name, variant.summary),
                size_cell(variant, every),
                number_cell(rate_name(variant.best.learning_rate if variant.best else None)),
                loss_cell(variant.best),
                word_cell(type_name(baseline) if baseline else MISSING),
                *(difference_cell(study, variant, baseline, at) for at in rates),
                word_cell(words),
            ]
        )
    headers = ["Model", "Parameters, FLOPs per token", "Rate", "Loss", "Compared with"]
    headers += ["Difference"] if len(rates) == 1 else ["Chosen rate", "Common rate"]
    return table(_CAPTIONS.get(role, f"{role.capitalize()}."), [*headers, "In words"], rows)


def _train_cell(study: TextStudy, variant: Variant) -> Cell:
    losses, others = (train_losses(study, name) for name in (variant.name, BASELINE))
    if variant.name == BASELINE or not losses or len(losses) != len(others):
        return number_cell(MISSING)
    interval = paired_difference(losses, others)
    text = number(interval.mean, signed=True)
    return number_cell(text, note=ends(interval, signed=True))


def _recorded(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else interval.recorded()


def _test_cells(
    entry: dict[str, Any] | None, factor: float = 1, *, signed: bool = False
) -> list[Cell]:
    p = MISSING if entry is None else p_value(entry["p_holm"])
    return [_estimate_cell(entry, factor, signed=signed), number_cell(p)]


def _estimate_cell(
    entry: dict[str, Any] | None, factor: float = 1, *, signed: bool = False
) -> Cell:
    """A mean with its interval below."""
    if entry is None:
        return number_cell(MISSING)
    digits = 0 if factor == 100 else 3
    low, high = (None if entry[end] is None else factor * entry[end] for end in ("low", "high"))
    note = "" if low is None or high is None else span(low, high, digits, signed=signed)
    return number_cell(number(factor * entry["mean"], digits, signed=signed), note=note)


def _printed(variant: str, baseline: str) -> str:
    """The difference of two losses of Table 6."""
    losses = table_6()
    known = {variant, baseline} <= losses.keys()
    return number(losses[variant] - losses[baseline] if known else None, 3, signed=True)


def _attention_cell(variant: Variant, v1: Variant | None) -> Cell:
    """Attention's parameters beside those of DIFF V1, and whether Shared DIFF has more."""
    here, there = variant.attention_parameters, v1.attention_parameters if v1 else None
    note = f"{ratio(here, there)} V1's"
    if variant.name.startswith("shared_diff") and here is not None and there is not None:
        note += ": above break-even" if here > there else ""
    return number_cell(count(here), note=note)
