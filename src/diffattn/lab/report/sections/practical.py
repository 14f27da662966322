"""The page of a practical study: a figure or table per claim of the paper."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from diffattn.lab.catalog.models import BASELINE, NEVER_ATTEND
from diffattn.lab.catalog.recipes.practical import PRIMARY
from diffattn.lab.report.page.charts import (
    Chart,
    interval_line,
    layout,
    line,
    model_colors,
    runs_sentence,
)
from diffattn.lab.report.page.elements import Bullets, Document, Element, Section
from diffattn.lab.report.page.runs import Study, read_study_of_runs
from diffattn.lab.report.page.study_page import study_document
from diffattn.lab.report.page.tables import (
    Table,
    mean_cell,
    number_cell,
    table,
    type_cell,
    word_cell,
)
from diffattn.lab.report.page.wording import ends, listing, number, p_value, plural, type_name
from diffattn.lab.report.sections.recall import runs_of_recall

_ends = partial(ends, digits=3, none="one seed")
_mean_cell = partial(mean_cell, digits=3, none="one seed")
COUNTED = {name: title for measures in PRIMARY.values() for name, title in measures.items()}
_GROUPS = {
    "answer": "Answer",
    "pairs": "Other pairs",
    "noise": "Noise",
    "bos": "BOS",
    "queries": "Questions",
}
_QUESTIONS = {
    "needles": "Does it find more keys?",
    "attention": "Does attention lie on the answer?",
    "quantised": "Does it need fewer bits?",
    "hallucination": "Does it answer what the context does not support?",
    "many-shot": "Does it learn from more examples?",
    "order": "Does the order of examples matter?",
}


def read_practical_study(folder: Path) -> Study:
    """Read the records of a practical study: its trials first and then its sweep."""
    return read_study_of_runs(folder, runs_of_recall)


def practical_document(study: Study) -> Document:
    """Assemble the page."""
    info, results = study.info, study.results
    names = listing(type_name(name) for name in (*info["types"], *info["controls"]))
    lead = (
        f"Compared: small models that are alike but for their attention ({names}), each trained "
        f"from scratch on two tasks, with {plural(len(info['seeds']), 'seed')}. Lookup: pairs of "
        "a key and a value among noise, then questions for keys, an eighth of which are not there. "
        "Many-shot classification: items and labels in turn; labels are new in every sequence, "
        "and in half of the sequences a fifth of them is wrong."
    )
    trials = replace(study, runs=tuple(run for run in study.runs if "-lr" not in run.name))
    document = partial(study_document, study, lead, models=trials)
    if results is None:
        return document()
    verdict, summary = Bullets(_sentences(results), role="verdict"), _difference_table(results)
    sections = [
        Section("differences", "What differs from softmax attention?", [summary]),
        *(Section(key, _QUESTIONS[key], x) for key, x in practical_answers(study).items()),
    ]
    return document(sections, verdict=verdict, summary=summary)


def _sentences(results: dict[str, Any]) -> list[str]:
    items = []
    for measure, entries, models in _by_measure(results):
        differences = "; ".join(
            f"{type_name(x['type'])} {number(x['mean'], 3, signed=True)}"
            + (f" ({_ends(x, signed=True)})" if x["low"] is not None else "")
            + ("" if models[x["type"]]["learned"] else ", which has not learned the task")
            for x in entries
            if x["type"] not in NEVER_ATTEND
        )
        reliable = [
            type_name(x["type"]) for x in entries if x["p_holm"] is not None and x["p_holm"] < 0.05
        ]
        verdict = f"Reliable: {listing(reliable)}." if reliable else "No difference is reliable."
        mean = number(models[BASELINE]["measures"][measure]["mean"], 3)
        items.append(
            f"{COUNTED[measure]}: softmax attention {mean}; differences to it: {differences}. "
            f"{verdict}"
        )
    return items


def _by_measure(results: dict[str, Any]) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Every deciding measure, its differences, and the models of its task."""
    for task in results["tasks"].values():
        for measure in dict.fromkeys(x["measure"] for x in task["differences"]):
            entries = [x for x in task["differences"] if x["measure"] == measure]
            yield measure, entries, task["members"]


def practical_answers(study: Study) -> dict[str, list[Element]]:
    """Result of the paper (its id) -> charts and tables of a finished study."""
    by_length = _points(study, "lookup", "found_6_x")
    times = {1: "the trained length", 2: "twice", 4: "four times"}
    pairs, invented = (
        [(f"{p} of {times[x]}", f"{kind}_{p}_x{x}") for x, _ in by_length for p in counts]
        for kind, counts in (("found", (1, 2, 4, 6)), ("unsupported", (4, 6)))
    )
    groups = [(name, f"attention_size_{group}") for group, name in _GROUPS.items()]
    first_map = [(f"{_GROUPS[x]}, A1", f"attention_map_1_{x}") for x in ("answer", "noise", "bos")]
    orders = [("Best less worst accuracy", "order_range"), ("Changed", "order_changes")]
    lengths = ("lookup", "Six pairs over the length of the context", "times trained")
    bits = ("lookup", "Keys found by bits of the attention logits", "bits")
    shots = ("many_shot", "Accuracy over examples; one label in five is wrong", "examples")
    size = (
        "Share of the last layer's attention by absolute weight, mean over heads and questions; in "
        "the last columns of the first map alone."
    )
    by_order = "16 examples in eight orders. A reader that counts labels has 0 in both columns."
    answered = "Share of absent keys answered: pairs of context."
    return {
        "needles": [
            _chart(study, lengths, by_length),
            _table(study, "lookup", "Share of keys found: pairs of context.", pairs),
        ],
        "attention": [_table(study, "lookup", size, [*groups, *first_map])],
        "quantised": [_chart(study, bits, _points(study, "lookup", "bits_"))],
        "hallucination": [_table(study, "lookup", answered, invented)],
        "many-shot": [_chart(study, shots, _points(study, "many_shot", "shots_"))],
        "order": [_table(study, "many_shot", by_order, [*orders, ("After 23", "shots_23")])],
    }


def _points(study: Study, task: str, prefix: str) -> list[tuple[int, str]]:
    """Pairs of a number and a measure's name: the name is ``prefix`` and the number."""
    names = next(iter(_measures(study, task).values()), {})
    return sorted((int(x.removeprefix(prefix)), x) for x in names if x.startswith(prefix))


def _measures(study: Study, task: str) -> Mapping[str, Mapping[str, Any]]:
    """Model -> its measures. A model with a diverged run is left out."""
    models = study.recorded["tasks"][task]["members"]
    return {name: x["measures"] for name, x in models.items() if x["measures"]}


def _table(study: Study, task: str, caption: str, columns: Sequence[tuple[str, str]]) -> Table:
    models = study.recorded["tasks"][task]["members"]
    rows = []
    for name, values in _measures(study, task).items():
        runs = models[name]["runs"]
        rows.append([type_cell(name), *(_mean_cell(values[x], runs=runs) for _, x in columns)])
    headers = ["Model", *(header for header, _ in columns)]
    return table(f"{caption} Mean over seeds and its interval.", headers, rows)


def _chart(study: Study, titles: tuple[str, str, str], points: Sequence[tuple[int, str]]) -> Chart:
    """One line per model with intervals; ``titles`` are task, caption and the x axis."""
    task, caption, x_title = titles
    measures = _measures(study, task)
    colors = model_colors({name: name for name in measures})
    traces = [
        interval_line(
            [(x, values[key]) for x, key in points], name, f"{x_title} %{{x}}", color=colors[name]
        )
        for name, values in measures.items()
    ]
    best = study.recorded["tasks"][task]["best"]
    if known := [(x, best[key]) for x, key in points if key in best]:
        reference = line(known, "the best possible", "", dotted=True, color="#222222")
        traces.append(reference | {"showlegend": True})
    ticks = [x for x, _ in points]
    axis = {"tickvals": ticks, "ticktext": list(map(str, ticks))}
    axis |= {} if 0 in ticks else {"type": "log"}
    return Chart(
        element_id=f"chart-{points[0][1].partition('_')[0]}",
        traces=traces,
        look=layout(x_title, "share", xaxis=axis),
        caption=f"{caption}: mean over seeds and its interval.",
        runs=runs_sentence([f"{task}-{name}-seed…" for name in measures]),
    )


def _difference_table(results: dict[str, Any]) -> Table:
    rows = []
    for measure, entries, models in _by_measure(results):
        for x in entries:
            softmax, model = (models[y]["measures"][measure] for y in (BASELINE, x["type"]))
            texts = [number(x["mean"], 3, signed=True), _ends(x, signed=True)]
            texts += [p_value(x["p_value"]), p_value(x["p_holm"])]
            cells = [type_cell(x["type"]), word_cell(COUNTED[measure])]
            cells += [_mean_cell(softmax), _mean_cell(model), *map(number_cell, texts)]
            rows.append(cells)
    headers = ["Model", "Measure", "Softmax", "Model", "Difference", "95 % interval"]
    caption = (
        "Measures that count, paired by seed. p: Student's t test of the types; Holm: adjusted for "
        "all of them. Controls are estimates."
    )
    return table(caption, [*headers, "p", "p, Holm"], rows)
