"""The page of a gradient-flow study: gradients and updates of matched models in training."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from diffattn.lab.catalog.models import WIDE
from diffattn.lab.report.page.charts import Chart, interval_line, layout, runs_sentence
from diffattn.lab.report.page.elements import Document, Section, Text
from diffattn.lab.report.page.runs import Study, read_study_of_runs
from diffattn.lab.report.page.study_page import study_document
from diffattn.lab.report.page.tables import (
    Cell,
    Table,
    mean_cell,
    number_cell,
    record_table,
    table,
    word_cell,
)
from diffattn.lab.report.page.wording import (
    MISSING,
    count,
    listing,
    number,
    plural,
    span,
    type_name,
)

BASE = "base"
"""Name of the arm that changes no setting."""
COLUMNS = {"q": "W_Q", "k": "W_K", "v": "W_V", "o": "W_O", "ffn": "FFN"}
MEASURES = {
    "gradient": "Size of the gradient before clipping",
    "update": "Size of AdamW's update per unit of learning rate",
}
_COLORS = {"q": "#0072b2", "k": "#56b4e9", "v": "#d55e00", "o": "#8c6d00", "ffn": "#999999"}


def read_gradient_flow_study(folder: Path) -> Study:
    """Read the records of a gradient-flow study."""
    return read_study_of_runs(
        folder,
        lambda info, *_: [
            f"{arm}-{name}-seed{seed}"
            for arm in info["arms"]
            for name in (info["types"] if arm == BASE else info["types_of_arms"])
            for seed in info["seeds"]
        ],
    )


def gradient_flow_document(study: Study) -> Document:
    """Assemble the page."""
    info, train = study.info, study.info["config"]["train"]
    names = listing(type_name(name) for name in study.types)
    lead = (
        f"Compared: language models that are alike but for their attention ({names}), in their "
        f"first {count(train.get('num_steps'))} steps of {count(train.get('batch_tokens'))} "
        f"tokens, with {plural(len(info['seeds']), 'seed')}; over "
        f"{plural(len(info['arms']), 'setting')} of depth, width and size of the values."
    )
    runs = tuple(run for run in study.runs if run.name.startswith(f"{BASE}-"))
    document = partial(study_document, study, lead, models=replace(study, runs=runs))
    if study.results is None:
        return document()
    judged = judgement_table(study)
    rule = study.results["definition"]
    definition = Text(
        "Appendix G of the DIFF Transformer paper says that the gradients of W_Q, W_K, W_V and W_O "
        "have the magnitude of softmax attention's (h heads of 2d) up to a constant factor, that "
        "the head norm's Jacobian is Θ(1) as ‖x‖/√(2d) ≈ 1 − λ_init early in training, and that "
        "AdamW's updates are therefore alike. Here the same magnitude is a factor below "
        f"{rule['level']:g}, a constant one that changes by less than a factor of "
        f"{rule['drift']:g}; both were fixed before the first run. Phases in which two softmax "
        f"models of different seeds differ by {rule['level']:g} themselves are not judged, and "
        "nothing is if a control whose gradients are halved is not seen to have half of them. "
        "AdamW moves a weight by about the learning rate whatever its gradient: alike updates say "
        "nothing of gradients."
    )
    sections = [
        Section("judged", "Claims and verdicts", [definition, judged]),
        Section(
            "training", "Over training", [over_training(study, measure) for measure in MEASURES]
        ),
        Section("sizes", "Over depth, width and λ_init", [_arm_table(study)]),
        Section("heads", "Input of the head norm", [_head_table(study)]),
    ]
    return document(sections, verdict=Text(_verdicts(study), "verdict"), summary=judged)


def over_training(study: Study, measure: str) -> Chart:
    """Draw a measure of DIFF V1 divided by softmax's with half the heads, one line per matrix."""
    middles = {name: sum(steps) / len(steps) for name, steps in study.info["phases"].items()}
    curves = []
    for matrix, title in COLUMNS.items():
        where = {"arm": BASE, "type": "diff", "baseline": WIDE, "measure": measure}
        entries = _ratios_of(study, **where, matrix=matrix)
        points = [(middles[entry["phase"]], entry) for entry in entries]
        curve = interval_line(points, title, "step %{x}", color=_COLORS[matrix])
        curve["line"]["dash"] = "dot" if matrix == "ffn" else "solid"
        curves.append(curve)
    bound, log = study.recorded["definition"]["level"], {"type": "log"}
    axis = log | {"tickvals": list(middles.values()), "ticktext": list(middles)}
    band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": 1 / bound, "y1": bound}
    band |= {"fillcolor": "#009e73", "opacity": 0.12, "line": {"width": 0}, "layer": "below"}
    return Chart(
        element_id=f"chart-{measure}",
        traces=curves,
        look=layout("step", "DIFF V1 over softmax", xaxis=axis, yaxis=log, shapes=[band]),
        caption=f"{MEASURES[measure]}: DIFF V1 over softmax attention with half the heads, mean "
        "over seeds and its interval. Shaded: within the factor that counts as the same size.",
        runs=runs_sentence([f"{BASE}-diff-seed…", f"{BASE}-{WIDE}-seed…"]),
    )


def _verdicts(study: Study) -> str:
    rows = study.recorded["judgements"]
    kinds = dict.fromkeys(row["verdict"] for row in rows)
    parts = [f"{kind} {sum(row['verdict'] == kind for row in rows)}" for kind in kinds]
    first = "".join(
        f"{row['says']}: {row['verdict']} (factor {number(row['mean'], 2)}). "
        for row in rows
        if row["id"] in ("level", "level-no-norm")
    )
    return f"{first}Of {len(rows)} statements: {listing(parts)}."


def judgement_table(study: Study) -> Table:
    """Tabulate each claim and its verdict, by the rule that was fixed before the first run."""
    rows = [
        {
            "Statement": row["says"],
            "Verdict": word_cell(row["verdict"]),
            "Phases": word_cell(", ".join(row["phases"]) or MISSING),
            "Factor": _cell(row),
            "If it holds": number_cell(f"below {row['bound']:g}"),
            "Why": word_cell(row["why"] or MISSING),
        }
        for row in study.recorded["judgements"]
    ]
    caption = (
        "Each row names the largest factor, either way, by which the claim is missed, over the "
        "four matrices (or layers) and the judged phases, per seed; mean over seeds and its "
        "interval."
    )
    return record_table(caption, rows)


def _arm_table(study: Study) -> Table:
    phase = next(iter(study.info["phases"]))
    rows = []
    for arm, name in [
        *((arm, "diff") for arm in study.info["arms"]),
        *((BASE, name) for name in study.types if name.startswith("diff_lambda")),
    ]:
        where = {"arm": arm, "measure": "gradient", "phase": phase, "type": name, "baseline": WIDE}
        cells = {entry["matrix"]: entry for entry in _ratios_of(study, **where)}
        gains = [
            entry["norm_gain"]["mean"]
            for entry in study.recorded["heads"]
            if (entry["arm"], entry["type"], entry["phase"]) == (arm, name, phase)
        ]
        gain = span(min(gains), max(gains), 2) if gains else MISSING
        label = _arm_name(study, arm) if name == "diff" else type_name(name)
        rows.append([label, *(_cell(cells.get(m)) for m in COLUMNS), number_cell(gain)])
    caption = (
        f"DIFF V1's gradients over those of softmax attention with half the heads, {phase} (step "
        f"{', '.join(map(str, study.info['phases'][phase]))}), over depth, width, size of the "
        "values and λ_init; and the gain of the norm's Jacobian, smallest and largest layer."
    )
    return table(caption, ["Models", *COLUMNS.values(), "Norm's gain"], rows)


def _head_table(study: Study) -> Table:
    rows = [
        {
            "Phase and layer": f"{entry['phase']}, layer {entry['layer'] + 1}",
            "1 − λ_init": number_cell(number(1 - entry["lambda_init"], 3)),
            "‖x‖/√(2d)": _cell(entry["head_rms"], 3),
            "over 1 − λ_init": _cell(entry["to_factor"], 3),
            "Norm's gain": _cell(entry["norm_gain"], 3),
        }
        for entry in study.recorded["heads"]
        if (entry["arm"], entry["type"]) == (BASE, "diff")
    ]
    caption = (
        "‖x‖/√(2d) of a head before its norm, median over tokens and heads; the appendix has it "
        "at 1 − λ_init, and the norm's gain (1 − λ_init) w √(2d)/‖x‖ at 1. Mean over seeds."
    )
    return record_table(caption, rows)


def _arm_name(study: Study, arm: str) -> str:
    model = {**study.info["config"]["model"], **study.info["arms"][arm]}
    layers, width = model.get("num_hidden_layers"), model.get("hidden_size")
    start = "values of size 1" if arm == "large-values" else "base" if arm == BASE else arm
    return f"{start} ({count(layers)} layers, width {count(width)})"


def _ratios_of(study: Study, **where: str) -> list[dict[str, Any]]:
    return [entry for entry in study.recorded["ratios"] if where.items() <= entry.items()]


def _cell(entry: dict[str, Any] | None, digits: int = 2) -> Cell:
    none = "one seed" if entry is not None and len(entry["values"]) == 1 else MISSING
    return mean_cell(entry, digits, none=none)
