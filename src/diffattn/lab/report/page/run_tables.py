"""Tables of runs that every kind of study shows: the sizes of the models, and their costs."""

from statistics import median

from diffattn.lab.catalog.models import BASELINE
from diffattn.lab.report.page.runs import Study, StudyRun
from diffattn.lab.report.page.tables import Table, number_cell, table, type_cell, word_cell
from diffattn.lab.report.page.wording import (
    MISSING,
    brief_names,
    count,
    is_number,
    mebibytes,
    number,
    percent,
    ratio,
)

_SPEED = "tokens_per_second"
_COSTS = (_SPEED, "peak_bytes", "seconds")


def models_table(study: Study) -> Table:
    """Show the sizes of the compared models, and the differences to the baseline."""
    runs_of_base = study.runs_of(BASELINE)
    base = runs_of_base[0].record.model if runs_of_base else {}
    rows = []
    for name in study.types:
        runs = study.runs_of(name)
        if not runs:
            continue
        shape, model = runs[0].record.config["model"], runs[0].record.model
        names = [run.name for run in runs]
        heads, kv_heads = shape.get("num_heads"), shape.get("num_kv_heads")
        sizes = [
            count(heads) + ("" if kv_heads in (None, heads) else f" / {count(kv_heads)} kv"),
            *(count(shape.get(key)) for key in ("head_dim", "intermediate_size")),
        ]
        cells = [number_cell(size, names) for size in sizes]
        for key, difference in (
            ("parameters", "parameter_difference"),
            ("train_flops_per_token", "flops_difference"),
        ):
            cells.append(number_cell(count(model.get(key)), names))
            change, note = MISSING, ""
            if name != BASELINE:
                change = count(model.get(difference), signed=True)
                note = percent(model.get(difference), base.get(key))
            cells.append(number_cell(change, names, note=note))
        rows.append([type_cell(name), *cells, word_cell(", ".join(brief_names(names)))])
    headers = ["Model", "Heads", "Head width", "FFN width", "Parameters", "Parameter difference"]
    headers += ["Train FLOPs per token", "FLOPs difference", "Runs"]
    return table("Compared models, with the difference to the Transformer.", headers, rows)


def cost_table(study: Study) -> Table:
    """Show speed and memory of every type: the median over its runs."""
    base = {key: median_cost(study.runs_of(BASELINE), key) for key in _COSTS}
    rows = []
    for name in study.types:
        runs = [run for run in study.runs_of(name) if run.costs]
        if not runs:
            continue
        middle = {key: median_cost(runs, key) for key in _COSTS}
        values = [
            count(middle[_SPEED]),
            ratio(middle[_SPEED], base[_SPEED]),
            mebibytes(middle["peak_bytes"]),
            ratio(middle["peak_bytes"], base["peak_bytes"]),
            f"{number(middle['seconds'], 1)} s",
        ]
        names = [run.name for run in runs]
        rows.append([type_cell(name), *(number_cell(value, names) for value in values)])
    headers = ["Model", "Tokens/s", "Speed ratio", "Peak memory", "Memory ratio", "Time"]
    caption = (
        "Median over runs, and its ratio to the Transformer's. Tokens per second of a step, and "
        "time of a whole run: processor time on a CPU, the clock's on a GPU."
    )
    return table(caption, headers, rows)


def median_cost(runs: list[StudyRun], key: str) -> float | None:
    """Median over runs of a cost in ``costs.json``, or of ``"seconds"``; ``None`` if unknown."""
    if key == "seconds":
        key = "cpu_seconds" if all(x.record.device == "cpu" for x in runs) else "wall_seconds"
    values = [run.costs[key] for run in runs if run.costs and is_number(run.costs.get(key))]
    return median(values) if values else None
