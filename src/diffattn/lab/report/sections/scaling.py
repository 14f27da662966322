"""The page of a scaling study: losses over parameters and tokens, their fits, and equal losses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.lab.report.page.charts import Chart, layout, line, names_of
from diffattn.lab.report.page.elements import Document, Section, Text
from diffattn.lab.report.page.run_tables import cost_table, models_table
from diffattn.lab.report.page.runs import BASELINE, Study, read_study_of_runs
from diffattn.lab.report.page.study_page import study_document
from diffattn.lab.report.page.tables import (
    Cell,
    Table,
    head_cell,
    number_cell,
    table,
    type_cell,
    word_cell,
)
from diffattn.lab.report.page.wording import (
    MISSING,
    count,
    listing,
    number,
    plural,
    span,
    type_color,
    type_name,
)
from diffattn.lab.report.paper import scaling_curves
from diffattn.lab.stats.scaling import drawn, equivalence_of, equivalent_at, fits_of

AXES = {"parameters": "Parameters", "tokens": "Training tokens"}
"""Axis along which models are compared -> its name."""
_PARTS = ("a", "b", "c")
_FORMULAS = {"offset": "a x⁻ᵇ + c", "kaplan": "a x⁻ᵇ"}
_CURVE_POINTS = 60


def read_scaling_study(folder: Path) -> Study:
    """Read the records of a scaling study."""
    return read_study_of_runs(folder, lambda info, *_: list(dict.fromkeys(info["runs"])))


def scaling_document(study: Study) -> Document:
    """Assemble the page."""
    results, base = study.results, _base_runs(study)
    axes, costs = results["axes"] if results else {}, [cost_table(base)]
    sections = [
        Section(
            axis,
            f"Over {axis}",
            [
                loss_chart(of_axis, axis),
                equivalent_table(of_axis, axis),
                fit_table(of_axis, axis),
                loss_table(of_axis, axis),
            ],
        )
        for axis, of_axis in axes.items()
    ]
    explained = Text(
        "The same functions on the points that the DIFF Transformer paper plots. Its 62.2 % and "
        "63.7 % are such readings of fits: no model of the sizes read was trained."
    )
    published = Section(
        "published", "The published points", [explained, published_ratios(), published_fits()]
    )
    at_base = Text("At the size that both axes share.")
    sections += [published, Section("models", "Models", [at_base, models_table(base)])]
    lead = _lead(study, axes)
    if results is None:
        return study_document(study, lead, sections, costs=costs)
    verdict, table = Text(results["verdict"]["sentence"], "verdict"), summary_table(axes)
    return study_document(study, lead, sections, verdict=verdict, costs=costs, summary=table)


def loss_chart(axis_results: dict[str, Any], axis: str) -> Chart:
    """Draw the loss of every run, and the fitted curves."""
    traces, names = [], []
    for name, entry in axis_results["types"].items():
        runs = [
            (point["x"], loss, run)
            for point in entry["points"]
            for loss, run in zip(point["loss"]["values"], point["runs"], strict=True)
        ]
        names += [f"{run.partition('-h')[0]}-h…-s…-seed…" for _, _, run in runs]
        fit = {part: value["mean"] for part, value in entry["fit"]["parameters"].items()}
        if fit:
            curve = _fitted_curve(fit, [x for x, _, _ in runs])
            traces.append(line(curve, name, "fit", where="%{x:,.0f}") | {"mode": "lines"})
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [x for x, _, _ in runs],
                "y": [loss for _, loss, _ in runs],
                "text": [run for _, _, run in runs],
                "name": type_name(name),
                "legendgroup": name,
                "showlegend": not fit,
                "marker": {"size": 7, "color": type_color(name)},
                "hovertemplate": ["%{text}", "%{x:,}: %{y:.4f}"],
            }
        )
    return Chart(
        element_id=f"chart-{axis}",
        traces=traces,
        look=layout(AXES[axis].lower(), "validation loss", xaxis={"type": "log"}),
        caption=f"Validation loss over {axis}: every run a point, every fit a curve.",
        runs=names_of(dict.fromkeys(names)),
        height=460,
        label=f"Validation loss over {axis}, points and fitted curve per attention type",
    )


def loss_table(axis_results: dict[str, Any], axis: str) -> Table:
    """Tabulate the fitted losses: a row per model, a column per size or budget."""
    rows = []
    for name, entry in axis_results["types"].items():
        row = [type_cell(name)]
        for point in entry["points"]:
            ends = span(point["loss"]["low"], point["loss"]["high"], 3, none="no interval")
            note = f"{ends}; {count(point['parameters'])}" if axis == "parameters" else ends
            row.append(number_cell(number(point["loss"]["mean"], 3), point["runs"], note=note))
        rows.append(row)
    points = next(iter(axis_results["types"].values()))["points"]
    exact = ", and its exact parameters" if axis == "parameters" else ""
    return table(
        f"Validation loss over {axis}, nats per token: mean over seeds, its interval{exact}.",
        ["Model", *(count(point["x"]) for point in points)],
        rows,
    )


def fit_table(axis_results: dict[str, Any], axis: str) -> Table:
    """Tabulate a, b and c of every model with their intervals, or the reason for no fit."""
    rows = []
    for name, entry in axis_results["types"].items():
        fit = entry["fit"]
        refused = word_cell(f"No fit: {fit['refused']}." if fit["refused"] else "")
        rows.append(
            [
                type_cell(name),
                *(_parameter_cell(fit["parameters"].get(part)) for part in _PARTS),
                number_cell(number(fit["r2"], 3)),
                number_cell(number(fit["max_error"], 3)),
                number_cell(count(fit["points"])),
                refused,
            ]
        )
    return table(
        f"Fits of L = {_FORMULAS[axis_results['form']]} over {axis}, with 95 % intervals.",
        ["Model", *_PARTS, "R²", "Largest error", "Runs", ""],
        rows,
    )


def equivalent_table(axis_results: dict[str, Any], axis: str) -> Table:
    """Tabulate, for every point, where another model reaches its loss, and the ratio of the two."""
    rows = []
    for row in axis_results["equivalents"]:
        remarks = [
            "read for the verdict" if row["point"] == axis_results["read_at"] else "",
            "extrapolated" if row["extrapolated"] else "",
            f"no estimate: {row['refused']}" if row["refused"] else "",
        ]
        rows.append(
            [
                type_cell(row["type"]),
                word_cell(type_name(row["baseline"])),
                number_cell(count(row["x"])),
                number_cell(number(row["loss"], 3)),
                number_cell(count(row["other_x"])),
                number_cell(_percentage(row["ratio"])),
                number_cell(_percentages(row)),
                word_cell("; ".join(filter(None, remarks))),
            ]
        )
    headers = ["Model", "Against", AXES[axis], "Loss", "The other's", "Share", "95 % interval", ""]
    return table(
        f"Equal loss by the fits: {axis} of a model, and those that the other needs.", headers, rows
    )


def summary_table(axes: dict[str, Any]) -> Table:
    """Tabulate the fits and the equivalents that the verdict reads."""
    rows = []
    for axis, results in axes.items():
        for name, entry in results["types"].items():
            row = equivalent_at(results, name, BASELINE) or dict.fromkeys(("ratio", "low", "high"))
            rows.append(
                [
                    word_cell(axis),
                    type_cell(name),
                    *(_parameter_cell(entry["fit"]["parameters"].get(part)) for part in _PARTS),
                    number_cell(count(entry["points"][results["read_at"]]["x"])),
                    number_cell(_percentage(row["ratio"])),
                    number_cell(_percentages(row)),
                ]
            )
    headers = ["Over", "Model", *_PARTS, "Read at", "Share of the Transformer's", "95 %"]
    return table("Fits, and the sizes or budgets of equal loss.", headers, rows)


def published_fits() -> Table:
    """Tabulate our fits of the published points, beside the published curves."""
    rows = []
    for curves in scaling_curves().values():
        for name, fit in fits_of(curves.points())[1].items():
            cells = []
            for part, printed in zip(_PARTS, curves.curves[name], strict=True):
                ends = fit["parameters"][part]
                note = f"plotted: {printed:g}; interval {_ends(ends)}"
                cells.append(number_cell(_four_digits(ends["mean"]), note=note))
            quality = [number_cell(number(fit[key], 3)) for key in ("r2", "max_error")]
            rows.append([type_cell(name), word_cell(curves.unit), *cells, *quality])
    return table(
        "Fits of L = a x⁻ᵇ + c to the points of arXiv:2410.05258v2, Fig. 3; below each number that "
        "of the plotted curve, and our 95 % interval.",
        ["Model", "Over", *_PARTS, "R²", "Largest error"],
        rows,
    )


def published_ratios() -> Table:
    """Tabulate the parameters and tokens that DIFF needs for equal loss by published points."""
    rows = []
    for curves in scaling_curves().values():
        laws, _ = fits_of(curves.points())
        plotted = {kind: drawn(curves.curves[kind], xy) for kind, xy in curves.points().items()}
        for x in curves.read_at:
            row = equivalence_of(x, "diff", BASELINE, laws, extrapolate=True)
            by_curves = equivalence_of(x, "diff", BASELINE, plotted, extrapolate=True)
            rows.append(
                [
                    head_cell(f"{x:g} {curves.unit}"),
                    number_cell(number(row["loss"], 3)),
                    number_cell(number(row["other_x"], 2)),
                    number_cell(_percentage(row["ratio"], 1)),
                    number_cell(_percentages(row)),
                    number_cell(_percentage(by_curves["ratio"], 1)),
                    word_cell("at or beyond the last point" if row["extrapolated"] else ""),
                ]
            )
    headers = ["DIFF V1", "Loss", "Transformer", "Share", "95 % interval", "By the curves", ""]
    return table(
        "Equal loss by the fits to the published points, and by the plotted curves themselves.",
        headers,
        rows,
    )


def _fitted_curve(fit: dict[str, float], among: list[float]) -> list[tuple[float, float]]:
    """Evaluate the law between the smallest and the largest point."""
    x = np.geomspace(min(among), max(among), _CURVE_POINTS)
    with np.errstate(all="ignore"):  # a value that is not finite is not drawn
        y = fit["a"] * x ** -fit["b"] + fit.get("c", 0.0)
    return [(float(at), float(value)) for at, value in zip(x, y, strict=True)]


def _base_runs(study: Study) -> Study:
    """Keep the runs of the point that both axes share: their models and costs are comparable."""

    def size(config: dict[str, Any]) -> tuple[int, int]:
        return config["model"]["hidden_size"], config["train"]["num_steps"]

    base = size(study.info["config"])
    return replace(study, runs=tuple(x for x in study.runs if size(x.record.config) == base))


def _lead(study: Study, axes: dict[str, Any]) -> str:
    names = listing(type_name(name) for name in study.types)
    budget = f"{plural(len(study.info['seeds']), 'seed')} each"
    if axes:
        sizes, tokens = (
            [p["x"] for entry in axes[axis]["types"].values() for p in entry["points"]]
            for axis in AXES
        )
        budget = (
            f"models of {count(min(sizes))} to {count(max(sizes))} parameters at equal tokens, and "
            f"one size with {count(min(tokens))} to {count(max(tokens))} tokens, every budget a "
            f"run of its own with a whole schedule, {budget}"
        )
    return f"Compared: language models that are alike but for their attention ({names}); {budget}."


def _percentage(share: float | None, digits: int = 0) -> str:
    return MISSING if share is None else f"{number(100 * share, digits)} %"


def _percentages(row: dict[str, Any]) -> str:
    if row["low"] is None or row["high"] is None:
        return MISSING
    return f"{number(100 * row['low'], 0)} to {number(100 * row['high'], 0)} %"


def _four_digits(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def _ends(value: dict[str, Any]) -> str:
    if value["low"] is None or value["high"] is None:
        return "no interval"
    return f"{_four_digits(value['low'])} to {_four_digits(value['high'])}"


def _parameter_cell(value: dict[str, Any] | None) -> Cell:
    if value is None:
        return number_cell(MISSING)
    return number_cell(_four_digits(value["mean"]), note=_ends(value))
