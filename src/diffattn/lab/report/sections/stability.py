"""The page of a stability study: spikes, clipping and divergence over the learning rate."""

import math
from functools import partial
from pathlib import Path
from typing import Any

from diffattn.lab.catalog.models import NEVER_ATTEND
from diffattn.lab.report.page.charts import Chart, interval_line, layout, runs_sentence
from diffattn.lab.report.page.elements import Document, Element, Fold, Section, Text
from diffattn.lab.report.page.runs import Study, read_study_of_runs
from diffattn.lab.report.page.study_page import study_document
from diffattn.lab.report.page.tables import (
    Table,
    mean_cell,
    number_cell,
    record_table,
    table,
    type_cell,
    word_cell,
)
from diffattn.lab.report.page.wording import (
    MISSING,
    count,
    ends,
    listing,
    number,
    p_value,
    plural,
    type_name,
)

_mean_cell = partial(mean_cell, digits=3, none="one seed")
METRICS = {
    "loss": "Final validation loss",
    "loss_spike_share": "Loss spikes",
    "gradient_spike_share": "Gradient spikes",
    "clipped_share": "Clipped steps",
    "sensitivity": "Sensitivity to the rate",
}
"""Measure in ``results.json`` -> its name. The last measure spans all rates."""


def read_stability_study(folder: Path) -> Study:
    """Read the records of a stability study."""
    return read_study_of_runs(
        folder,
        lambda info, *_: [
            f"{name}-lr{rate:g}-seed{seed}"
            for name in info["types"]
            for rate in info["learning_rates"]
            for seed in info["seeds"]
        ],
    )


def stability_document(study: Study) -> Document:
    """Assemble the page."""
    info, train, results = study.info, study.info["config"]["train"], study.results
    names = listing(type_name(name) for name in study.types)
    rates = info["learning_rates"]
    lead = (
        f"Compared: language models that are alike but for their attention ({names}), each "
        f"trained for {count(train.get('num_steps'))} steps of {count(train.get('batch_tokens'))} "
        f"tokens at {plural(len(rates), 'learning rate')} from {min(rates):g} to {max(rates):g}, "
        f"with {plural(len(info['seeds']), 'seed')}."
    )
    document = partial(study_document, study, lead, models=study)
    if results is None:
        return document()
    rule = results["definition"]
    definition = Text(
        f"A spike of the loss is a step whose training loss exceeds the median of the "
        f"{rule['window']} steps before by more than {number(rule['deviations'], 0)} robust "
        f"standard deviations and by more than {rule['least_loss']:g} nats. A spike of the "
        "gradient follows the same rule for the logarithm of its norm before clipping, with a "
        f"factor of at least {math.exp(rule['least_log_gradient']):g}. The first {rule['window']} "
        "steps are not judged. A run diverges if a number is not finite, or if its final loss is "
        "no better than guessing all tokens alike. Steps that it did not make count as spikes and "
        "as clipped. Sensitivity to the rate is the mean loss over the rates minus the best "
        "(arXiv:2309.14322, there over rates evenly spaced in logarithm)."
    )
    *at_a_rate, _ = METRICS
    rows = [
        {
            "Model": type_cell(name),
            "Learning rate": number_cell(f"{at['learning_rate']:g}"),
            "Diverged": number_cell(f"{sum(at['diverged'])} of {len(at['runs'])}"),
            **{METRICS[metric]: _mean_cell(at[metric], runs=at["runs"]) for metric in at_a_rate},
        }
        for name, entry in results["types"].items()
        for at in entry["rates"]
    ]
    caption = (
        "Means over seeds and their intervals. Losses in nats per token, at most that of guessing "
        "all tokens alike, as which diverged runs count; all others are shares of steps."
    )
    summary = record_table(caption, rows)
    charts = [over_rates(study, metric, f"chart-{metric}") for metric in at_a_rate]
    sections = [
        Section("results", "Results", [definition, *charts, summary]),
        Section("differences", "Differences", _differences(results)),
    ]
    verdict = Text(results["verdict"]["sentence"], "verdict")
    return document(sections, verdict=verdict, summary=summary)


def over_rates(study: Study, metric: str, element_id: str) -> Chart:
    """Draw a measure over the learning rate, one line per type, with intervals."""
    types, ticks = study.recorded["types"], study.info["learning_rates"]
    traces = [
        interval_line([(x["learning_rate"], x[metric]) for x in entry["rates"]], name, "rate %{x}")
        for name, entry in types.items()
    ]
    axis = {"type": "log", "tickvals": ticks, "ticktext": [f"{rate:g}" for rate in ticks]}
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("learning rate", METRICS[metric].lower(), xaxis=axis),
        caption=f"{METRICS[metric]} over the learning rate: mean over seeds and its interval.",
        runs=runs_sentence([f"{name}-lr…-seed…" for name in types]),
    )


def _differences(results: dict[str, Any]) -> list[Element]:
    differences = results["differences"]
    to_nothing = [entry for entry in differences if entry["baseline"] in NEVER_ATTEND]
    others = [entry for entry in differences if entry not in to_nothing]
    overall = [entry for entry in others if entry["learning_rate"] is None]
    at_each = [entry for entry in others if entry["learning_rate"] is not None]
    uses_context = (
        f"a model whose whole intervals lie {results['verdict']['margin']:g} nats or more below 0 "
        "uses its context at this rate"
    )
    stable = "below 0 is more stable"
    every_rate = [
        _difference_table(at_each, stable, " of one measure"),
        _difference_table(to_nothing, uses_context, ""),
    ]
    return [_difference_table(overall, stable, ""), Fold("At every rate", every_rate)]


def _difference_table(entries: list[dict[str, Any]], reading: str, family: str) -> Table:
    rows = [
        [
            f"{type_name(entry['type'])} − {type_name(entry['baseline'])}",
            word_cell(METRICS.get(entry["metric"], entry["metric"])),
            number_cell(f"{entry['learning_rate']:g}")
            if entry["learning_rate"] is not None
            else word_cell(", ".join(f"{rate:g}" for rate in entry.get("rates", ())) or MISSING),
            number_cell(number(entry["mean"], signed=True)),
            number_cell(ends(entry, 3, signed=True, none="one seed")),
            number_cell(p_value(entry["p_value"])),
            number_cell(p_value(entry["p_holm"])),
            word_cell(entry["why"]),
        ]
        for entry in entries
    ]
    headers = ["Models", "Measure", "Rates", "Difference", "95 % interval", "p", "p, Holm"]
    caption = (
        f"Paired by seed; {reading}. p: Student's t test. Holm: adjusted for all rows of this "
        f"table{family}, those that say nothing counting with 1."
    )
    return table(caption, [*headers, "Remark"], rows)
