"""Tables of a study of models on text, for its page and, for a README, in Markdown."""

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from diffattn.report.page.run_tables import first_model
from diffattn.report.page.runs import BASELINE, Study, StudyRun, finite_numbers
from diffattn.report.page.tables import (
    Cell,
    Table,
    head_cell,
    number_cell,
    per_run,
    run_cell,
    table,
    type_cell,
    word_cell,
)
from diffattn.report.page.wording import (
    MISSING,
    count,
    ends,
    listing,
    markdown_row,
    number,
    type_name,
    verdict,
)
from diffattn.report.study.files import read_study
from diffattn.report.study.summary import Difference, TypeResult, bits_per_byte, differences, losses


def loss_table(study: Study) -> Table:
    """Validation loss and bits per byte of every type, with intervals and single runs."""
    by_type, bytewise = losses(study), bits_per_byte(study)
    rows = []
    for name in study.types:
        if name not in by_type:
            rows.append(
                [type_cell(name), *[number_cell(MISSING)] * 4, word_cell("no finished run")]
            )
            continue
        row = [type_cell(name), *_mean_cells(by_type[name])]
        if name in bytewise:
            row += _mean_cells(bytewise[name])
        else:
            row += [number_cell(MISSING), number_cell(MISSING)]
        pairs = zip(by_type[name].runs, by_type[name].values, strict=True)
        row.append(per_run((run, number(value)) for run, value in pairs))
        rows.append(row)
    level = _level(result.interval.level for result in by_type.values())
    headers = ["Model", "Loss", level, "Bits per byte", level, "Each run"]
    caption = "Final validation loss in nats per token, mean over seeds. Lower is better."
    return table(caption, headers, rows)


def difference_table(study: Study) -> Table:
    """Paired differences to the baseline and what they show, in words."""
    every = differences(study)
    rows = [[type_cell(d.attention_type), *_difference_cells(d)] for d in every]
    compared = {difference.attention_type for difference in every}
    for name in study.differential_types:
        if name not in compared:
            blank = [number_cell(MISSING)] * 3
            rows.append([type_cell(name), *blank, word_cell("no finished pair")])
    headers = ["Model", *_difference_headers(every)]
    baselines = listing(dict.fromkeys(type_name(d.baseline) for d in every)) or "the baseline"
    return table(f"Difference to the {baselines}, paired by seed.", headers, rows)


def side_by_side_table(study: Study, published: Study) -> Table:
    """Differences of two studies of one protocol version, next to each other."""
    both = [
        (difference, where)
        for source, where in ((study, "this study"), (published, "published"))
        for difference in differences(source)
    ]
    order = list(dict.fromkeys(study.types + published.types))
    both.sort(key=lambda pair: [pair[0].attention_type == name for name in order], reverse=True)
    rows = [
        [type_cell(difference.attention_type), word_cell(where), *_difference_cells(difference)]
        for difference, where in both
    ]
    headers = ["Model", "Study", *_difference_headers([difference for difference, _ in both])]
    caption = "Difference in validation loss to the Transformer, in both studies."
    return table(caption, headers, rows)


def _difference_headers(every: Iterable[Difference]) -> list[str]:
    level = _level(difference.interval.level for difference in every)
    return ["Difference", level, "Verdict", "Each pair"]


def _difference_cells(difference: Difference) -> list[Cell]:
    names = [run for pair in difference.runs for run in pair]
    pairs = zip(difference.runs, difference.values, strict=True)
    return [
        number_cell(number(difference.interval.mean, signed=True), names),
        number_cell(ends(difference.interval, signed=True), names),
        word_cell(verdict(difference.interval)),
        per_run((f"{a} − {b}", number(value, signed=True)) for (a, b), value in pairs),
    ]


def lambda_table(study: Study) -> Table | None:
    """λ of every layer at the end of training; ``None`` if no run recorded any."""
    columns = {}
    for name in study.differential_types:
        runs = [run for run in study.runs_of(name) if _lam(run)]
        if runs:
            columns[name] = runs
    if not columns:
        return None
    layers = max(len(_lam(run)) for runs in columns.values() for run in runs)
    rows = []
    for layer in range(layers):
        row = [head_cell(f"layer {layer}")]
        for runs in columns.values():
            values = [_lam(run)[layer] for run in runs if layer < len(_lam(run))]
            text, spread = number(fmean(values), 3) if values else MISSING, ""
            if len(values) > 1:
                spread = f"{number(min(values), 3)} to {number(max(values), 3)}"
            row.append(number_cell(text, [run.name for run in runs], note=spread))
        rows.append(row)
    used = [run_cell([run.name for run in runs]) for runs in columns.values()]
    rows.append([head_cell("runs"), *used])
    caption = "λ at the end of training: mean over seeds, and the range of single runs."
    if "diff_v2" in columns:
        caption += f" For {type_name('diff_v2')} the mean of σ(λ) over tokens and heads."
    return table(caption, ["", *map(type_name, columns)], rows)


def study_markdown(folder: Path) -> str:
    """Results of a study as a Markdown table that names its runs.

    Args:
        folder: Study folder.

    Returns:
        One row per attention type, ending in a newline.

    Raises:
        CheckpointError: A file of the study is damaged or foreign.
    """
    study = read_study(folder)
    by_type = losses(study)
    to_baseline = {d.attention_type: d for d in differences(study)}
    level = _level(result.interval.level for result in by_type.values())
    lines = [
        f"| Model | Parameters | Validation loss | {level} | To the Transformer | {level} "
        "| Verdict | Runs |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for name in study.types:
        cells = [type_name(name), count(first_model(study, name).get("parameters"))]
        if name in by_type:
            interval = by_type[name].interval
            cells += [number(interval.mean), ends(interval)]
        else:
            cells += [MISSING, MISSING]
        cells += _markdown_difference(to_baseline.get(name), name)
        cells.append(", ".join(by_type[name].runs) if name in by_type else "no finished run")
        lines.append(markdown_row(cells))
    return "\n".join(lines) + "\n"


def _markdown_difference(difference: Difference | None, name: str) -> list[str]:
    if difference is None:
        return [MISSING, MISSING, "baseline" if name == BASELINE else MISSING]
    interval = difference.interval
    return [number(interval.mean, signed=True), ends(interval, signed=True), verdict(interval)]


def _mean_cells(result: TypeResult) -> list[Cell]:
    return [
        number_cell(number(result.interval.mean), result.runs),
        number_cell(ends(result.interval), result.runs),
    ]


def _level(levels: Iterable[float]) -> str:
    """Header of an interval column."""
    return f"{listing(f'{100 * x:g} %' for x in sorted(set(levels))) or '95 %'} interval"


def _lam(run: StudyRun) -> list[float]:
    return finite_numbers(run.result("lam"))
