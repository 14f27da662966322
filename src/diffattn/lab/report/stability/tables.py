"""Tables of a stability study, for its page and, for a document, in Markdown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffattn.lab.report.page.runs import Study
from diffattn.lab.report.page.tables import (
    Cell,
    Table,
    head_cell,
    number_cell,
    per_run,
    table,
    type_cell,
    word_cell,
)
from diffattn.lab.report.page.wording import (
    BLIND,
    MISSING,
    markdown_table,
    number,
    p_value,
    span,
    type_name,
)
from diffattn.lab.report.stability.files import METRICS, read_stability_study

_EARLIER = "counted by earlier rules"


def measure_table(study: Study, metric: str) -> Table:
    """One measure: a row per type, a column per rate; mean, interval, and every run."""
    rows = []
    for name, of_type in _types(study).items():
        row = [type_cell(name)]
        for at in of_type["rates"]:
            summary = at[metric]
            note = _ends(summary)
            row.append(number_cell(number(summary["mean"], 3), at["runs"], note=note))
        rows.append(row)
    headers = ["Model", *(f"rate {rate:g}" for rate in study.info["learning_rates"])]
    what = {
        "loss": "nats per token, at most that of guessing all tokens alike; diverged runs count as "
        "that",
        "loss_spike_share": "share of the judged steps",
        "gradient_spike_share": "share of the judged steps",
        "clipped_share": "share of all steps",
    }[metric]
    return table(f"{METRICS[metric]}: {what}. Mean over seeds and its interval.", headers, rows)


def diverged_table(study: Study) -> Table:
    """Runs that diverged, and when."""
    rows = []
    for name, of_type in _types(study).items():
        row = [type_cell(name)]
        for at in of_type["rates"]:
            runs = zip(at["runs"], at["diverged"], at["diverged_steps"], strict=True)
            shown = [(run, _when(step)) for run, diverged, step in runs if diverged]
            total = f"{len(shown)} of {len(at['runs'])}"
            row.append(per_run([*([("", total)]), *shown]))
        rows.append(row)
    headers = ["Model", *(f"rate {rate:g}" for rate in study.info["learning_rates"])]
    return table("Diverged runs, and the step at which a number was not finite.", headers, rows)


def difference_table(study: Study, overall: bool, against_floor: bool = False) -> Table:
    """Paired differences with their p-values: means over rates, or at each; or to the models
    without attention."""
    rows = []
    for entry in _differences(study):
        if (entry["learning_rate"] is None) != overall:
            continue
        if (entry["baseline"] in BLIND) != against_floor:
            continue
        rows.append(
            [
                head_cell(f"{type_name(entry['type'])} − {type_name(entry['baseline'])}"),
                word_cell(METRICS.get(entry["metric"], entry["metric"])),
                _rates_cell(entry),
                number_cell(number(entry["mean"], 4, signed=True)),
                number_cell(_ends(entry, signed=True)),
                number_cell(p_value(entry["p_value"])),
                number_cell(p_value(entry["p_holm"])),
                word_cell(entry.get("why", _EARLIER)),
            ]
        )
    headers = ["Models", "Measure", "Rates" if overall else "Rate", "Difference", "95 % interval"]
    rows_of = "" if overall or against_floor else " of one measure"
    caption = (
        f"Paired by seed; {_reading(study) if against_floor else 'below 0 is more stable'}. p: "
        f"Student's t test. Holm: adjusted for all rows of this table{rows_of}, those that say "
        "nothing counting with 1."
    )
    return table(caption, [*headers, "p", "p, Holm", "Remark"], rows)


def _rates_cell(entry: dict[str, Any]) -> Cell:
    """The rate of a difference, or those that its means are over."""
    if entry["learning_rate"] is not None:
        return number_cell(f"{entry['learning_rate']:g}")
    return word_cell(", ".join(f"{rate:g}" for rate in entry.get("rates", ())) or MISSING)


def _reading(study: Study) -> str:
    """How a difference to models without attention is read."""
    assert study.results is not None
    margin = study.results["verdict"].get("margin")
    if margin is None:  # of a version that had none
        return "below 0 is better than no attention"
    return (
        f"a model whose whole intervals lie {margin:g} nats or more below 0 uses its context at "
        "this rate"
    )


def stability_markdown(folder: Path) -> str:
    """Results of a stability study as a Markdown table: means over rates, per type.

    Args:
        folder: Study folder.

    Returns:
        One row per type and rate, ending in a newline.

    Raises:
        CheckpointError: A file of the study is damaged or foreign.
    """
    study = read_stability_study(folder)
    headers = ["Model", "Learning rate", "Diverged", *list(METRICS.values())[:4]]
    rows = []
    for name, of_type in _types(study).items():
        for at in of_type["rates"]:
            cells = [
                type_name(name),
                f"{at['learning_rate']:g}",
                f"{sum(at['diverged'])} of {len(at['runs'])}",
                *(_with_ends(at[metric]) for metric in list(METRICS)[:4]),
            ]
            rows.append(cells)
    return markdown_table(headers, rows, numeric=range(1, 7)) + "\n"


def _types(study: Study) -> dict[str, Any]:
    return (study.results or {}).get("types", {})


def _differences(study: Study) -> Sequence[dict[str, Any]]:
    return (study.results or {}).get("differences", [])


def _when(step: int | None) -> str:
    return "no better than a guess" if step is None else f"at step {step:,}"


def _ends(entry: dict[str, Any], *, signed: bool = False) -> str:
    return span(entry["low"], entry["high"], 3, signed=signed, none="one seed")


def _with_ends(entry: dict[str, Any]) -> str:
    text = number(entry["mean"], 3)
    return text if entry["low"] is None else f"{text} ({_ends(entry)})"
