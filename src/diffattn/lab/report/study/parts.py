"""Where the difference lies: loss on parts of the tokens, and when attention starts to copy."""

from collections.abc import Sequence
from math import inf
from statistics import median
from typing import Any

from diffattn.lab.report.page.charts import Chart, interval_bars, layout, line, mean_curve, names_of
from diffattn.lab.report.page.runs import BASELINE, StudyRun, is_number
from diffattn.lab.report.page.tables import (
    Cell,
    Table,
    head_cell,
    number_cell,
    table,
    type_cell,
    word_cell,
)
from diffattn.lab.report.page.wording import MISSING, count, ends, number, type_color, type_name
from diffattn.lab.report.study.charts import count_lines, evaluated_on, mean_label
from diffattn.lab.report.study.files import TextStudy
from diffattn.lab.report.study.names import (
    BEST_COUNT_MODEL,
    COUNT_MODELS,
    PART_MEANINGS,
    PARTS,
    QUARTERS,
    rate_name,
)
from diffattn.lab.report.study.summary import (
    baseline_of,
    difference,
    shown_in_charts,
    variants_of,
)


def parts_section(study: TextStudy, prefix: str) -> dict[str, Any] | None:
    """Charts and tables of the parts and of the induction phase; ``None`` if none were recorded.

    Args:
        study: The study.
        prefix: Start of the element ids, unique in the page.
    """
    curves = [
        chart
        for index, part in enumerate(PARTS)
        if (chart := _curve_chart(study, part, f"{prefix}part-{index}")) is not None
    ]
    shown = shown_in_charts(study)
    others = [name for name in study.variants if name not in shown]
    by_part = _table(study, shown, PARTS, _parts_caption(study), counts=True)
    by_quarter = _table(
        study, shown, QUARTERS, "By position in the window, from its first quarter to its last."
    )
    phase = _phase_table(study)
    if not (curves or by_part or by_quarter or phase):
        return None
    return {
        "meanings": [(PARTS[part], meaning) for part, meaning in PART_MEANINGS.items()],
        "curves": [*curves, *_gain_charts(study, f"{prefix}gain")],
        "by_part": by_part,
        "by_part_others": _table(study, others, PARTS | QUARTERS, "By part of the tokens."),
        "by_quarter": by_quarter,
        "quarters": _quarter_chart(study, f"{prefix}quarters"),
        "phase": phase,
        "phase_what": _phase_in_words(study),
    }


def part_series(run: StudyRun, part: str) -> list[tuple[float, float]]:
    """Steps and validation losses of one part of the tokens."""
    rows = ((row["step"], row.get("validation_parts")) for row in run.metrics)
    return [
        (step, parts[part])
        for step, parts in rows
        if isinstance(parts, dict) and is_number(parts.get(part))
    ]


def _curve_chart(study: TextStudy, part: str, element_id: str) -> Chart | None:
    traces: list[dict[str, Any]] = []
    used = []
    for name in shown_in_charts(study):
        runs = [run for run in study.runs_of(name) if part_series(run, part)]
        if runs:
            mean = mean_curve([part_series(run, part) for run in runs])
            traces.append(line(mean, name, mean_label(runs)))
            used += [run.name for run in runs]
    if not used:
        return None
    traces += count_lines(study, traces, part, [BEST_COUNT_MODEL])
    name = PARTS[part]
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("training step", "nats per token"),
        caption=f"{name}: {PART_MEANINGS[part]}. Mean over seeds.{evaluated_on(study)}",
        runs=names_of(used),
        height=380,
        label=f"Validation loss of the part “{name}” over training steps, one line per model",
    )


def _gain_charts(study: TextStudy, element_id: str) -> list[Chart]:
    """How much lower the loss is at the end of the window than at its start, over training."""
    first, *_, last = QUARTERS
    traces: list[dict[str, Any]] = []
    used = []
    for name in shown_in_charts(study):
        curves = {}
        for run in study.runs_of(name):
            late = dict(part_series(run, last))
            early = part_series(run, first)
            curves[run.name] = [(step, loss - late[step]) for step, loss in early if step in late]
        curves = {run: curve for run, curve in curves.items() if curve}
        if curves:
            runs = [run for run in study.runs_of(name) if run.name in curves]
            traces.append(line(mean_curve(list(curves.values())), name, mean_label(runs)))
            used += list(curves)
    if not used:
        return []
    return [
        Chart(
            element_id=element_id,
            traces=traces,
            look=layout("training step", "nats per token"),
            caption="What context gains: loss in the first quarter of the window minus loss in its "
            f"last. Mean over seeds.{evaluated_on(study)}",
            runs=names_of(used),
            height=380,
            label="Loss in the first quarter of the window minus that in the last over training "
            "steps, one line per model",
        )
    ]


def _phase_in_words(study: TextStudy) -> str:
    """When a run has passed, with the threshold in numbers; nothing if that was not recorded."""
    recorded = (study.results or {}).get("phase")
    if not recorded:
        return ""
    every = (study.info["config"].get("train") or {}).get("evaluate_every")
    how_often = f", looked at every {count(every)} steps" if every else ""
    return f"{recorded['what']} (below {number(recorded['threshold'], 3)} nats{how_often})"


def _parts_caption(study: TextStudy) -> str:
    shares = _shares(study)
    text = ", ".join(
        f"{PARTS[part].lower()} {number(100 * shares[part], 0)} %"
        for part in PARTS
        if part in shares
    )
    return "By what the window held before." + (f" Share of the tokens: {text}." if text else "")


def _shares(study: TextStudy) -> dict[str, float]:
    """Share of the validation tokens in each part, from the first run that counted them."""
    for run in study.runs:
        counted = run.result("validation_parts")
        if not isinstance(counted, dict):
            continue
        tokens = {
            part: entry["tokens"]
            for part in PARTS
            if isinstance(entry := counted.get(part), dict)
            and is_number(entry.get("tokens"))
            and entry["tokens"] >= 0
        }
        total = sum(float(n) for n in tokens.values())
        if len(tokens) == len(PARTS) and total > 0:
            return {part: n / total for part, n in tokens.items()}
    return {}


def _table(
    study: TextStudy,
    names: Sequence[str],
    parts: dict[str, str],
    caption: str,
    *,
    counts: bool = False,
) -> Table | None:
    """Loss of some variants on each part, with a difference below; ``None`` if unknown.

    The difference is that to the Transformer where it was recorded, else that to what the variant
    is compared with, which then has its name beside it.
    """
    every = variants_of(study)
    rows: list[list[Cell]] = []
    for name in names:
        best = every[name].best
        if best is None or not any(part in best.parts for part in parts):
            continue
        cells = [
            number_cell(
                number(best.parts[part].mean), best.loss.runs, note=_change(study, name, part)
            )
            if part in best.parts
            else number_cell(MISSING)
            for part in parts
        ]
        rows.append([type_cell(name), *cells])
    if not rows:
        return None
    recorded = (study.results or {}).get("count_models") or {}
    for name, title in COUNT_MODELS.items() if counts else ():
        if name in recorded:
            losses = recorded[name].get("parts") or {}
            cells = [number_cell(number(losses.get(part))) for part in parts]
            rows.append([head_cell(f"{title} counts"), *cells])
    caption += (
        " Validation loss in nats per token at the chosen rate, mean over seeds; below it the "
        f"difference to the {type_name(BASELINE)} and its interval, paired by seed."
    )
    return table(caption, ["Model", *parts.values()], rows)


def _change(study: TextStudy, name: str, part: str) -> str:
    for other in dict.fromkeys((BASELINE, baseline_of(study, name))):
        entry = None if other is None else difference(study, name, other, metric=part)
        if name == BASELINE or entry is None:
            continue
        text = number(entry.interval.mean, signed=True)
        if entry.interval.low is not None and entry.interval.high is not None:
            text += f" ({ends(entry.interval, signed=True)})"
        return text if other == BASELINE else f"{text} to {type_name(entry.baseline)}"
    return ""


def _quarter_chart(study: TextStudy, element_id: str) -> Chart | None:
    traces: list[dict[str, Any]] = []
    used: list[str] = []
    names = shown_in_charts(study)
    for index, name in enumerate(names):
        best = variants_of(study)[name].best
        known = [] if best is None else [q for q in QUARTERS if q in best.parts]
        if best is None or not known:
            continue
        used += best.loss.runs
        intervals = [best.parts[quarter] for quarter in known]
        # Side by side, so that bars do not hide one another.
        shift = 0.05 * (index - (len(names) - 1) / 2)
        color = type_color(name)
        traces.append(
            {
                "type": "scatter",
                "x": [list(QUARTERS).index(quarter) + 1 + shift for quarter in known],
                "y": [interval.mean for interval in intervals],
                "error_y": interval_bars((i.mean, i.low, i.high) for i in intervals),
                "name": type_name(name),
                "mode": "lines+markers",
                "line": {"color": color, "width": 1.5},
                "marker": {"color": color, "size": 8},
                "hovertemplate": [type_name(name), "%{y:.4f}"],
            }
        )
    if not traces:
        return None
    ticks = {"tickvals": [1, 2, 3, 4], "ticktext": list(QUARTERS.values())}
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("position in the window", "validation loss, nats per token", xaxis=ticks),
        caption="Validation loss by position in the window at the end of training: mean and "
        "interval over seeds.",
        runs=names_of(used),
        height=380,
        label="Validation loss by quarter of the window; the table gives the numbers",
    )


def _phase_table(study: TextStudy) -> Table | None:
    """The step at which each run passed; runs that did not are counted, not left out."""
    num_steps = count((study.info["config"].get("train") or {}).get("num_steps"))
    rows = []
    every = variants_of(study)
    groups = [(name, one) for name, of in every.items() for one in (of.best, of.common)]
    for name, group in groups:
        if group is None or not group.phase_steps:
            continue
        ordered = sorted(inf if step is None else step for step in group.phase_steps)
        late = sum(step is None for step in group.phase_steps)
        words = [
            f"{len(ordered) - late} of {len(ordered)}",
            str(late),
            _step(median(ordered), num_steps),
            _spread(ordered, num_steps),
        ]
        each = ("not passed" if step is None else count(step) for step in group.phase_steps)
        cells = [number_cell(rate_name(group.learning_rate))]
        cells += [number_cell(text, group.loss.runs) for text in words]
        rows.append([type_cell(name), *cells, word_cell(", ".join(each))])
    if not rows:
        return None
    caption = (
        "Step at which each run passed the induction phase, in the order of the seeds; at the "
        "chosen rate, and at the common one where that is another. From the "
        "lowest to the highest step is an interval of the median, with its coverage; runs that "
        "did not pass count as later than the last step."
    )
    headers = ["Model", "Rate", "Passed", f"Not within {num_steps} steps", "Median step"]
    return table(caption, [*headers, "Lowest to highest", "Each run"], rows)


def _step(step: float, num_steps: str) -> str:
    return f"over {num_steps}" if step == inf else count(step)


def _spread(ordered: Sequence[float], num_steps: str) -> str:
    """Range of the steps, and how surely it holds the median of all possible runs."""
    if len(ordered) == 1:
        return "none: one seed"
    low, high = (_step(ordered[end], num_steps) for end in (0, -1))
    covered = number(100 * (1 - 2.0 ** (1 - len(ordered))), 0)
    return f"{low if low == high else f'{low} to {high}'} ({covered} %)"
