"""Tables of a study of models on text: losses, differences and tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from diffattn.lab.catalog.models import BASELINE, FLOOR
from diffattn.lab.report.page.phase import explain_divergence
from diffattn.lab.report.page.tables import (
    Cell,
    Table,
    mean_cell,
    number_cell,
    record_table,
    table,
    type_cell,
    word_cell,
)
from diffattn.lab.report.page.wording import (
    MISSING,
    count,
    listing,
    number,
    p_value,
    plural,
    ratio,
    type_name,
)
from diffattn.lab.report.paper import table_6
from diffattn.lab.report.study.files import (
    COMPARED,
    LOSS,
    NOT_COMPARED,
    RATES,
    TextStudy,
    at_equal_time,
    groups_of,
    train_losses,
)
from diffattn.lab.stats.paired import paired_difference

_CAPTIONS = {
    "type": "The types at the Transformer's learning rate.",
    "control": "Controls: models that lack the part which a lead is said to come from.",
    "ablation": "Ablations: one part changed at a time.",
    "match": "The same types, matched in another way.",
}


def results_table(study: TextStudy) -> Table | None:
    """The baseline and the types at their rates; ``None`` before the study has finished."""
    every = study.entries
    shown = {name: variant for name, variant in every.items() if variant["role"] in COMPARED}
    if not every:
        return None
    floors = [FLOOR] if FLOOR in every else []
    rows = []
    for name, variant in shown.items():
        row = [type_cell(name), _size_cell(study, name), loss_cell(variant["at"]["best"])]
        row += [difference_cell(study, name, other) for other in (BASELINE, *floors)]
        losses, others = (train_losses(study, side) for side in (name, BASELINE))
        is_paired = name != BASELINE and losses and len(losses) == len(others)
        change = paired_difference(losses, others).recorded() if is_paired else None
        rows.append([*row, mean_cell(change, signed=True)])
    headers = ["Model", "Parameters, FLOPs per token", "Loss", "Minus Transformer"]
    headers += [*["Minus no attention"] * len(floors), "Training loss, minus Transformer"]
    sizes = sorted({len(variant["at"]["best"]["runs"]) for variant in shown.values()})
    seeds = plural(sizes[0], "seed") if len(sizes) == 1 else "seeds"
    if len(sizes) > 1:
        seeds = f"{sizes[0]} to {sizes[-1]} seeds"
    caption = (
        f"Validation loss in nats per token, mean over {seeds}. Lower is better."
        f"{_interval_words(study)}"
    )
    return table(caption, headers, rows)


def other_tables(study: TextStudy) -> list[Table]:
    """Tables of tests, types at the common rate, controls, ablations, matches, and the rows."""
    tested = {row["variant"] for row in study.rows}
    others = {name: v for name, v in study.entries.items() if name not in tested}
    tables = [endpoints_table(study)]
    for role in dict.fromkeys((*_CAPTIONS, *(v["role"] for v in others.values()))):
        rows = [
            {"variant": name, "baseline": baseline, "at": at}
            for name, variant in others.items()
            if variant["role"] == role != "baseline"
            for baseline in dict.fromkeys(
                [study.baseline_of(name), *([BASELINE] if role == "match" else [])]
            )
            for at in RATES
            if at in variant["at"] and (role, at) != ("type", "best")
        ]
        if rows:
            tables.append(_pairs_table(study, rows, _CAPTIONS.get(role, f"{role.capitalize()}.")))
    return [values for values in (*tables, rows_table(study)) if values is not None]


def rows_table(study: TextStudy) -> Table | None:
    """The rows of a study of ablations or ranks, with the paper's numbers; else ``None``."""
    caption = f"Differences in validation loss, seed by seed.{_interval_words(study)}"
    if study.info.get("kind") == "ablations":
        caption += (
            " Table 6: the same difference in arXiv:2410.05258v2, of 1.4B parameters, 10B tokens "
            "and one seed."
        )
    return _pairs_table(study, study.rows, caption) if study.rows else None


def _pairs_table(study: TextStudy, rows: Sequence[Mapping[str, Any]], caption: str) -> Table:
    every, diverged = study.entries, study.recorded.get("diverged", {})
    is_of_rows, losses = rows is study.rows, table_6()
    printed = is_of_rows and study.info.get("kind") == "ablations"
    cells = []
    for row in rows:
        name, baseline, at = row["variant"], row["baseline"], row["at"]
        variant = every.get(name, {"at": {}})
        entry = baseline and study.difference(name, baseline, at)
        reason = explain_divergence(diverged, name, baseline)
        words = study.in_words(entry) if entry else f"{NOT_COMPARED}: {reason}" if reason else ""
        rate = "" if at == "best" else f", {RATES[at]} rate"
        change = losses[name] - losses[baseline] if {name, baseline} <= losses.keys() else None
        size = {"Attention's parameters": _attention_cell(study, name)} if is_of_rows else {}
        in_paper = {"Table 6": number_cell(number(change, 3, signed=True))} if printed else {}
        cells.append(
            {
                "Model": type_cell(name, variant.get("what", "")),
                "Parameters, FLOPs per token": _size_cell(study, name),
                **size,
                "Loss": loss_cell(variant["at"].get(at, variant["at"].get("best"))),
                "Compared with": word_cell(f"{type_name(baseline)}{rate}" if baseline else MISSING),
                "Difference": difference_cell(study, name, baseline, at),
                **in_paper,
                "In words": word_cell(words or MISSING),
            }
        )
    return record_table(caption, cells)


def endpoints_table(study: TextStudy) -> Table | None:
    """The tests of the types by loss and by tokens; ``None`` if there are none."""
    results = study.recorded
    if not results.get("endpoints"):
        return None
    leads = {entry["variant"]: entry for entry in results.get("adjusted_leads", ())}
    rows = []
    for name in dict.fromkeys(entry["variant"] for entry in results["endpoints"]):
        tests = {x["measure"]: x for x in results["endpoints"] if x["variant"] == name}
        loss, tokens = tests.get("loss"), tests.get("tokens")
        loss_p, tokens_p = (p_value(x["p_holm"]) if x else MISSING for x in (loss, tokens))
        ends = ("mean", "low", "high")
        share = tokens and {x: None if tokens[x] is None else 100 * tokens[x] for x in ends}
        rows.append(
            [
                type_cell(name),
                mean_cell(loss, 3, signed=True),
                number_cell(loss_p),
                mean_cell(share, 0),
                number_cell(tokens_p),
                mean_cell(at_equal_time(study, name), 3, signed=True),
                mean_cell(leads.get(name), 3, signed=True),
            ]
        )
    headers = ["Model", "Loss", "p", "Tokens to the Transformer's loss, %", "p"]
    headers += ["Loss at equal time", "Loss, adjusted for when copying begins"]
    caption = (
        f"Each type beside the Transformer.{_interval_words(study)} p: paired t tests, adjusted by "
        f"Holm over these {len(results['endpoints'])}; a pair that is not compared counts with 1. "
        "Tokens and time compare losses during training. A seed that never reaches the "
        "Transformer's counts with the inverse share, the Transformer's to that seed's last loss. "
        "At equal time, of the processor or on a GPU of the clock, a slower model has not finished "
        "its schedule. The last column is an estimate by least squares from the runs of both."
    )
    return table(caption, headers, rows)


def _size_cell(study: TextStudy, name: str) -> Cell:
    every, key = study.entries, "train_flops_per_token"
    here, base = (every.get(side, {}) for side in (name, BASELINE))
    return number_cell(count(here.get("parameters")), note=ratio(here.get(key), base.get(key)))


def loss_cell(group: dict[str, Any] | None) -> Cell:
    """A mean loss with its interval."""
    return number_cell(MISSING) if group is None else mean_cell(group[LOSS], runs=group["runs"])


def difference_cell(study: TextStudy, name: str, other: str | None, at: str = "best") -> Cell:
    """A mean difference with its interval."""
    entry = None if other is None else study.difference(name, other, at)
    names = [run for pair in entry["runs"] for run in pair] if entry else []
    return mean_cell(entry, runs=names, signed=True)


def level_of(study: TextStudy) -> str:
    """Coverage of the intervals, e.g. ``"95 %"``; empty if there are none."""
    losses = [group[LOSS] for v in study.entries.values() for group in groups_of(v)]
    levels = {loss["level"] for loss in losses if loss["low"] is not None}
    return listing(f"{100 * level:g} %" for level in sorted(levels))


def _interval_words(study: TextStudy) -> str:
    level = level_of(study)
    return f" Below each mean stands its {level} interval, which is not adjusted." if level else ""


def _attention_cell(study: TextStudy, name: str) -> Cell:
    every = study.entries
    here, there = (every.get(side, {}).get("attention_parameters") for side in (name, "diff"))
    note = f"{ratio(here, there)} V1's"
    if name.startswith("shared_diff") and here is not None and there is not None and here > there:
        note += ": above break-even"
    return number_cell(count(here), note=note)
