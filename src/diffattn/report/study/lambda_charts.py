"""λ of every layer over training."""

from typing import Any

from diffattn.report.page.charts import embed, layout, line, mean_curve, names_of
from diffattn.report.page.wording import esc, type_color, type_name
from diffattn.report.study.files import Study, StudyRun, is_number


def lambda_chart(study: Study, attention_type: str, element_id: str) -> str:
    """λ of every layer over training, with λ_init as dotted lines; a note if there is none."""
    runs = [run for run in study.runs_of(attention_type) if lambdas(run)]
    name = esc(type_name(attention_type))
    if not runs:
        return f'<p class="gap">No run of {name} recorded λ.</p>\n'
    traces: list[dict[str, Any]] = []
    num_layers = max(len(row) for run in runs for _, row in lambdas(run))
    starts: list[float] = next((init for run in runs if (init := _lambda_init(run))), [])
    for layer in range(num_layers):
        color = shade(type_color(attention_type), layer, num_layers)
        curves = [
            [(step, row[layer]) for step, row in lambdas(run) if layer < len(row)] for run in runs
        ]
        group = str(layer)
        if len(runs) > 1:
            for run, curve in zip(runs, curves, strict=True):
                traces.append(line(curve, group, run.name, thin=True, color=color))
        label = runs[0].name if len(runs) == 1 else f"mean of {len(runs)} runs"
        mean = mean_curve(curves)
        traces.append(line(mean, group, label, color=color))
        if layer < len(starts) and mean:
            flat = [(mean[0][0], starts[layer]), (mean[-1][0], starts[layer])]
            traces.append(line(flat, group, "λ_init", color=color, dotted=True))
    what = "mean σ(λ)" if attention_type == "diff_v2" else "λ"
    legend = {"title": {"text": "layer ", "font": {"size": 13}}}
    dotted = " Dotted: λ_init." if starts else ""
    return embed(
        traces,
        layout("training step", what, legend=legend),
        element_id,
        f"{name}: {what} per layer, first layer lightest.{dotted} "
        + names_of(run.name for run in runs),
        height=360,
        label=f"λ of every layer of {type_name(attention_type)} over training steps",
    )


def lambdas(run: StudyRun) -> list[tuple[float, list[float]]]:
    """Steps and λ per layer of one run."""
    return [
        (row["step"], row["lam"])
        for row in run.metrics
        if isinstance(row.get("lam"), list) and all(is_number(x) for x in row["lam"])
    ]


def shade(color: str, index: int, total: int) -> str:
    """``color`` mixed with white, from light (first layer) to full (last layer)."""
    strength = 1.0 if total < 2 else 0.35 + 0.65 * index / (total - 1)
    channels = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 + strength * (c - 255)):02x}" for c in channels)


def _lambda_init(run: StudyRun) -> list[float]:
    init = run.result("lambda_init")
    return init if isinstance(init, list) and all(map(is_number, init)) else []
