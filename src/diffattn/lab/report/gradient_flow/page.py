"""What the page of a gradient-flow study shows, as plain values."""

import math
from typing import Any

from diffattn.lab.report.gradient_flow.files import BASE
from diffattn.lab.report.gradient_flow.tables import (
    COLUMNS,
    MEASURES,
    arm_table,
    head_table,
    judgement_table,
    part_table,
    ratio_table,
    run_table,
    slope_table,
    verdicts,
)
from diffattn.lab.report.page.charts import Chart, interval_bars, layout, line, names_of
from diffattn.lab.report.page.provenance import provenance, statement
from diffattn.lab.report.page.runs import Study, is_number
from diffattn.lab.report.page.wording import count, listing, plural, type_name

CHAPTERS = {
    "judged": "What was asked",
    "training": "Over training",
    "sizes": "Over depth, width and λ_init",
    "heads": "What the head norm reads",
    "models": "Models",
    "benchmarks": "Benchmarks",
    "provenance": "Provenance",
}
_COLORS = {"q": "#0072b2", "k": "#56b4e9", "v": "#d55e00", "o": "#8c6d00", "ffn": "#999999"}
_WIDE = "softmax_wide"


def gradient_flow_page(study: Study) -> dict[str, Any]:
    """Every section of the page, as the template names them.

    Args:
        study: From :func:`diffattn.lab.report.gradient_flow.files.read_gradient_flow_study`.
    """
    info, train = study.info, study.info["config"]["train"]
    names = listing(type_name(name) for name in study.types)
    lead = (
        f"Compared: language models that are alike but for their attention ({names}), in their "
        f"first {count(train.get('num_steps'))} steps of {count(train.get('batch_tokens'))} "
        f"tokens, with {plural(len(info['seeds']), 'seed')}; over "
        f"{plural(len(info['arms']), 'setting')} of depth, width and size of the values."
    )
    measured = study.results is not None
    phases = list(info["phases"])
    return {
        "verdict": verdicts(study) if measured else None,
        "lead": lead,
        "statement": statement(study),
        "gaps": study.gaps,
        "definition": _definition(study.results["definition"]) if study.results else None,
        "judgements": judgement_table(study) if measured else None,
        "charts": [over_training(study, measure) for measure in MEASURES] if measured else [],
        "ratios": [ratio_table(study, measure, phase) for measure in MEASURES for phase in phases]
        if measured
        else [],
        "slopes": slope_table(study) if measured else None,
        "parts": part_table(study) if measured else None,
        "widths": over_width(study) if measured else None,
        "arms": arm_table(study) if measured else None,
        "heads": head_table(study) if measured else None,
        "models": run_table(study),
        "provenance": provenance(study),
    }


def over_training(study: Study, measure: str) -> Chart:
    """DIFF V1 over softmax attention with half the heads, one line per matrix."""
    middles = {name: sum(steps) / len(steps) for name, steps in study.info["phases"].items()}
    found = [
        e for e in _ratios(study)
        if (e["arm"], e["type"], e["baseline"], e["measure"]) == (BASE, "diff", _WIDE, measure)
    ]  # fmt: skip
    traces = [
        _curve(
            [(middles[e["phase"]], e) for e in found if e["matrix"] == matrix], matrix, "step %{x}"
        )
        for matrix in COLUMNS
    ]
    axis = {"type": "log", "tickvals": list(middles.values()), "ticktext": list(middles)}
    return Chart(
        element_id=f"chart-{measure}",
        traces=traces,
        look=layout(
            "step", "DIFF V1 over softmax", xaxis=axis, yaxis={"type": "log"}, **_bounds(study)
        ),
        caption=f"{MEASURES[measure]}: DIFF V1 over softmax attention with half the heads, mean "
        "over seeds and its interval. Shaded: within the factor that counts as the same size.",
        runs=names_of([f"{BASE}-diff-seed…", f"{BASE}-{_WIDE}-seed…"]),
        height=400,
        label=f"{MEASURES[measure]} of DIFF V1 over softmax attention during training, by matrix",
    )


def over_width(study: Study) -> Chart:
    """The same at the first step over the width of the model."""
    start = next(iter(study.info["phases"]))
    widths = {
        arm: width
        for arm, changes in study.info["arms"].items()
        if arm == BASE or arm.startswith("width-")
        if is_number(width := (study.info["config"]["model"] | changes).get("hidden_size"))
    }
    found = [
        e for e in _ratios(study)
        if (e["type"], e["baseline"], e["measure"]) == ("diff", _WIDE, "gradient")
        and e["phase"] == start and e["arm"] in widths
    ]  # fmt: skip
    found.sort(key=lambda e: widths[e["arm"]])
    traces = [
        _curve(
            [(widths[e["arm"]], e) for e in found if e["matrix"] == matrix], matrix, "width %{x}"
        )
        for matrix in COLUMNS
    ]
    ticks = sorted(widths.values())
    axis = {"type": "log", "tickvals": ticks, "ticktext": [count(width) for width in ticks]}
    return Chart(
        element_id="chart-width",
        traces=traces,
        look=layout(
            "width", "DIFF V1 over softmax", xaxis=axis, yaxis={"type": "log"}, **_bounds(study)
        ),
        caption="Size of the gradient at the first step over the width: DIFF V1 over softmax "
        "attention with half the heads.",
        runs=names_of([f"{arm}-diff-seed…" for arm in widths]),
        height=400,
        label="Ratio of gradients at the first step over the width, by matrix",
    )


def _ratios(study: Study) -> list[dict[str, Any]]:
    assert study.results is not None
    return list(study.results["ratios"])


def _curve(points: list[tuple[float, dict[str, Any]]], matrix: str, where: str) -> dict[str, Any]:
    curve = [(x, e["mean"]) for x, e in points]
    trace = line(curve, COLUMNS[matrix], "mean of seeds", color=_COLORS[matrix], where=where)
    bounds = [(e["mean"], e["low"], e["high"]) for _, e in points]
    trace["error_y"] = interval_bars(bounds) | {"thickness": 1, "width": 4}
    trace["mode"] = "lines+markers"
    trace["line"]["dash"] = "dot" if matrix == "ffn" else "solid"
    return trace


def _bounds(study: Study) -> dict[str, Any]:
    """A band from 1 / bound to the bound."""
    assert study.results is not None
    bound = study.results["definition"]["level"]
    band = {
        "type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": 1 / bound, "y1": bound,
        "fillcolor": "#009e73", "opacity": 0.12, "line": {"width": 0}, "layer": "below",
    }  # fmt: skip
    return {"shapes": [band]} if bound > 0 and math.isfinite(bound) else {}


def _definition(of: dict[str, Any]) -> str:
    return (
        "Appendix G of the DIFF Transformer paper says that the gradients of W_Q, W_K, W_V and W_O "
        "have the magnitude of softmax attention's (h heads of 2d) up to a constant factor, that "
        "the head norm's Jacobian is Θ(1) as ‖x‖/√(2d) ≈ 1 − λ_init early in training, and that "
        f"AdamW's updates are therefore alike. Here the same magnitude is a factor below "
        f"{of['level']:g}, a constant one that changes by less than a factor of {of['drift']:g}; "
        "both were fixed before the first run. Phases in which two softmax models of different "
        f"seeds differ by {of['level']:g} themselves are not judged, and nothing is if a control "
        "whose gradients are halved is not seen to have half of them. AdamW moves a weight by "
        "about the learning rate whatever its gradient's size: alike updates say nothing of "
        "gradients."
    )
