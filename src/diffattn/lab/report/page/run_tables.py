"""Tables of runs that every kind of study shows: the sizes of the models, and what they cost."""

from statistics import median
from typing import Any

from diffattn.lab.report.page.runs import BASELINE, Study, is_number
from diffattn.lab.report.page.tables import (
    Cell,
    Table,
    number_cell,
    run_cell,
    table,
    type_cell,
)
from diffattn.lab.report.page.wording import (
    MISSING,
    brief_names,
    count,
    mebibytes,
    number,
    percent,
    ratio,
)

_COSTS = ("tokens_per_second", "peak_bytes", "cpu_seconds")


def models_table(study: Study) -> Table:
    """Sizes of the compared models, with the difference to the baseline."""
    of_base = study.runs_of(BASELINE)
    base = of_base[0].record.model if of_base else {}
    rows = []
    for name in study.types:
        runs = study.runs_of(name)
        if not runs:
            continue
        shape, model = runs[0].record.config["model"], runs[0].record.model
        names = [run.name for run in runs]
        heads, kv_heads = shape.get("num_heads"), shape.get("num_kv_heads")
        heads_text = count(heads)
        if kv_heads not in (None, heads):
            heads_text += f" / {count(kv_heads)} kv"
        extra, flops = model.get("parameter_difference"), model.get("flops_difference")
        row = [
            type_cell(name),
            number_cell(heads_text, names),
            number_cell(count(shape.get("head_dim")), names),
            number_cell(count(shape.get("intermediate_size")), names),
            number_cell(count(model.get("parameters")), names),
            _change_cell(extra, base.get("parameters"), name, names),
            number_cell(count(model.get("train_flops_per_token")), names),
            _change_cell(flops, base.get("train_flops_per_token"), name, names),
            run_cell(brief_names(names)),
        ]
        rows.append(row)
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


def cost_table(study: Study) -> Table:
    """Speed and memory of every type: the median over its runs."""
    base = {key: _median_cost(study, BASELINE, key) for key in _COSTS}
    rows = []
    for name in study.types:
        runs = [run for run in study.runs_of(name) if run.costs]
        if not runs:
            continue
        names = [run.name for run in runs]
        middle = {key: _median_cost(study, name, key) for key in _COSTS}
        values = [
            count(middle["tokens_per_second"]),
            ratio(middle["tokens_per_second"], base["tokens_per_second"]),
            mebibytes(middle["peak_bytes"]),
            ratio(middle["peak_bytes"], base["peak_bytes"]),
            f"{number(middle['cpu_seconds'], 1)} s",
        ]
        rows.append([type_cell(name), *(number_cell(v, names) for v in values)])
    headers = ["Model", "Tokens/s", "Speed ratio", "Peak memory", "Memory ratio", "Processor time"]
    caption = (
        "Median over runs, and its ratio to the Transformer's. Tokens per second of processor "
        "time of the training process."
    )
    return table(caption, headers, rows)


def _change_cell(value: Any, whole: Any, attention_type: str, runs: list[str]) -> Cell:
    if attention_type == BASELINE:
        return number_cell(MISSING, runs)
    return number_cell(count(value, signed=True), runs, note=percent(value, whole))


def _median_cost(study: Study, attention_type: str, key: str) -> float | None:
    runs = study.runs_of(attention_type)
    values = [run.costs[key] for run in runs if run.costs and is_number(run.costs.get(key))]
    return median(values) if values else None
