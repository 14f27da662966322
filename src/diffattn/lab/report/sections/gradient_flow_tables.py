"""Tables of a gradient-flow study."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from diffattn.lab.report.page.runs import Study
from diffattn.lab.report.page.tables import (
    Cell,
    Table,
    head_cell,
    mean_cell,
    number_cell,
    table,
    word_cell,
)
from diffattn.lab.report.page.wording import MISSING, brief_names, count, number, span, type_name

BASE = "base"
"""Name of the arm that changes no setting."""
NULL = "other seed"
"""Stands in place of a type for the baseline's run with the next seed."""
COLUMNS = {"q": "W_Q", "k": "W_K", "v": "W_V", "o": "W_O", "ffn": "FFN"}
PARTS = {"q1": "W_Q1", "q2": "W_Q2", "k1": "W_K1", "k2": "W_K2"}
MEASURES = {
    "gradient": "Size of the gradient before clipping",
    "update": "Size of AdamW's update per unit of learning rate",
}
WIDE = "softmax_wide"


def judgement_table(study: Study) -> Table:
    """Tabulate each claim and its verdict, by the rule that was fixed before the first run."""
    rows = [
        [
            head_cell(row["says"]),
            word_cell(row["verdict"]),
            word_cell(", ".join(row["phases"]) or MISSING),
            _cell(row),
            number_cell(f"below {row['bound']:g}"),
            word_cell(row["why"] or MISSING),
        ]
        for row in study.recorded["judgements"]
    ]
    caption = (
        "Each row names the largest factor, either way, by which the claim is missed, over the "
        "four matrices (or layers) and the judged phases, per seed; mean over seeds and its "
        "interval."
    )
    return table(caption, ["Statement", "Verdict", "Phases", "Factor", "If it holds", "Why"], rows)


def ratio_table(study: Study, measure: str, phase: str) -> Table:
    """Tabulate one measure in one phase: a row per pair, a column per matrix."""
    entries = ratios_of(study, arm=BASE, measure=measure, phase=phase)
    rows = _rows_by_pair(entries, "matrix", COLUMNS)
    caption = (
        f"{MEASURES[measure]}, {phase} ({_steps(study, phase)}): factor to the model after “over”, "
        "geometric mean over layers, steps and seeds, and its interval."
    )
    return table(caption, ["Models", *COLUMNS.values()], rows)


def slope_table(study: Study) -> Table:
    """Tabulate the reduction of the loss by an update, over the phases."""
    phases = study.info["phases"]
    rows = _rows_by_pair(ratios_of(study, arm=BASE, measure="slope"), "phase", phases)
    caption = (
        "Reduction of the loss by the updates of W_Q, W_K, W_V and W_O per unit of learning rate, "
        "to first order: factor to the model after “over”. No number where it is not positive."
    )
    return table(caption, ["Models", *phases], rows)


def _rows_by_pair(
    entries: Sequence[dict[str, Any]], key: str, columns: Iterable[str]
) -> list[list[Cell]]:
    """One row per pair of models, one column per value of the field ``key``."""
    pairs: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in entries:
        pairs.setdefault((entry["type"], entry["baseline"]), {})[entry[key]] = entry
    return [
        [head_cell(_pair_name(*pair)), *(_cell(cells.get(column)) for column in columns)]
        for pair, cells in pairs.items()
    ]


def part_table(study: Study) -> Table:
    """Tabulate the gradients and updates of each map's own matrices in DIFF V1."""
    rows = []
    for measure in MEASURES:
        for phase in study.info["phases"]:
            entries = ratios_of(
                study, arm=BASE, measure=measure, phase=phase, type="diff", baseline=WIDE
            )
            cells = {e["matrix"]: e for e in entries}
            if set(cells) & set(PARTS):
                row = [_cell(cells.get(part)) for part in PARTS]
                rows.append([head_cell(f"{measure}, {phase}"), *row])
    caption = (
        "DIFF V1's matrices of each map over the whole W_Q and W_K of softmax attention with half "
        "the heads: the second map's gradient carries λ."
    )
    return table(caption, ["Measure", *PARTS.values()], rows)


def arm_table(study: Study) -> Table:
    """Tabulate gradients at the start over depth, width and λ_init."""
    phase = next(iter(study.info["phases"]))
    rows = []
    for arm, name in [
        *((arm, "diff") for arm in study.info["arms"]),
        *((BASE, name) for name in study.types if name.startswith("diff_lambda")),
    ]:
        entries = ratios_of(
            study, arm=arm, measure="gradient", phase=phase, type=name, baseline=WIDE
        )
        cells = {e["matrix"]: e for e in entries}
        gains = [
            entry["norm_gain"]["mean"]
            for entry in study.recorded["heads"]
            if (entry["arm"], entry["type"], entry["phase"]) == (arm, name, phase)
        ]
        gain = span(min(gains), max(gains), 2) if gains else MISSING
        label = arm_name(study, arm) if name == "diff" else type_name(name)
        rows.append([head_cell(label), *(_cell(cells.get(m)) for m in COLUMNS), number_cell(gain)])
    caption = (
        f"DIFF V1's gradients over those of softmax attention with half the heads, {phase} "
        f"({_steps(study, phase)}), over depth, width, size of the values and λ_init; and the gain "
        "of the norm's Jacobian, smallest and largest layer."
    )
    return table(caption, ["Models", *COLUMNS.values(), "Norm's gain"], rows)


def head_table(study: Study) -> Table:
    """Tabulate the input of DIFF V1's head norms, layer by layer."""
    rows = [
        [
            head_cell(f"{entry['phase']}, layer {entry['layer'] + 1}"),
            number_cell(number(1 - entry["lambda_init"], 3)),
            *(_cell(entry[key], 3) for key in ("head_rms", "to_factor", "norm_gain")),
        ]
        for entry in study.recorded["heads"]
        if (entry["arm"], entry["type"]) == (BASE, "diff")
    ]
    caption = (
        "‖x‖/√(2d) of a head before its norm, median over tokens and heads; the appendix has it "
        "at 1 − λ_init, and the norm's gain (1 − λ_init) w √(2d)/‖x‖ at 1. Mean over seeds."
    )
    headers = ["Phase and layer", "1 − λ_init", "‖x‖/√(2d)", "over 1 − λ_init", "Norm's gain"]
    return table(caption, headers, rows)


def run_table(study: Study) -> Table:
    """Tabulate every model: its size and the cost of its runs."""
    rows = []
    for arm in study.info["arms"]:
        for name in study.types if arm == BASE else study.info["types_of_arms"]:
            runs = [run for run in study.runs if run.name.startswith(f"{arm}-{name}-seed")]
            if not runs:
                continue
            shape, model = runs[0].record.config["model"], runs[0].record.model
            seconds = [run.costs["cpu_seconds"] for run in runs if run.costs]
            names = [run.name for run in runs]
            values = [
                f"{count(shape.get('num_heads'))} of {shape.get('head_dim')}",
                count(shape.get("num_hidden_layers")),
                count(model.get("parameters")),
                f"{number(median(seconds), 1)} s" if seconds else MISSING,
            ]
            rows.append(
                [
                    head_cell(f"{arm_name(study, arm)}: {type_name(name)}"),
                    *(number_cell(value, names) for value in values),
                    word_cell(", ".join(brief_names(names))),
                ]
            )
    headers = ["Model", "Heads", "Layers", "Parameters", "Processor time", "Runs"]
    return table("The models; processor time is the median over runs.", headers, rows)


def _pair_name(name: str, baseline: str) -> str:
    """``"DIFF V1 over Transformer (softmax)"``."""
    first = f"{type_name(baseline)}, next seed" if name == NULL else type_name(name)
    return f"{first} over {type_name(baseline)}"


def arm_name(study: Study, arm: str) -> str:
    """Name a setting in words, with its size."""
    model = {**study.info["config"]["model"], **study.info["arms"][arm]}
    layers, width = model.get("num_hidden_layers"), model.get("hidden_size")
    start = "values of size 1" if arm == "large-values" else "base" if arm == BASE else arm
    return f"{start} ({count(layers)} layers, width {count(width)})"


def ratios_of(study: Study, **where: str) -> list[dict[str, Any]]:
    """The recorded ratios whose fields equal ``where``."""
    return [
        entry
        for entry in study.recorded["ratios"]
        if all(entry[key] == value for key, value in where.items())
    ]


def _cell(entry: dict[str, Any] | None, digits: int = 2) -> Cell:
    none = "one seed" if entry is not None and len(entry["values"]) == 1 else MISSING
    return mean_cell(entry, digits, none=none)


def _steps(study: Study, phase: str) -> str:
    steps: Iterable[int] = study.info["phases"][phase]
    return f"step {', '.join(map(str, steps))}"
