"""The page of a gradient-flow study: gradients and updates of matched models in training."""

from pathlib import Path
from typing import Any

from diffattn.lab.report.page.charts import Chart, interval_line, layout, names_of
from diffattn.lab.report.page.elements import Document, Element, Fold, Section, Text
from diffattn.lab.report.page.runs import Study, read_study_of_runs
from diffattn.lab.report.page.study_page import study_document
from diffattn.lab.report.page.wording import count, listing, number, plural, type_name
from diffattn.lab.report.sections import gradient_flow_tables as tables
from diffattn.lab.report.sections.gradient_flow_tables import BASE, COLUMNS, MEASURES, WIDE

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
    models = Section("models", "Models", [tables.run_table(study)])
    if study.results is None:
        return study_document(study, lead, [models], costs=())
    judged = tables.judgement_table(study)
    every_pair = [
        tables.ratio_table(study, measure, phase)
        for measure in MEASURES
        for phase in info["phases"]
    ]
    over_time: list[Element] = [
        *(over_training(study, measure) for measure in MEASURES),
        tables.slope_table(study),
        tables.part_table(study),
        Fold("Every pair of models, every phase", every_pair),
    ]
    definition = Text(_definition(study.results["definition"]))
    sections = [
        Section("judged", "Claims and verdicts", [definition, judged]),
        Section("training", "Over training", over_time),
        Section(
            "sizes", "Over depth, width and λ_init", [over_width(study), tables.arm_table(study)]
        ),
        Section("heads", "Input of the head norm", [tables.head_table(study)]),
        models,
    ]
    verdict = Text(verdicts(study), "verdict")
    return study_document(study, lead, sections, verdict=verdict, costs=(), summary=judged)


def over_training(study: Study, measure: str) -> Chart:
    """Draw a measure of DIFF V1 divided by softmax's with half the heads, one line per matrix."""
    middles = {name: sum(steps) / len(steps) for name, steps in study.info["phases"].items()}
    entries = tables.ratios_of(study, arm=BASE, type="diff", baseline=WIDE, measure=measure)
    axis = {"tickvals": list(middles.values()), "ticktext": list(middles)}
    return Chart(
        element_id=f"chart-{measure}",
        traces=_curves([(middles[e["phase"]], e) for e in entries], "step %{x}"),
        look=_look(study, "step", axis),
        caption=f"{MEASURES[measure]}: DIFF V1 over softmax attention with half the heads, mean "
        "over seeds and its interval. Shaded: within the factor that counts as the same size.",
        runs=names_of([f"{BASE}-diff-seed…", f"{BASE}-{WIDE}-seed…"]),
        height=400,
        label=f"{MEASURES[measure]} of DIFF V1 over softmax attention during training, by matrix",
    )


def over_width(study: Study) -> Chart:
    """Draw the ratio of gradients at the first step over the width of the model."""
    widths = {
        arm: (study.info["config"]["model"] | changes)["hidden_size"]
        for arm, changes in study.info["arms"].items()
        if arm == BASE or arm.startswith("width-")
    }
    start = next(iter(study.info["phases"]))
    entries = tables.ratios_of(study, type="diff", baseline=WIDE, measure="gradient", phase=start)
    points = [(widths[e["arm"]], e) for e in entries if e["arm"] in widths]
    ticks = sorted(widths.values())
    axis = {"tickvals": ticks, "ticktext": [count(width) for width in ticks]}
    return Chart(
        element_id="chart-width",
        traces=_curves(sorted(points, key=lambda point: point[0]), "width %{x}"),
        look=_look(study, "width", axis),
        caption="Size of the gradient at the first step over the width: DIFF V1 over softmax "
        "attention with half the heads.",
        runs=names_of([f"{arm}-diff-seed…" for arm in widths]),
        height=400,
        label="Ratio of gradients at the first step over the width, by matrix",
    )


def verdicts(study: Study) -> str:
    """The two main statements, and the number of statements per verdict, in sentences."""
    rows = study.recorded["judgements"]
    kinds = dict.fromkeys(row["verdict"] for row in rows)
    parts = [f"{kind} {sum(row['verdict'] == kind for row in rows)}" for kind in kinds]
    first = "".join(
        f"{row['says']}: {row['verdict']} (factor {number(row['mean'], 2)}). "
        for row in rows
        if row["id"] in ("level", "level-no-norm")
    )
    return f"{first}Of {len(rows)} statements: {listing(parts)}."


def _curves(points: list[tuple[float, dict[str, Any]]], where: str) -> list[dict[str, Any]]:
    """One line per matrix."""
    curves = []
    for matrix, title in COLUMNS.items():
        of_matrix = [(x, entry) for x, entry in points if entry["matrix"] == matrix]
        curve = interval_line(of_matrix, title, where, color=_COLORS[matrix])
        curve["line"]["dash"] = "dot" if matrix == "ffn" else "solid"
        curves.append(curve)
    return curves


def _look(study: Study, title: str, ticks: dict[str, Any]) -> dict[str, Any]:
    """A layout with logarithmic axes, shaded from 1 / bound to the bound."""
    bound = study.recorded["definition"]["level"]
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
    log = {"type": "log"}
    return layout(title, "DIFF V1 over softmax", xaxis=log | ticks, yaxis=log, shapes=[band])


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
