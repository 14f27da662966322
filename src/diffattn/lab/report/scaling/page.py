"""What the page of a scaling study shows, as plain values."""

from dataclasses import replace
from typing import Any

import numpy as np

from diffattn.lab.report.page.charts import Chart, layout, line, names_of
from diffattn.lab.report.page.provenance import provenance, statement
from diffattn.lab.report.page.run_tables import cost_table, models_table
from diffattn.lab.report.page.runs import Study
from diffattn.lab.report.page.wording import count, listing, plural, type_color, type_name
from diffattn.lab.report.scaling.files import AXES
from diffattn.lab.report.scaling.tables import (
    axes_of,
    equivalent_table,
    fit_table,
    loss_table,
    published_fits,
    published_ratios,
)

CHAPTERS = {
    "parameters": "Over parameters",
    "tokens": "Over tokens",
    "published": "The published points",
    "models": "Models",
    "costs": "Speed and memory",
    "benchmarks": "Benchmarks",
    "provenance": "Provenance",
}
_CURVE_POINTS = 60


def scaling_page(study: Study) -> dict[str, Any]:
    """Every section of the page, as the template names them.

    Args:
        study: From :func:`diffattn.lab.report.scaling.files.read_scaling_study`.
    """
    base = _base_runs(study)
    return {
        "verdict": None if study.results is None else study.results["verdict"]["sentence"],
        "lead": _lead(study),
        "statement": statement(study),
        "gaps": study.gaps,
        "axes": {} if study.results is None else {
            axis: {
                "chart": over(axes_of(study)[axis], axis),
                "tables": [
                    make(axes_of(study)[axis], axis)
                    for make in (equivalent_table, fit_table, loss_table)
                ],
            }
            for axis in AXES
        },
        "published": [published_ratios(), published_fits()],
        "models": models_table(base),
        "costs": cost_table(base),
        "provenance": provenance(study),
    }  # fmt: skip


def over(of: dict[str, Any], axis: str) -> Chart:
    """The loss of every run, and the fitted curves."""
    traces, used = [], []
    for name, of_type in of["types"].items():
        runs = [
            (point["x"], loss, run)
            for point in of_type["points"]
            for loss, run in zip(point["loss"]["values"], point["runs"], strict=True)
        ]
        used += [run for _, _, run in runs]
        fit = of_type["fit"]["parameters"]
        if fit:
            parts = {part: fit[part]["mean"] for part in fit}
            curve = _curve(parts, [x for x, _, _ in runs])
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
        runs=names_of(dict.fromkeys(f"{run.partition('-h')[0]}-h…-s…-seed…" for run in used)),
        height=460,
        label=f"Validation loss over {axis}, points and fitted curve per attention type",
    )


def _curve(parts: dict[str, float], among: list[float]) -> list[tuple[float, float]]:
    """The law between the smallest and the largest point."""
    x = np.geomspace(min(among), max(among), _CURVE_POINTS)
    with np.errstate(all="ignore"):  # what is not finite is not drawn
        y = parts["a"] * x ** -parts["b"] + parts.get("c", 0.0)
    return [(float(at), float(value)) for at, value in zip(x, y, strict=True)]


def _base_runs(study: Study) -> Study:
    """With the runs that both axes share: their models and costs are comparable."""
    model, train = (study.info["config"][part] for part in ("model", "train"))

    def is_base(config: dict[str, Any]) -> bool:
        return (
            config["model"].get("hidden_size") == model.get("hidden_size")
            and isinstance(config.get("train"), dict)
            and config["train"].get("num_steps") == train.get("num_steps")
        )

    return replace(study, runs=tuple(run for run in study.runs if is_base(run.record.config)))


def _lead(study: Study) -> str:
    info = study.info
    names = listing(type_name(name) for name in study.types)
    tokens = f"{plural(len(info['seeds']), 'seed')} each"
    if study.results is not None:
        ends = {
            axis: [point["x"] for of_type in of["types"].values() for point in of_type["points"]]
            for axis, of in axes_of(study).items()
        }
        tokens = (
            f"models of {count(min(ends['parameters']))} to {count(max(ends['parameters']))} "
            f"parameters at equal tokens, and one size with {count(min(ends['tokens']))} to "
            f"{count(max(ends['tokens']))} tokens, every budget a run of its own with a whole "
            f"schedule, {tokens}"
        )
    return f"Compared: language models that are alike but for their attention ({names}); {tokens}."
