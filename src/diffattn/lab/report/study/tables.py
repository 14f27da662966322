"""Tables of a study of models on text: losses, differences and tests."""

from collections.abc import Sequence
from typing import Any

from diffattn.lab.catalog.models import FLOOR
from diffattn.lab.report.page.phase import explain_divergence
from diffattn.lab.report.page.runs import BASELINE
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
    rate_name,
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
    "control": "Controls: models that lack the part which a lead is said to come from.",
    "ablation": "Ablations: one part changed at a time.",
    "match": "The same types, matched in another way.",
}


def results_table(study: TextStudy, at: str = "best") -> Table | None:
    """The baseline and the types at one learning rate; ``None`` before the study has finished."""
    every = study.entries
    shown = {name: variant for name, variant in every.items() if variant["role"] in COMPARED}
    if not every or (at == "common" and all(at not in v["at"] for v in shown.values())):
        return None
    floors = [FLOOR] if FLOOR in every else []
    rows = []
    for name, variant in shown.items():
        group = variant["at"].get(at, variant["at"]["best"])
        row = [type_cell(name), _size_cell(study, name), loss_cell(group)]
        row += [difference_cell(study, name, other, at) for other in (BASELINE, *floors)]
        if at == "best":
            losses, others = (train_losses(study, side) for side in (name, BASELINE))
            is_paired = name != BASELINE and losses and len(losses) == len(others)
            change = paired_difference(losses, others).recorded() if is_paired else None
            row.append(mean_cell(change, signed=True))
        rows.append(row)
    headers = ["Model", "Parameters, FLOPs per token", "Loss", "Minus Transformer"]
    headers += ["Minus no attention"] * len(floors)
    headers += ["Training loss, minus Transformer"] if at == "best" else []
    rate = "" if at == "best" else " All models at the Transformer's learning rate."
    sizes = sorted({len(variant["at"]["best"]["runs"]) for variant in shown.values()})
    seeds = plural(sizes[0], "seed") if len(sizes) == 1 else "seeds"
    if len(sizes) > 1:
        seeds = f"{sizes[0]} to {sizes[-1]} seeds"
    caption = (
        f"Validation loss in nats per token, mean over {seeds}. Lower is better."
        f"{_interval_words(study)}{rate}"
    )
    return table(caption, headers, rows)


def other_tables(study: TextStudy) -> list[Table]:
    """Tables of controls, ablations and other matches, each compared with its baseline."""
    tested = {row["variant"] for row in study.rows}
    others = {name: v["role"] for name, v in study.entries.items() if name not in tested}
    tables = []
    for role in dict.fromkeys((*_CAPTIONS, *others.values())):
        names = [name for name, other in others.items() if other == role]
        if names and role not in COMPARED:
            tables.append(_role_table(study, role, names))
    return tables


def rows_table(study: TextStudy) -> Table | None:
    """The rows of a study of ablations or ranks, with the paper's numbers; else ``None``."""
    rows = study.rows
    if not rows:
        return None
    every, diverged = study.entries, study.recorded.get("diverged", {})
    printed, losses = study.info.get("kind") == "ablations", table_6()
    cells = []
    for row in rows:
        name, baseline, at = row["variant"], row["baseline"], row["at"]
        variant = every.get(name, {"at": {}})
        entry = study.difference(name, baseline, at)
        reason = explain_divergence(diverged, name, baseline)
        words = study.in_words(entry) if entry else f"{NOT_COMPARED}: {reason}" if reason else ""
        rate = "" if at == "best" else f", {RATES[at]} rate"
        is_known = {name, baseline} <= losses.keys()
        change = losses[name] - losses[baseline] if is_known else None
        in_paper = {"Table 6": number_cell(number(change, 3, signed=True))} if printed else {}
        cells.append(
            {
                "Model": type_cell(name, variant.get("what", "")),
                "Parameters, FLOPs per token": _size_cell(study, name),
                "Attention's parameters": _attention_cell(study, name),
                "Loss": loss_cell(variant["at"].get(at, variant["at"].get("best"))),
                "Compared with": word_cell(f"{type_name(baseline)}{rate}"),
                "Difference": difference_cell(study, name, baseline, at),
                **in_paper,
                "In words": word_cell(words or MISSING),
            }
        )
    caption = f"Differences in validation loss, seed by seed.{_interval_words(study)}"
    if printed:
        caption += (
            " Table 6: the same difference in arXiv:2410.05258v2, of 1.4B parameters, 10B tokens "
            "and one seed."
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
    headers += ["Loss at equal processor time", "Loss if both began to copy at the same step"]
    caption = (
        f"Each type beside the Transformer.{_interval_words(study)} p: paired t tests, adjusted by "
        f"Holm over these {len(results['endpoints'])}; a pair that is not compared counts with 1. "
        "Where all tokens do not suffice they count as 100 %. "
        "At equal processor time a slower model has not finished its schedule. The last column is "
        "an estimate from all runs, by least squares."
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


def _role_table(study: TextStudy, role: str, names: Sequence[str]) -> Table:
    every = study.entries
    rates = [at for at in RATES if any(at in every[name]["at"] for name in names)]
    rows = []
    for name in names:
        best, baseline = every[name]["at"]["best"], study.baseline_of(name)
        entry = None if baseline is None else study.difference(name, baseline)
        titles = ["Difference"] if len(rates) == 1 else ["Chosen rate", "Common rate"]
        differences = (difference_cell(study, name, baseline, at) for at in rates)
        to_softmax = {"Minus Transformer": difference_cell(study, name, BASELINE)}
        rows.append(
            {
                "Model": type_cell(name, every[name].get("what", "")),
                "Parameters, FLOPs per token": _size_cell(study, name),
                "Rate": number_cell(rate_name(best["learning_rate"])),
                "Loss": loss_cell(best),
                "Compared with": word_cell(type_name(baseline) if baseline else MISSING),
                **dict(zip(titles, differences, strict=True)),
                **(to_softmax if role == "match" else {}),
                "In words": word_cell(study.in_words(entry) if entry else "no finished pair"),
            }
        )
    return record_table(_CAPTIONS.get(role, f"{role.capitalize()}."), rows)


def _attention_cell(study: TextStudy, name: str) -> Cell:
    every = study.entries
    here, there = (every.get(side, {}).get("attention_parameters") for side in (name, "diff"))
    note = f"{ratio(here, there)} V1's"
    if name.startswith("shared_diff") and here is not None and there is not None and here > there:
        note += ": above break-even"
    return number_cell(count(here), note=note)
