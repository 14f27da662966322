"""Tables of a scaling study, for its page and, for a document, in Markdown."""

from pathlib import Path
from typing import Any

from diffattn.lab.report.page.runs import BASELINE, Study
from diffattn.lab.report.page.tables import (
    Table,
    head_cell,
    number_cell,
    table,
    type_cell,
    word_cell,
)
from diffattn.lab.report.page.wording import MISSING, count, markdown_table, number, span, type_name
from diffattn.lab.report.paper import scaling_curves
from diffattn.lab.report.scaling.files import AXES, read_scaling_study
from diffattn.lab.stats.scaling import drawn, equivalence_of, fits_of

PARTS = ("a", "b", "c")
FORMULAS = {"offset": "a x⁻ᵇ + c", "kaplan": "a x⁻ᵇ"}


def loss_table(of: dict[str, Any], axis: str) -> Table:
    """The losses that are fitted: a row per model, a column per size or budget."""
    first = next(iter(of["types"].values()))["points"]
    rows = []
    for name, of_type in of["types"].items():
        row = [type_cell(name)]
        for point in of_type["points"]:
            ends = span(point["loss"]["low"], point["loss"]["high"], 3, none="no interval")
            note = f"{ends}; {count(point['parameters'])}" if axis == "parameters" else ends
            row.append(number_cell(number(point["loss"]["mean"], 3), point["runs"], note=note))
        rows.append(row)
    exact = ", and its exact parameters" if axis == "parameters" else ""
    return table(
        f"Validation loss over {axis}, nats per token: mean over seeds, its interval{exact}.",
        ["Model", *(count(point["x"]) for point in first)],
        rows,
    )


def fit_table(of: dict[str, Any], axis: str) -> Table:
    """a, b and c of every model with their intervals, or why there are none."""
    rows = []
    for name, of_type in of["types"].items():
        fit = of_type["fit"]
        cells = [
            number_cell(_short(fit["parameters"][part]["mean"]),
                        note=_ends(fit["parameters"][part]))
            if part in fit["parameters"] else number_cell(MISSING)
            for part in PARTS
        ]  # fmt: skip
        quality = [number_cell(number(fit[key], 3)) for key in ("r2", "max_error")]
        why = word_cell(f"No fit: {fit['refused']}." if fit["refused"] else "")
        rows.append([type_cell(name), *cells, *quality, number_cell(count(fit["points"])), why])
    return table(
        f"Fits of L = {FORMULAS[of['form']]} over {axis}, with 95 % intervals.",
        ["Model", *PARTS, "R²", "Largest error", "Runs", ""],
        rows,
    )


def equivalent_table(of: dict[str, Any], axis: str) -> Table:
    """Where another model has the loss of every point, and the share of its parameters or tokens
    that is enough."""
    rows = []
    for row in of["equivalents"]:
        remark = [] if row["point"] != of["read_at"] else ["read for the verdict"]
        remark += ["extrapolated"] if row["extrapolated"] else []
        if row["refused"]:
            remark.append(f"not said: {row['refused']}")
        rows.append(
            [
                type_cell(row["type"]),
                word_cell(type_name(row["baseline"])),
                number_cell(count(row["x"])),
                number_cell(number(row["loss"], 3)),
                number_cell(count(row["other_x"])),
                number_cell(percentage(row["ratio"])),
                number_cell(percentages(row["low"], row["high"])),
                word_cell("; ".join(remark)),
            ]
        )
    headers = ["Model", "Against", AXES[axis], "Loss", "The other's", "Share", "95 % interval", ""]
    return table(
        f"Equal loss by the fits: {axis} of a model, and those that the other needs.", headers, rows
    )


def published_fits() -> Table:
    """The published points fitted by the same functions, beside the published curves."""
    rows = []
    for axis, curves in scaling_curves().items():
        _, fits = _published(axis)
        for name, fit in fits.items():
            row = [type_cell(name), word_cell(curves.unit)]
            for part, printed in zip(PARTS, curves.curves[name], strict=True):
                ends = fit["parameters"][part]
                note = f"plotted: {printed:g}; interval {_ends(ends)}"
                row.append(number_cell(_short(ends["mean"]), note=note))
            row += [number_cell(number(fit["r2"], 3)), number_cell(number(fit["max_error"], 3))]
            rows.append(row)
    return table(
        "Fits of L = a x⁻ᵇ + c to the points of arXiv:2410.05258v2, Fig. 3; below each number that "
        "of the plotted curve, and our 95 % interval.",
        ["Model", "Over", *PARTS, "R²", "Largest error"],
        rows,
    )


def published_ratios() -> Table:
    """What DIFF needs of the Transformer's parameters and tokens, from the published points."""
    rows = []
    for axis, curves in scaling_curves().items():
        laws, _ = _published(axis)
        plotted = {
            name: drawn(curves.curves[name], list(zip(curves.x, losses, strict=True)))
            for name, losses in curves.losses.items()
        }
        for x in curves.read_at:
            row = equivalence_of(x, "diff", BASELINE, laws, extrapolate=True)
            by_curves = equivalence_of(x, "diff", BASELINE, plotted, extrapolate=True)
            rows.append(
                [
                    head_cell(f"{x:g} {curves.unit}"),
                    number_cell(number(row["loss"], 3)),
                    number_cell(number(row["other_x"], 2)),
                    number_cell(percentage(row["ratio"], 1)),
                    number_cell(percentages(row["low"], row["high"])),
                    number_cell(percentage(by_curves["ratio"], 1)),
                    word_cell("at or beyond the last point" if row["extrapolated"] else ""),
                ]
            )
    headers = ["DIFF V1", "Loss", "Transformer", "Share", "95 % interval", "By the curves", ""]
    return table(
        "Equal loss by the fits to the published points, and by the plotted curves themselves.",
        headers,
        rows,
    )


def _published(axis: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    curves = scaling_curves()[axis]
    return fits_of(
        {name: list(zip(curves.x, losses, strict=True)) for name, losses in curves.losses.items()}
    )


def scaling_markdown(folder: Path) -> str:
    """Results of a scaling study as a Markdown table: fits, and the equivalents that are read.

    Args:
        folder: Study folder.

    Returns:
        One row per model and axis, ending in a newline.

    Raises:
        CheckpointError: A file of the study is damaged or foreign.
    """
    study = read_scaling_study(folder)
    headers = ["Over", "Model", "a", "b", "c", "Read at", "Share of the Transformer's", "95 %"]
    rows: list[list[str]] = []
    for axis in AXES if study.results else ():
        rows += _markdown_rows(axes_of(study)[axis], axis)
    return markdown_table(headers, rows, numeric=range(2, 8)) + "\n"


def axes_of(study: Study) -> dict[str, Any]:
    """Of the results, which must be there."""
    assert study.results is not None
    axes: dict[str, Any] = study.results["axes"]
    return axes


def _markdown_rows(of: dict[str, Any], axis: str) -> list[list[str]]:
    read = {
        row["type"]: row
        for row in of["equivalents"]
        if (row["baseline"], row["point"]) == (BASELINE, of["read_at"])
    }
    rows = []
    for name, of_type in of["types"].items():
        fit, row = of_type["fit"], read.get(name, {})
        parts = [_with_ends(fit["parameters"].get(part)) for part in PARTS]
        share = [percentage(row.get("ratio")), percentages(row.get("low"), row.get("high"))]
        at = count(of_type["points"][of["read_at"]]["x"])
        rows.append([axis, type_name(name), *parts, at, *share])
    return rows


def percentage(share: Any, digits: int = 0) -> str:
    """A share in percent."""
    return MISSING if share is None else f"{number(100 * share, digits)} %"


def percentages(low: Any, high: Any) -> str:
    """Both ends of an interval of a share, in percent."""
    if low is None or high is None:
        return MISSING
    return f"{number(100 * low, 0)} to {number(100 * high, 0)} %"


def _short(value: float) -> str:
    """Four digits that count."""
    return f"{value:.4g}".replace("-", "−")


def _ends(of: dict[str, Any]) -> str:
    if of["low"] is None or of["high"] is None:
        return "no interval"
    return f"{_short(of['low'])} to {_short(of['high'])}"


def _with_ends(of: dict[str, Any] | None) -> str:
    return MISSING if of is None else f"{_short(of['mean'])} ({_ends(of)})"
