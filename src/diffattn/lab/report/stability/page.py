"""What the page of a stability study shows, as plain values."""

import math
from dataclasses import replace
from typing import Any

from diffattn.lab.report.page.charts import Chart, interval_bars, layout, line, names_of
from diffattn.lab.report.page.provenance import provenance, statement
from diffattn.lab.report.page.run_tables import cost_table, models_table
from diffattn.lab.report.page.runs import Study
from diffattn.lab.report.page.tables import Table
from diffattn.lab.report.page.wording import count, listing, number, plural, type_name
from diffattn.lab.report.stability.files import METRICS
from diffattn.lab.report.stability.tables import difference_table, diverged_table, measure_table

CHAPTERS = {
    "models": "Models",
    "results": "Results",
    "differences": "Differences",
    "costs": "Speed and memory",
    "benchmarks": "Benchmarks",
    "provenance": "Provenance",
}
_OVER_RATES = [metric for metric in METRICS if metric != "sensitivity"]


def stability_page(study: Study) -> dict[str, Any]:
    """Every section of the page, as the template names them.

    Args:
        study: From :func:`diffattn.lab.report.stability.files.read_stability_study`.
    """
    info, train = study.info, study.info["config"]["train"]
    names = listing(type_name(name) for name in study.types)
    rates = info["learning_rates"]
    lead = (
        f"Compared: language models that are alike but for their attention ({names}), each "
        f"trained for {count(train.get('num_steps'))} steps of {count(train.get('batch_tokens'))} "
        f"tokens at {plural(len(rates), 'learning rate')} from {min(rates):g} to {max(rates):g}, "
        f"with {plural(len(info['seeds']), 'seed')}."
    )
    return {
        "verdict": None if study.results is None else study.results["verdict"]["sentence"],
        "lead": lead,
        "statement": statement(study),
        "gaps": study.gaps,
        "models": models_table(_one_per_type(study)),
        "definition": None if study.results is None else _definition(study.results["definition"]),
        "measures": [
            (over_rates(study, metric, f"chart-{metric}"), measure_table(study, metric))
            for metric in _OVER_RATES
            if study.results is not None
        ],
        "diverged": None if study.results is None else diverged_table(study),
        "differences": _differences(study),
        "costs": cost_table(study),
        "provenance": provenance(study),
    }


def over_rates(study: Study, metric: str, element_id: str) -> Chart:
    """A measure over the learning rate, one line per type, with intervals."""
    assert study.results is not None
    traces, used = [], []
    for name, of_type in study.results["types"].items():
        at = of_type["rates"]
        trace = line(
            [(entry["learning_rate"], entry[metric]["mean"]) for entry in at], name, "mean of seeds"
        )
        trace["mode"] = "lines+markers"
        trace["hovertemplate"] = [type_name(name), "rate %{x}: %{y:.4f}"]
        bounds = [(e[metric]["mean"], e[metric]["low"], e[metric]["high"]) for e in at]
        trace["error_y"] = interval_bars(bounds) | {"thickness": 1, "width": 4}
        traces.append(trace)
        used += [run for entry in at for run in entry["runs"]]
    ticks = study.info["learning_rates"]
    axis = {"type": "log", "tickvals": ticks, "ticktext": [f"{rate:g}" for rate in ticks]}
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("learning rate", METRICS[metric].lower(), xaxis=axis),
        caption=f"{METRICS[metric]} over the learning rate: mean over seeds and its interval.",
        runs=names_of(_by_type(used)),
        height=380,
        label=f"{METRICS[metric]} over the learning rate, one line per attention type",
    )


def _differences(study: Study) -> list[Table]:
    if study.results is None:
        return []
    to_nothing = difference_table(study, overall=False, against_floor=True)
    between = [difference_table(study, overall) for overall in (True, False)]
    return [*between, to_nothing] if to_nothing.rows else between


def _one_per_type(study: Study) -> Study:
    """With the first run of every type: its model is that of all."""
    runs = [study.runs_of(name)[:1] for name in study.types]
    return replace(study, runs=tuple(run for first in runs for run in first))


def _by_type(runs: list[str]) -> list[str]:
    """Runs of a type as one name: there are too many to list."""
    types = list(dict.fromkeys(run.split("-lr")[0] for run in runs))
    return [f"{name}-lr…-seed…" for name in types]


def _definition(of: dict[str, Any]) -> str:
    return (
        f"A spike of the loss is a step whose training loss exceeds the median of the "
        f"{of['window']} steps before by more than {number(of['deviations'], 0)} robust standard "
        f"deviations and by more than {of['least_loss']:g} nats; one of the gradient by the same "
        f"rule for the logarithm of its norm before clipping, and by more than a factor of "
        f"{math.exp(of['least_log_gradient']):g}. The first {of['window']} steps are not judged. A "
        "run diverges if a number is not finite, or if its final loss is no better than guessing "
        "all tokens alike; steps that it did not make count as spikes and as clipped. Sensitivity "
        "to the rate is the mean loss over the rates minus the best (arXiv:2309.14322, there over "
        "rates evenly spaced in logarithm)."
    )
