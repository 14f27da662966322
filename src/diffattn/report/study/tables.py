"""Tables of a report, in HTML and, for a README, in Markdown."""

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, median
from typing import Any

from diffattn.report.page.cells import number_cell, per_run, run_cell, table, type_cell, word_cell
from diffattn.report.page.wording import (
    MISSING,
    count,
    ends,
    esc,
    listing,
    mebibytes,
    number,
    percent,
    ratio,
    type_name,
    verdict,
)
from diffattn.report.study.files import BASELINE, Study, StudyRun, is_number, read_study
from diffattn.report.study.summary import Difference, TypeResult, bits_per_byte, differences, losses

_METRICS = {"validation_loss": "validation loss", "validation_bits_per_byte": "bits per byte"}


def models_table(study: Study) -> str:
    """Sizes of the compared models, with the difference to the baseline."""
    base = _first_model(study, BASELINE)
    rows = []
    for name in study.types:
        runs = study.runs_of(name)
        if not runs:
            rows.append([type_cell(name), *[number_cell(MISSING)] * 7, word_cell("no run found")])
            continue
        shape, model = runs[0].record.config["model"], runs[0].record.model
        names = [run.name for run in runs]
        heads, kv_heads = shape.get("num_heads"), shape.get("num_kv_heads")
        extra, flops = model.get("parameter_difference"), model.get("flops_difference")
        values = [
            count(heads) if kv_heads in (None, heads) else f"{count(heads)} / {count(kv_heads)} kv",
            count(shape.get("head_dim")),
            count(shape.get("intermediate_size")),
            count(model.get("parameters")),
            _change(extra, base.get("parameters"), name),
            count(model.get("train_flops_per_token")),
            _change(flops, base.get("train_flops_per_token"), name),
        ]
        rows.append([type_cell(name), *(number_cell(v, names) for v in values), run_cell(names)])
    headers = [
        "Model",
        "Heads",
        "Head width",
        "FFN width",
        "Parameters",
        "Parameter difference",
        "Train FLOPs per token",
        "FLOPs difference",
        "Runs",
    ]
    return table("Compared models, with the difference to the Transformer.", headers, rows)


def loss_table(study: Study) -> str:
    """Validation loss and bits per byte of every type, with intervals and single runs."""
    found, bytewise = losses(study), bits_per_byte(study)
    rows = []
    for name in study.types:
        if name not in found:
            rows.append(
                [type_cell(name), *[number_cell(MISSING)] * 4, word_cell("no finished run")]
            )
            continue
        row = [type_cell(name), *_mean_cells(found[name])]
        if name in bytewise:
            row += _mean_cells(bytewise[name])
        else:
            row += [number_cell(MISSING), number_cell(MISSING)]
        pairs = zip(found[name].runs, found[name].values, strict=True)
        row.append(per_run((run, number(value)) for run, value in pairs))
        rows.append(row)
    level = _level(r.interval.level for r in found.values())
    headers = ["Model", "Loss", level, "Bits per byte", level, "Each run"]
    caption = "Final validation loss in nats per token, mean over seeds. Lower is better."
    return table(caption, headers, rows)


def difference_table(study: Study) -> str:
    """Paired differences to the baseline and what they show, in words."""
    found = differences(study)
    several = any(d.metric != "validation_loss" for d in found)
    rows = []
    for difference in found:
        row = [type_cell(difference.attention_type)]
        if several:
            row.append(word_cell(esc(_METRICS.get(difference.metric, difference.metric))))
        rows.append(row + _difference_cells(difference))
    compared = {difference.attention_type for difference in found}
    for name in study.differential_types:
        if name not in compared:
            blank = [number_cell(MISSING)] * (4 if several else 3)
            rows.append([type_cell(name), *blank, word_cell("no finished pair")])
    headers = ["Model", *(["Metric"] if several else []), *_difference_headers(found)]
    baselines = listing(dict.fromkeys(type_name(d.baseline) for d in found)) or "the baseline"
    return table(f"Difference to the {baselines}, paired by seed.", headers, rows)


def side_by_side_table(study: Study, published: Study) -> str:
    """Differences of two studies of one protocol version, next to each other."""
    found = [
        (difference, where)
        for one, where in ((study, "this study"), (published, "published"))
        for difference in differences(one)
        if difference.metric == "validation_loss"
    ]
    order = list(dict.fromkeys(study.types + published.types))
    found.sort(key=lambda pair: [pair[0].attention_type == name for name in order], reverse=True)
    rows = [
        [type_cell(difference.attention_type), word_cell(where), *_difference_cells(difference)]
        for difference, where in found
    ]
    headers = ["Model", "Study", *_difference_headers([difference for difference, _ in found])]
    return table(
        "Difference in validation loss to the Transformer, in both studies.", headers, rows
    )


def _difference_headers(found: Iterable[Difference]) -> list[str]:
    level = _level(difference.interval.level for difference in found)
    return ["Difference", level, "Verdict", "Each pair"]


def _difference_cells(difference: Difference) -> list[str]:
    names = [run for pair in difference.runs for run in pair]
    pairs = zip(difference.runs, difference.values, strict=True)
    return [
        number_cell(number(difference.interval.mean, signed=True), names),
        number_cell(ends(difference.interval, signed=True), names),
        word_cell(esc(verdict(difference.interval))),
        per_run((f"{a} − {b}", number(value, signed=True)) for (a, b), value in pairs),
    ]


def cost_table(study: Study) -> str:
    """Speed and memory of every type: the median over its runs."""
    base = {key: _median_cost(study, BASELINE, key) for key in _COSTS}
    rows = []
    for name in study.types:
        runs = [run for run in study.runs_of(name) if run.costs]
        if not runs:
            rows.append(
                [type_cell(name), *[number_cell(MISSING)] * 5, word_cell("no costs recorded")]
            )
            continue
        names = [run.name for run in runs]
        middle = {key: _median_cost(study, name, key) for key in _COSTS}
        values = [
            count(middle["tokens_per_second"]),
            ratio(middle["tokens_per_second"], base["tokens_per_second"]),
            mebibytes(middle["peak_bytes"]),
            ratio(middle["peak_bytes"], base["peak_bytes"]),
            f"{number(middle['wall_seconds'], 1)} s",
        ]
        single = ((run.name, _one_cost(run)) for run in runs)
        rows.append([type_cell(name), *(number_cell(v, names) for v in values), per_run(single)])
    headers = ["Model", "Tokens/s", "Speed ratio", "Peak memory", "Memory ratio", "Wall time"]
    caption = (
        "Median over runs, and its ratio to the Transformer's. Tokens per second of processor "
        "time of the training process."
    )
    return table(caption, [*headers, "Each run"], rows)


_COSTS = ("tokens_per_second", "peak_bytes", "wall_seconds")


def lambda_table(study: Study) -> str:
    """λ of every layer at the end of training; empty text if no run recorded any."""
    columns = {}
    for name in study.differential_types:
        runs = [run for run in study.runs_of(name) if _lam(run)]
        if runs:
            columns[name] = runs
    if not columns:
        return ""
    layers = max(len(_lam(run)) for runs in columns.values() for run in runs)
    rows = []
    for layer in range(layers):
        row = [f'<th scope="row">layer {layer}</th>']
        for runs in columns.values():
            values = [_lam(run)[layer] for run in runs if layer < len(_lam(run))]
            text = number(fmean(values), 3) if values else MISSING
            if len(values) > 1:
                text += f"<br><small>{number(min(values), 3)} to {number(max(values), 3)}</small>"
            row.append(number_cell(text, [run.name for run in runs]))
        rows.append(row)
    used = ['<th scope="row">runs</th>']
    rows.append(used + [run_cell([run.name for run in runs]) for runs in columns.values()])
    caption = "λ at the end of training: mean over seeds, and the range of single runs."
    if "diff_v2" in columns:
        caption += f" For {type_name('diff_v2')} the mean of σ(λ) over tokens and heads."
    return table(caption, ["", *(esc(type_name(name)) for name in columns)], rows)


def markdown_table(study: Path) -> str:
    """Results of a study as a Markdown table that names its runs.

    Args:
        study: Study folder.

    Returns:
        One row per attention type, ending in a newline.

    Raises:
        CheckpointError: A file of the study is damaged or foreign.
    """
    files = read_study(study)
    found = losses(files)
    to_baseline = {d.attention_type: d for d in differences(files) if d.metric == "validation_loss"}
    level = _level(result.interval.level for result in found.values())
    lines = [
        f"| Model | Parameters | Validation loss | {level} | To the Transformer | {level} "
        "| Verdict | Runs |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for name in files.types:
        cells = [type_name(name), count(_first_model(files, name).get("parameters"))]
        if name in found:
            interval = found[name].interval
            cells += [number(interval.mean), ends(interval)]
        else:
            cells += [MISSING, MISSING]
        cells += _markdown_difference(to_baseline.get(name), name)
        cells.append(", ".join(found[name].runs) if name in found else "no finished run")
        # A bar inside a cell would end it.
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _markdown_difference(difference: Difference | None, name: str) -> list[str]:
    if difference is None:
        return [MISSING, MISSING, "baseline" if name == BASELINE else MISSING]
    interval = difference.interval
    return [number(interval.mean, signed=True), ends(interval, signed=True), verdict(interval)]


def _mean_cells(result: TypeResult) -> list[str]:
    return [
        number_cell(number(result.interval.mean), result.runs),
        number_cell(ends(result.interval), result.runs),
    ]


def _level(levels: Iterable[float]) -> str:
    """Header of an interval column."""
    return f"{listing(f'{100 * x:g} %' for x in sorted(set(levels))) or '95 %'} interval"


def _change(value: Any, whole: Any, attention_type: str) -> str:
    if attention_type == BASELINE:
        return MISSING
    return f"{count(value, signed=True)}<br><small>{percent(value, whole)}</small>"


def _first_model(study: Study, attention_type: str) -> dict[str, Any]:
    runs = study.runs_of(attention_type)
    return runs[0].record.model if runs else {}


def _median_cost(study: Study, attention_type: str, key: str) -> float | None:
    runs = study.runs_of(attention_type)
    values = [run.costs[key] for run in runs if run.costs and is_number(run.costs.get(key))]
    return median(values) if values else None


def _one_cost(run: StudyRun) -> str:
    costs = run.costs or {}
    return f"{count(costs.get('tokens_per_second'))}/s, {mebibytes(costs.get('peak_bytes'))}"


def _lam(run: StudyRun) -> list[float]:
    lam = run.result("lam")
    return lam if isinstance(lam, list) and all(map(is_number, lam)) else []
