"""The page of a scaling study: losses over parameters and tokens, their fits, and equal losses."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.lab.catalog.models import BASELINE
from diffattn.lab.records.study_results import AXES
from diffattn.lab.report.page.charts import Chart, layout, line, runs_sentence
from diffattn.lab.report.page.elements import Document, Fold, Section, Text
from diffattn.lab.report.page.runs import Study, read_study_of_runs
from diffattn.lab.report.page.study_page import study_document
from diffattn.lab.report.page.tables import (
    Cell,
    Table,
    number_cell,
    record_table,
    type_cell,
    word_cell,
)
from diffattn.lab.report.page.wording import (
    MISSING,
    count,
    listing,
    number,
    plural,
    type_color,
    type_name,
)
from diffattn.lab.report.paper import scaling_curves
from diffattn.lab.stats.power_law import drawn, equivalence_of, fits_of

_PARTS = ("a", "b", "c")
_FORMULAS = {"offset": "a x⁻ᵇ + c", "kaplan": "a x⁻ᵇ"}


def read_scaling_study(folder: Path) -> Study:
    """Read the records of a scaling study."""
    return read_study_of_runs(folder, lambda info, *_: list(dict.fromkeys(info["runs"])))


def scaling_document(study: Study) -> Document:
    """Assemble the page."""

    def size(config: dict[str, Any]) -> tuple[int, int]:
        return config["model"]["hidden_size"], config["train"]["num_steps"]

    # Models and costs are comparable at the point that both axes share.
    shared = [x for x in study.runs if size(x.record.config) == size(study.info["config"])]
    results, models = study.results, replace(study, runs=tuple(shared))
    axes = results["axes"] if results else {}
    document = partial(study_document, study, _lead(study, axes), models=models)
    sections = [
        Section(
            axis,
            f"Over {axis}",
            [
                loss_chart(of_axis, axis),
                Fold("Every size or budget", [_equivalent_table({axis: of_axis}, every=True)]),
                _fit_table(of_axis, axis),
            ],
        )
        for axis, of_axis in axes.items()
    ]
    explained = Text(
        "The same functions on the points that the DIFF Transformer paper plots. Its 62.2 % and "
        "63.7 % are such readings of fits: no model of the sizes read was trained."
    )
    sections.append(Section("published", "The published points", [explained, _published_ratios()]))
    if results is None:
        return document(sections)
    verdict, summary = Text(results["verdict"]["sentence"], "verdict"), _equivalent_table(axes)
    results_section = Section("results", "Results", [summary])
    return document([results_section, *sections], verdict=verdict, summary=summary)


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
            places = [x for x, _, _ in runs]
            grid = np.geomspace(min(places), max(places), 60)
            with np.errstate(all="ignore"):  # a value that is not finite is not drawn
                losses = fit["a"] * grid ** -fit["b"] + fit.get("c", 0.0)
            curve = list(zip(grid.tolist(), losses.tolist(), strict=True))
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
        look=layout(axis, "validation loss", xaxis={"type": "log"}),
        caption=f"Validation loss over {axis}: every run a point, every fit a curve.",
        runs=runs_sentence(dict.fromkeys(names)),
    )


def _fit_table(axis_results: dict[str, Any], axis: str) -> Table:
    fits = {name: entry["fit"] for name, entry in axis_results["types"].items()}
    rows = [
        {
            "Model": type_cell(name),
            **{part: _parameter_cell(fit["parameters"].get(part)) for part in _PARTS},
            "R²": number_cell(number(fit["r2"], 3)),
            "Largest error": number_cell(number(fit["max_error"], 3)),
            "Runs": number_cell(count(fit["points"])),
            "": word_cell(f"No fit: {fit['refused']}." if fit["refused"] else ""),
        }
        for name, fit in fits.items()
    ]
    formula = _FORMULAS[axis_results["form"]]
    return record_table(f"Fits of L = {formula} over {axis}, with 95 % intervals.", rows)


def _equivalent_table(axes: dict[str, Any], *, every: bool = False) -> Table:
    """Tabulate equal losses, at the size and budget read for the verdict or at all of them."""
    rows = [
        {
            "Model": type_cell(row["type"]),
            "Against": word_cell(type_name(row["baseline"])),
            "Over": word_cell(axis),
            "At": number_cell(count(row["x"])),
            "Loss": number_cell(number(row["loss"], 3)),
            "The other's": number_cell(count(row["other_x"])),
            "Share": number_cell(
                _percentage(row["ratio"]), note="extrapolated" if row["extrapolated"] else ""
            ),
            "95 % interval": number_cell(_percentages(row)),
            "": word_cell(f"no estimate: {why}" if (why := row["refused"]) else ""),
        }
        for axis, results in axes.items()
        for row in results["equivalents"]
        if every or row["point"] == results["read_at"]
    ]
    caption = "Equal loss by the fits: parameters or tokens of a model, and those of the other."
    return record_table(caption, rows)


def _published_ratios() -> Table:
    rows = []
    for curves in scaling_curves().values():
        laws, _ = fits_of(curves.points())
        plotted = {kind: drawn(curves.curves[kind], xy) for kind, xy in curves.points().items()}
        for x in curves.read_at:
            row = equivalence_of(x, "diff", BASELINE, laws, extrapolate=True)
            by_curves = equivalence_of(x, "diff", BASELINE, plotted, extrapolate=True)
            rows.append(
                {
                    "DIFF V1": f"{x:g} {curves.unit}",
                    "Loss": number_cell(number(row["loss"], 3)),
                    "Transformer": number_cell(number(row["other_x"], 2)),
                    "Share": number_cell(_percentage(row["ratio"], 1)),
                    "95 % interval": number_cell(_percentages(row)),
                    "By the curves": number_cell(_percentage(by_curves["ratio"], 1)),
                    "": word_cell("at or beyond the last point" if row["extrapolated"] else ""),
                }
            )
    return record_table(
        "Equal loss by the fits to the published points, and by the plotted curves themselves.",
        rows,
    )


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
    ends = [row["low"], row["high"]]
    return MISSING if None in ends else f"{' to '.join(number(100 * x, 0) for x in ends)} %"


def _parameter_cell(value: dict[str, Any] | None) -> Cell:
    if value is None:
        return number_cell(MISSING)
    bounds = [value[key] for key in ("mean", "low", "high")]
    mean, *ends = ("" if x is None else f"{x:.4g}".replace("-", "−") for x in bounds)
    return number_cell(mean, note=" to ".join(ends) if all(ends) else "no interval")
