"""The page of a gradient-flow study: gradients and updates of matched models as they begin."""

from pathlib import Path
from typing import Any

from diffattn.lab.report.page.charts import Chart, interval_bars, layout, line, names_of
from diffattn.lab.report.page.elements import Document, Fold, Section, Text
from diffattn.lab.report.page.runs import Study, is_number, runs_by_name, study_of_runs
from diffattn.lab.report.page.study_page import (
    read_info,
    read_results,
    study_document,
    unfinished,
)
from diffattn.lab.report.page.wording import (
    count,
    listing,
    number,
    plural,
    type_name,
)
from diffattn.lab.report.sections.gradient_flow_tables import (
    BASE,
    COLUMNS,
    MEASURES,
    WIDE,
    arm_table,
    entries_of,
    head_table,
    judgement_table,
    part_table,
    ratio_table,
    ratios_of,
    run_table,
    slope_table,
)

_COLORS = {"q": "#0072b2", "k": "#56b4e9", "v": "#d55e00", "o": "#8c6d00", "ffn": "#999999"}


def read_gradient_flow_study(folder: Path) -> Study:
    """Read the records of a gradient-flow study. All but ``study.json`` may be missing.

    Raises:
        CheckpointError: A file is damaged or of another schema version.
    """
    info = read_info(folder)
    names = [
        f"{arm}-{name}-seed{seed}"
        for arm in info["arms"]
        for name in (info["types"] if arm == BASE else info["types_of_arms"])
        for seed in info["seeds"]
    ]
    return study_of_runs(
        info, runs_by_name(folder), names, read_results(folder), missing="nothing is judged"
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
    verdict = unfinished("judged")
    sections = [Section("judged", "Claims and verdicts", unfinished("judged"))]
    if study.results is not None:
        verdict = [Text(verdicts(study), "verdict")]
        every_pair = [
            ratio_table(study, measure, phase) for measure in MEASURES for phase in info["phases"]
        ]
        sections = [
            Section(
                "judged",
                "Claims and verdicts",
                [Text(_definition(study.results["definition"])), judgement_table(study)],
            ),
            Section(
                "training",
                "Over training",
                [
                    *(over_training(study, measure) for measure in MEASURES),
                    slope_table(study),
                    part_table(study),
                    Fold("Every pair of models, every phase", every_pair),
                ],
            ),
            Section("sizes", "Over depth, width and λ_init", [over_width(study), arm_table(study)]),
            Section("heads", "Input of the head norm", [head_table(study)]),
        ]
    return study_document(
        study,
        "gradient-flow",
        verdict=verdict,
        lead=lead,
        sections=[*sections, Section("models", "Models", [run_table(study)])],
        costs=(),
        summary=judgement_table(study) if study.results else None,
    )


def over_training(study: Study, measure: str) -> Chart:
    """Draw DIFF V1 over softmax attention with half the heads, one line per matrix."""
    middles = {name: sum(steps) / len(steps) for name, steps in study.info["phases"].items()}
    entries = ratios_of(study, arm=BASE, type="diff", baseline=WIDE, measure=measure)
    traces = [
        _curve(
            [(middles[e["phase"]], e) for e in entries if e["matrix"] == matrix],
            matrix,
            "step %{x}",
        )
        for matrix in COLUMNS
    ]
    axis = {"type": "log", "tickvals": list(middles.values()), "ticktext": list(middles)}
    return Chart(
        element_id=f"chart-{measure}",
        traces=traces,
        look=layout(
            "step", "DIFF V1 over softmax", xaxis=axis, yaxis={"type": "log"}, **_band(study)
        ),
        caption=f"{MEASURES[measure]}: DIFF V1 over softmax attention with half the heads, mean "
        "over seeds and its interval. Shaded: within the factor that counts as the same size.",
        runs=names_of([f"{BASE}-diff-seed…", f"{BASE}-{WIDE}-seed…"]),
        height=400,
        label=f"{MEASURES[measure]} of DIFF V1 over softmax attention during training, by matrix",
    )


def over_width(study: Study) -> Chart:
    """Draw the same at the first step over the width of the model."""
    start = next(iter(study.info["phases"]))
    widths = {
        arm: (study.info["config"]["model"] | changes)["hidden_size"]
        for arm, changes in study.info["arms"].items()
        if arm == BASE or arm.startswith("width-")
    }
    entries = sorted(
        (
            entry
            for entry in ratios_of(
                study, type="diff", baseline=WIDE, measure="gradient", phase=start
            )
            if entry["arm"] in widths
        ),
        key=lambda entry: widths[entry["arm"]],
    )
    traces = [
        _curve(
            [(widths[e["arm"]], e) for e in entries if e["matrix"] == matrix], matrix, "width %{x}"
        )
        for matrix in COLUMNS
    ]
    ticks = sorted(widths.values())
    axis = {"type": "log", "tickvals": ticks, "ticktext": [count(width) for width in ticks]}
    return Chart(
        element_id="chart-width",
        traces=traces,
        look=layout(
            "width", "DIFF V1 over softmax", xaxis=axis, yaxis={"type": "log"}, **_band(study)
        ),
        caption="Size of the gradient at the first step over the width: DIFF V1 over softmax "
        "attention with half the heads.",
        runs=names_of([f"{arm}-diff-seed…" for arm in widths]),
        height=400,
        label="Ratio of gradients at the first step over the width, by matrix",
    )


def verdicts(study: Study) -> str:
    """The first statements and the number of each verdict, in sentences."""
    rows = entries_of(study, "judgements")
    kinds = dict.fromkeys(row["verdict"] for row in rows)
    parts = [f"{kind} {sum(row['verdict'] == kind for row in rows)}" for kind in kinds]
    first = "".join(
        f"{row['says']}: {row['verdict']} (factor {number(row['mean'], 2)}). "
        for row in rows
        if row["id"] in ("level", "level-no-norm")
    )
    return f"{first}Of {len(rows)} statements: {listing(parts)}."


def _curve(points: list[tuple[float, dict[str, Any]]], matrix: str, where: str) -> dict[str, Any]:
    curve = [(x, entry["mean"]) for x, entry in points]
    trace = line(curve, COLUMNS[matrix], "mean of seeds", color=_COLORS[matrix], where=where)
    bounds = [(entry["mean"], entry["low"], entry["high"]) for _, entry in points]
    trace["error_y"] = interval_bars(bounds) | {"thickness": 1, "width": 4}
    trace["mode"] = "lines+markers"
    trace["line"]["dash"] = "dot" if matrix == "ffn" else "solid"
    return trace


def _band(study: Study) -> dict[str, Any]:
    """Shade from 1 / bound to the bound."""
    assert study.results is not None
    bound = study.results["definition"]["level"]
    band = {
        "type": "rect",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": 1 / bound,
        "y1": bound,
        "fillcolor": "#009e73",
        "opacity": 0.12,
        "line": {"width": 0},
        "layer": "below",
    }
    return {"shapes": [band]} if is_number(bound) else {}


def _definition(rule: dict[str, Any]) -> str:
    return (
        "Appendix G of the DIFF Transformer paper says that the gradients of W_Q, W_K, W_V and W_O "
        "have the magnitude of softmax attention's (h heads of 2d) up to a constant factor, that "
        "the head norm's Jacobian is Θ(1) as ‖x‖/√(2d) ≈ 1 − λ_init early in training, and that "
        f"AdamW's updates are therefore alike. Here the same magnitude is a factor below "
        f"{rule['level']:g}, a constant one that changes by less than a factor of "
        f"{rule['drift']:g}; both were fixed before the first run. Phases in which two softmax "
        f"models of different seeds differ by {rule['level']:g} themselves are not judged. Nothing "
        "is judged if a control whose gradients are halved is not seen to have half of them. AdamW "
        "moves a weight by about the learning rate whatever the size of its gradient: alike "
        "updates say nothing of gradients."
    )
