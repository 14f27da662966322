"""Tables of a gradient-flow study, for its page and, for a document, in Markdown."""

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from diffattn.lab.report.gradient_flow.files import BASE, NULL, read_gradient_flow_study
from diffattn.lab.report.page.runs import Study, is_number
from diffattn.lab.report.page.tables import Cell, Table, head_cell, number_cell, table, word_cell
from diffattn.lab.report.page.wording import (
    MISSING,
    brief_names,
    count,
    listing,
    markdown_table,
    number,
    span,
    type_name,
)

COLUMNS = {"q": "W_Q", "k": "W_K", "v": "W_V", "o": "W_O", "ffn": "FFN"}
PARTS = {"q1": "W_Q1", "q2": "W_Q2", "k1": "W_K1", "k2": "W_K2"}
MEASURES = {
    "gradient": "Size of the gradient before clipping",
    "update": "Size of AdamW's update per unit of learning rate",
}


def judgement_table(study: Study) -> Table:
    """What was asked, and what follows by the rule fixed before."""
    rows = [
        [
            head_cell(row["says"]),
            word_cell(row["verdict"]),
            word_cell(", ".join(row["phases"]) or MISSING),
            number_cell(number(row["mean"], 2), note=_ends(row)),
            number_cell(f"below {row['bound']:g}"),
            word_cell(row["why"] or MISSING),
        ]
        for row in _results(study, "judgements")
    ]
    caption = (
        "Each row names the largest factor, either way, by which the claim is missed, over the "
        "four matrices (or layers) and the judged phases, per seed; mean over seeds and its "
        "interval."
    )
    return table(caption, ["Statement", "Verdict", "Phases", "Factor", "If it holds", "Why"], rows)


def ratio_table(study: Study, measure: str, phase: str) -> Table:
    """One measure in one phase at the base's size: a row per pair, a column per matrix."""
    rows = []
    found = _of(study, arm=BASE, measure=measure, phase=phase)
    for pair in dict.fromkeys((e["type"], e["baseline"]) for e in found):
        of_pair = {e["matrix"]: e for e in found if (e["type"], e["baseline"]) == pair}
        rows.append([head_cell(pair_name(*pair)), *(_cell(of_pair.get(m)) for m in COLUMNS)])
    caption = (
        f"{MEASURES[measure]}, {phase} ({_steps(study, phase)}): factor to the model after “over”, "
        "geometric mean over layers, steps and seeds, and its interval."
    )
    return table(caption, ["Models", *COLUMNS.values()], rows)


def slope_table(study: Study) -> Table:
    """What an update takes off the loss, over the phases."""
    phases, found = study.info["phases"], _of(study, arm=BASE, measure="slope")
    rows = []
    for pair in dict.fromkeys((e["type"], e["baseline"]) for e in found):
        at = {e["phase"]: e for e in found if (e["type"], e["baseline"]) == pair}
        rows.append([head_cell(pair_name(*pair)), *(_cell(at.get(phase)) for phase in phases)])
    caption = (
        "What the updates of W_Q, W_K, W_V and W_O take off the loss per unit of learning rate, to "
        "first order: factor to the model after “over”. No number where it is not positive."
    )
    return table(caption, ["Models", *phases], rows)


def part_table(study: Study) -> Table:
    """The two maps' own matrices."""
    rows = []
    for measure in MEASURES:
        for phase in study.info["phases"]:
            found = _of(study, arm=BASE, measure=measure, phase=phase, type="diff")
            at = {e["matrix"]: e for e in found if e["baseline"] == "softmax_wide"}
            if set(at) & set(PARTS):
                cells = [_cell(at.get(part)) for part in PARTS]
                rows.append([head_cell(f"{measure}, {phase}"), *cells])
    caption = (
        "DIFF V1's matrices of each map over the whole W_Q and W_K of softmax attention with half "
        "the heads: the second map's gradient carries λ."
    )
    return table(caption, ["Measure", *PARTS.values()], rows)


def arm_table(study: Study) -> Table:
    """Gradients at the start over depth, width and λ_init."""
    phase = next(iter(study.info["phases"]))
    rows = []
    for arm, name in [
        *((arm, "diff") for arm in study.info["arms"]),
        *((BASE, name) for name in study.types if name.startswith("diff_lambda")),
    ]:
        found = _of(study, arm=arm, measure="gradient", phase=phase, type=name)
        at = {e["matrix"]: e for e in found if e["baseline"] == "softmax_wide"}
        heads = [
            e for e in _results(study, "heads")
            if (e["arm"], e["type"], e["phase"]) == (arm, name, phase)
        ]  # fmt: skip
        gains = [e["norm_gain"]["mean"] for e in heads]
        gain = span(min(gains), max(gains), 2) if gains else MISSING
        label = arm_name(study, arm) if name == "diff" else type_name(name)
        rows.append([head_cell(label), *(_cell(at.get(m)) for m in COLUMNS), number_cell(gain)])
    caption = (
        f"DIFF V1's gradients over those of softmax attention with half the heads, {phase} "
        f"({_steps(study, phase)}), over depth, width, size of the values and λ_init; and the gain "
        "of the norm's Jacobian, smallest and largest layer."
    )
    return table(caption, ["Models", *COLUMNS.values(), "Norm's gain"], rows)


def head_table(study: Study) -> Table:
    """What DIFF V1's head norms read, layer by layer."""
    rows = [
        [
            head_cell(f"{entry['phase']}, layer {entry['layer'] + 1}"),
            number_cell(number(1 - entry["lambda_init"], 3)),
            *(_cell(entry[key], 3) for key in ("head_rms", "to_factor", "norm_gain")),
        ]
        for entry in _results(study, "heads")
        if (entry["arm"], entry["type"]) == (BASE, "diff")
    ]
    caption = (
        "‖x‖/√(2d) of a head before its norm, median over tokens and heads; the appendix has it "
        "at 1 − λ_init, and the norm's gain (1 − λ_init) w √(2d)/‖x‖ at 1. Mean over seeds."
    )
    headers = ["Phase and layer", "1 − λ_init", "‖x‖/√(2d)", "over 1 − λ_init", "Norm's gain"]
    return table(caption, headers, rows)


def run_table(study: Study) -> Table:
    """Every model: its size and what its runs cost."""
    rows = []
    for arm in study.info["arms"]:
        for name in study.types if arm == BASE else study.info["types_of_arms"]:
            runs = [r for r in study.runs if r.name.startswith(f"{arm}-{name}-seed")]
            if not runs:
                continue
            shape, model = runs[0].record.config["model"], runs[0].record.model
            cpu = [r.costs["cpu_seconds"] for r in runs
                   if r.costs and is_number(r.costs.get("cpu_seconds"))]  # fmt: skip
            names = [r.name for r in runs]
            rows.append(
                [
                    head_cell(f"{arm_name(study, arm)}: {type_name(name)}"),
                    number_cell(
                        f"{count(shape.get('num_heads'))} of {shape.get('head_dim')}", names
                    ),
                    number_cell(count(shape.get("num_hidden_layers")), names),
                    number_cell(count(model.get("parameters")), names),
                    number_cell(f"{number(median(cpu), 1)} s" if cpu else MISSING, names),
                    word_cell(", ".join(brief_names(names))),
                ]
            )
    headers = ["Model", "Heads", "Layers", "Parameters", "Processor time", "Runs"]
    return table("The models; processor time is the median over runs.", headers, rows)


def gradient_flow_markdown(folder: Path) -> str:
    """The judgements of a gradient-flow study as a Markdown table.

    Args:
        folder: Study folder.

    Returns:
        One row per statement, ending in a newline.

    Raises:
        CheckpointError: A file of the study is damaged or foreign.
    """
    study = read_gradient_flow_study(folder)
    headers = ["Statement", "Verdict", "Factor", "95 % interval", "If it holds", "Why"]
    rows = []
    for row in _results(study, "judgements"):
        bound = f"below {row['bound']:g}"
        cells = [row["says"], row["verdict"], number(row["mean"], 2), _ends(row), bound]
        rows.append([*cells, row["why"] or MISSING])
    return markdown_table(headers, rows, numeric=(2, 3, 4)) + "\n"


def pair_name(name: str, baseline: str) -> str:
    """``"DIFF V1 over Transformer (softmax)"``."""
    first = f"{type_name(baseline)}, next seed" if name == NULL else type_name(name)
    return f"{first} over {type_name(baseline)}"


def arm_name(study: Study, arm: str) -> str:
    """In words, with its size."""
    model = {**study.info["config"]["model"], **study.info["arms"][arm]}
    layers, width = model.get("num_hidden_layers"), model.get("hidden_size")
    start = "values of size 1" if arm == "large-values" else "base" if arm == BASE else arm
    return f"{start} ({count(layers)} layers, width {count(width)})"


def verdicts(study: Study) -> str:
    """The first statement and how many have which verdict, in sentences."""
    rows = _results(study, "judgements")
    kinds = dict.fromkeys(row["verdict"] for row in rows)
    parts = [f"{kind} {sum(row['verdict'] == kind for row in rows)}" for kind in kinds]
    first = "".join(
        f"{row['says']}: {row['verdict']} (factor {number(row['mean'], 2)}). "
        for row in rows
        if row["id"] in ("level", "level-no-norm")
    )
    return f"{first}Of {len(rows)} statements: {listing(parts)}."


def _results(study: Study, key: str) -> list[dict[str, Any]]:
    return list((study.results or {}).get(key, []))


def _of(study: Study, **where: str) -> list[dict[str, Any]]:
    return [
        entry
        for entry in _results(study, "ratios")
        if all(entry[key] == value for key, value in where.items())
    ]


def _cell(entry: dict[str, Any] | None, digits: int = 2) -> Cell:
    if entry is None:
        return number_cell(MISSING)
    return number_cell(number(entry["mean"], digits), note=_ends(entry, digits))


def _ends(entry: dict[str, Any], digits: int = 2) -> str:
    none = "one seed" if len(entry["values"]) == 1 else MISSING
    return span(entry["low"], entry["high"], digits, none=none)


def _steps(study: Study, phase: str) -> str:
    steps: Iterable[int] = study.info["phases"][phase]
    return f"step {', '.join(map(str, steps))}"
