"""Tables of a study of models on text: losses, differences and tests."""

from collections.abc import Iterable, Sequence
from typing import Any

from diffattn.lab.catalog.models import FLOOR
from diffattn.lab.report.page.phase import explain_divergence
from diffattn.lab.report.page.runs import BASELINE
from diffattn.lab.report.page.tables import (
    Cell,
    Table,
    mean_cell,
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
    listing,
    number,
    p_value,
    plural,
    rate_name,
    ratio,
    type_name,
)
from diffattn.lab.report.paper import table_6
from diffattn.lab.report.study.files import TextStudy
from diffattn.lab.report.study.summary import (
    COMPARED,
    LOSS,
    NOT_COMPARED,
    RATES,
    at_equal_time,
    baseline_of,
    difference,
    groups_of,
    in_words,
    rows_of,
    train_losses,
    variants_of,
)
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
    shown = {name: variant for name, variant in every.items() if variant["role"] in COMPARED}
    if not every or (at == "common" and all(at not in v["at"] for v in shown.values())):
        return None
    floors = [FLOOR] if FLOOR in every else []
    rows = []
    for name, variant in shown.items():
        group = variant["at"].get(at, variant["at"]["best"])
        row = [type_cell(name), size_cell(study, name), loss_cell(group)]
        row += [difference_cell(study, name, other, at) for other in (BASELINE, *floors)]
        rows.append([*row, _train_cell(study, name)] if at == "best" else row)
    headers = ["Model", "Parameters, FLOPs per token", "Loss", "Minus Transformer"]
    headers += ["Minus no attention"] * len(floors)
    headers += ["Training loss, minus Transformer"] if at == "best" else []
    rate = "" if at == "best" else " All models at the Transformer's learning rate."
    caption = (
        f"Validation loss in nats per token, mean over {_seeds(shown.values())}. Lower is better."
        f"{_interval_words(study)}{rate}"
    )
    return table(caption, headers, rows)


def other_tables(study: TextStudy) -> list[Table]:
    """Tables of controls, ablations and other matches, each compared with its baseline."""
    tested = {row["variant"] for row in rows_of(study)}
    others = {name: v["role"] for name, v in variants_of(study).items() if name not in tested}
    tables = []
    for role in dict.fromkeys((*_CAPTIONS, *others.values())):
        names = [name for name, other in others.items() if other == role]
        if names and role not in COMPARED:
            tables.append(_role_table(study, role, names))
    return tables


def rows_table(study: TextStudy) -> Table | None:
    """The rows of a study of ablations or ranks, with the paper's numbers; else ``None``."""
    rows = rows_of(study)
    if not rows:
        return None
    every, diverged = variants_of(study), study.recorded.get("diverged", {})
    printed = study.info.get("kind") == "ablations"
    cells = []
    for row in rows:
        name, baseline, at = row["variant"], row["baseline"], row["at"]
        variant = every.get(name, {"at": {}})
        entry = difference(study, name, baseline, at)
        reason = explain_divergence(diverged, name, baseline)
        words = in_words(study, entry) if entry else f"{NOT_COMPARED}: {reason}" if reason else ""
        rate = "" if at == "best" else f", {RATES[at]} rate"
        cells.append(
            [
                type_cell(name, variant.get("what", "")),
                size_cell(study, name),
                _attention_cell(study, name),
                loss_cell(variant["at"].get(at, variant["at"].get("best"))),
                word_cell(f"{type_name(baseline)}{rate}"),
                difference_cell(study, name, baseline, at),
                *([number_cell(_printed(name, baseline))] if printed else []),
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
    results = study.recorded
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
                mean_cell(tests.get("loss"), 3, signed=True),
                _p_cell(tests.get("loss")),
                mean_cell(_in_percent(tests.get("tokens")), 0),
                _p_cell(tests.get("tokens")),
                mean_cell(at_equal_time(study, name), 3, signed=True),
                mean_cell(leads.get(name), 3, signed=True),
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
    """All types matched by parameters, heads and FLOPs; ``None`` if only one match was run."""
    every = variants_of(study)
    types = [name for name, variant in every.items() if variant["role"] == "type"]
    pairs = [
        (name, way, name + ending)
        for name in types
        for ending, way in _MATCHED_BY.items()
        if name + ending in every
    ]
    if len(pairs) <= len(types):
        return None
    rows = []
    for name, way, matched in pairs:
        runs, group = study.runs_of(matched), every[matched]["at"]["best"]
        shape = runs[0].record.config["model"] if runs else {}
        other = BASELINE if difference(study, matched, BASELINE) else baseline_of(study, matched)
        rows.append(
            [
                type_cell(name),
                word_cell(way),
                *(number_cell(count(shape.get(key))) for key in ("num_heads", "head_dim")),
                number_cell(count(shape.get("intermediate_size"))),
                size_cell(study, matched),
                loss_cell(group),
                word_cell(type_name(other) if other else MISSING),
                difference_cell(study, matched, other),
                run_cell(brief_names(group["runs"])),
            ]
        )
    headers = ["Model", "Equal", "Heads", "Head width", "FFN width", "Parameters, FLOPs per token"]
    headers += ["Loss", "Compared with", "Difference", "Runs"]
    caption = (
        "Each type at equal parameters, heads and training FLOPs, at the rate chosen for the type. "
        "Where equal parameters or heads give equal FLOPs too, no other model was trained."
    )
    return table(caption, headers, rows)


def size_cell(study: TextStudy, name: str) -> Cell:
    """Parameters, and below them FLOPs per token divided by the baseline's."""
    every, key = variants_of(study), "train_flops_per_token"
    here, base = (every.get(side, {}) for side in (name, BASELINE))
    return number_cell(count(here.get("parameters")), note=ratio(here.get(key), base.get(key)))


def loss_cell(group: dict[str, Any] | None) -> Cell:
    """A mean loss with its interval."""
    return number_cell(MISSING) if group is None else mean_cell(group[LOSS], runs=group["runs"])


def difference_cell(study: TextStudy, name: str, other: str | None, at: str = "best") -> Cell:
    """A mean difference with its interval."""
    entry = None if other is None else difference(study, name, other, at)
    names = [run for pair in entry["runs"] for run in pair] if entry else []
    return mean_cell(entry, runs=names, signed=True)


def level_of(study: TextStudy) -> str:
    """Coverage of the intervals, e.g. ``"95 %"``; empty if there are none."""
    losses = [group[LOSS] for v in variants_of(study).values() for group in groups_of(v)]
    levels = {loss["level"] for loss in losses if loss["low"] is not None}
    return listing(f"{100 * level:g} %" for level in sorted(levels))


def _interval_words(study: TextStudy) -> str:
    level = level_of(study)
    return f" Below each mean stands its {level} interval, which is not adjusted." if level else ""


def _seeds(shown: Iterable[dict[str, Any]]) -> str:
    sizes = {len(variant["at"]["best"]["runs"]) for variant in shown}
    if len(sizes) == 1:
        return plural(sizes.pop(), "seed")
    return f"{min(sizes)} to {max(sizes)} seeds" if sizes else "seeds"


def _role_table(study: TextStudy, role: str, names: Sequence[str]) -> Table:
    every = variants_of(study)
    rates = [at for at in RATES if any(at in every[name]["at"] for name in names)]
    rows = []
    for name in names:
        best, baseline = every[name]["at"]["best"], baseline_of(study, name)
        entry = None if baseline is None else difference(study, name, baseline)
        rows.append(
            [
                type_cell(name, every[name].get("what", "")),
                size_cell(study, name),
                number_cell(rate_name(best["learning_rate"])),
                loss_cell(best),
                word_cell(type_name(baseline) if baseline else MISSING),
                *(difference_cell(study, name, baseline, at) for at in rates),
                word_cell(in_words(study, entry) if entry else "no finished pair"),
            ]
        )
    headers = ["Model", "Parameters, FLOPs per token", "Rate", "Loss", "Compared with"]
    headers += ["Difference"] if len(rates) == 1 else ["Chosen rate", "Common rate"]
    return table(_CAPTIONS.get(role, f"{role.capitalize()}."), [*headers, "In words"], rows)


def _train_cell(study: TextStudy, name: str) -> Cell:
    losses, others = (train_losses(study, side) for side in (name, BASELINE))
    if name == BASELINE or not losses or len(losses) != len(others):
        return number_cell(MISSING)
    return mean_cell(paired_difference(losses, others).recorded(), signed=True)


def _p_cell(test: dict[str, Any] | None) -> Cell:
    return number_cell(MISSING if test is None else p_value(test["p_holm"]))


def _in_percent(entry: dict[str, Any] | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    return {
        key: None if entry[key] is None else 100 * entry[key] for key in ("mean", "low", "high")
    }


def _printed(variant: str, baseline: str) -> str:
    """The difference of two losses of Table 6; a dash if the table lacks one."""
    losses = table_6()
    known = {variant, baseline} <= losses.keys()
    return number(losses[variant] - losses[baseline] if known else None, 3, signed=True)


def _attention_cell(study: TextStudy, name: str) -> Cell:
    """Attention's parameters, their ratio to V1's, and a mark if Shared DIFF has more than V1."""
    every = variants_of(study)
    here, there = (every.get(side, {}).get("attention_parameters") for side in (name, "diff"))
    note = f"{ratio(here, there)} V1's"
    if name.startswith("shared_diff") and here is not None and there is not None:
        note += ": above break-even" if here > there else ""
    return number_cell(count(here), note=note)
