"""Tables behind the results of a study on text: runs, rates, parts of the loss and phase."""

from collections.abc import Mapping, Sequence
from math import inf
from statistics import median
from typing import Any

from diffattn.lab.catalog.models import BASELINE
from diffattn.lab.report.page.tables import (
    Table,
    head_cell,
    number_cell,
    table,
    type_cell,
    word_cell,
)
from diffattn.lab.report.page.wording import MISSING, count, ends, number, rate_name, type_name
from diffattn.lab.report.study.files import COUNT_MODELS, LOSS, PARTS, TextStudy, groups_of


def runs_table(study: TextStudy) -> Table:
    """All runs behind the means: rate, loss and bits per byte."""
    by_name = {run.name: run for run in study.runs}
    rows = []
    for name, variant in study.entries.items():
        for group in groups_of(variant):
            for run, loss in zip(group["runs"], group[LOSS]["values"], strict=True):
                bits = by_name[run].result("validation_bits_per_byte") if run in by_name else None
                cells = [rate_name(group["learning_rate"]), number(loss), number(bits)]
                rows.append([type_cell(name), word_cell(run), *map(number_cell, cells)])
    headers = ["Model", "Run", "Learning rate", "Validation loss", "Bits per byte"]
    return table("Every run that counts.", headers, rows)


def rates_table(study: TextStudy) -> Table:
    """Losses at every rate of the sweep, of short runs and of all steps."""
    swept = swept_rates(study)
    rates = sorted({run["learning_rate"] for entry in swept.values() for run in entry["tried"]})
    rows = []
    for name, entry in swept.items():
        for key, steps in (("tried", "sweep"), ("whole", "all")):
            by_rate = {run["learning_rate"]: run for run in entry.get(key, ())}
            if not by_rate:
                continue
            decides = key == "whole" or not entry.get("whole")
            cells = dict.fromkeys(rates, number_cell(MISSING))
            for rate in filter(by_rate.get, rates):
                run = by_rate[rate]
                loss = run["validation_loss"]
                shown = "diverged" if loss is None else number(loss)
                note = "chosen" if decides and rate == entry["best"] else ""
                cells[rate] = number_cell(shown, [run["run"]], note=note)
            rows.append([type_cell(name), word_cell(steps), *cells.values()])
    headers = ["Model", "Steps", *map(rate_name, rates)]
    return table("Validation loss at every rate tried, nats per token.", headers, rows)


def swept_rates(study: TextStudy) -> dict[str, dict[str, Any]]:
    """Swept variant -> its recorded sweep, in the order shown."""
    recorded = study.recorded.get("rates", {"variants": {}})["variants"]
    return {name: recorded[name] for name in study.variants if recorded.get(name, {}).get("tried")}


def parts_table(
    study: TextStudy, names: Sequence[str], parts: Mapping[str, str], caption: str
) -> Table | None:
    """Loss of variants on parts of the tokens; ``None`` if no part was recorded."""
    every, rows = study.entries, []
    for name in (name for name in names if name in every):
        best = every[name]["at"]["best"]
        cells = dict.fromkeys(parts, number_cell(MISSING))
        known = [part for part in parts if part in best["parts"]]
        for part in known:
            mean, note = number(best["parts"][part]["mean"]), _change(study, name, part)
            cells[part] = number_cell(mean, best["runs"], note=note)
        if known:
            rows.append([type_cell(name), *cells.values()])
    if not rows:
        return None
    counts = study.recorded.get("count_models", {})
    for name, title in COUNT_MODELS.items() if parts is PARTS else ():
        if name in counts:
            losses = counts[name].get("parts") or {}
            counted = (number_cell(number(losses.get(part))) for part in parts)
            rows.append([head_cell(f"{title} counts"), *counted])
    caption += (
        " Validation loss in nats per token, mean over seeds; below it the difference to the "
        "Transformer, paired by seed, and its interval."
    )
    return table(caption, ["Model", *parts.values()], rows)


def part_shares(study: TextStudy) -> str:
    """Share of the validation tokens in each part, in words; empty if no run counted them."""
    for run in study.runs:
        counted = run.result("validation_parts") or {}
        if counted.keys() >= PARTS.keys():
            total = sum(counted[part]["tokens"] for part in PARTS)
            shares = (
                f"{title.lower()} {number(100 * counted[part]['tokens'] / total, 0)} %"
                for part, title in PARTS.items()
            )
            return f"Share of the tokens: {', '.join(shares)}."
    return ""


def phase_table(study: TextStudy) -> Table | None:
    """The step at which each run passed the induction phase; ``None`` if that was not recorded."""
    recorded = study.recorded.get("phase")
    num_steps = count(study.info["config"]["train"]["num_steps"])

    def step_name(step: float) -> str:
        return f"over {num_steps}" if step == inf else count(step)

    rows = []
    for name, variant in study.entries.items():
        for group in groups_of(variant):
            steps = sorted(inf if x is None else x for x in group["phase_steps"])
            passed = sum(step < inf for step in steps)
            coverage = number(100 * (1 - 2.0 ** (1 - len(steps))), 0)
            spread = f"{step_name(steps[0])} to {step_name(steps[-1])} ({coverage} %)"
            cells = [f"{passed} of {len(steps)}", step_name(median(steps))]
            cells += [spread] if len(steps) > 1 else [MISSING]
            rows.append(
                [
                    type_cell(name),
                    number_cell(rate_name(group["learning_rate"])),
                    *(number_cell(text, group["runs"]) for text in cells),
                ]
            )
    if not rows or not recorded:
        return None
    caption = (
        f"Step at which a run has passed the induction phase: {recorded['what']}, below "
        f"{number(recorded['threshold'], 3)} nats. From the lowest to the highest step is an "
        "interval of the median, with its coverage."
    )
    return table(caption, ["Model", "Rate", "Passed", "Median step", "Lowest to highest"], rows)


def _change(study: TextStudy, name: str, part: str) -> str:
    """The difference on one part of the tokens; it names a baseline other than the Transformer."""
    for other in dict.fromkeys((BASELINE, study.baseline_of(name))):
        entry = None if other is None else study.difference(name, other, metric=part)
        if entry is None or name == BASELINE:
            continue
        text, interval = number(entry["mean"], signed=True), ends(entry, signed=True)
        text += f" ({interval})" if interval else ""
        return text if other == BASELINE else f"{text} to {type_name(entry['baseline'])}"
    return ""
