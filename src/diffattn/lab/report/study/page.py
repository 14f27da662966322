"""The page of a study of models on text: one section per question."""

from dataclasses import replace
from typing import Any

from diffattn.lab.catalog.models import TYPES
from diffattn.lab.report.page.committed import claims_section
from diffattn.lab.report.page.elements import (
    Bullets,
    Document,
    Element,
    Equation,
    Fold,
    Pair,
    Section,
    Terms,
    Text,
)
from diffattn.lab.report.page.maps import attention_maps
from diffattn.lab.report.page.provenance import provenance, statement
from diffattn.lab.report.page.run_tables import cost_table, models_table
from diffattn.lab.report.page.tables import Table, table_markdown
from diffattn.lab.report.page.wording import count, listing, number, one_line, plural, type_name
from diffattn.lab.report.study import charts, details, tables
from diffattn.lab.report.study.beside import committed_text, sentence_beside_counts
from diffattn.lab.report.study.files import ROW_KINDS, TextStudy
from diffattn.lab.report.study.summary import (
    COMPARED,
    PART_MEANINGS,
    PARTS,
    QUARTERS,
    role_of,
    shown_in_charts,
    training_budget,
    variants_of,
)

_TYPE_SUMMARIES = {
    "softmax": "one attention map per head: the baseline.",
    "diff": "two maps per head and one learned λ per layer; the head's output is normalised "
    "and scaled by 1 − λ_init.",
    "diff_v2": "two maps per head that share their keys; λ is a sigmoid, computed from every "
    "token for every head; no norm on heads.",
    "shared_diff": "as DIFF V1, but the two maps share one base projection and differ by "
    "low-rank updates.",
}
_SOURCES = {
    "stdlib": "Python {} standard-library source code",
    "python": "Python {} standard-library source code and documentation",
    "packages": "Python {}, files of installed packages",
}
_MATCHES = {
    "params": "the same number of parameters",
    "heads": "the same heads",
    "attention_flops": "the same attention FLOPs",
}
_INTERVALS = (
    "Intervals are Student's t over seeds, at {}. They cover the chance of a seed, not other data "
    "or sizes, and are not adjusted for making several comparisons. With few seeds they are wide."
)
_TIMES = (
    "Times depend on the machine and on its other load. They describe these runs of this "
    "implementation, not the methods."
)
_HEADS = (
    "A differential head holds two maps. DIFF V1 and Shared DIFF have a value twice as wide as the "
    "head, and half as many heads as their Transformer twin."
)
_METHOD = (
    "Where the Transformer has one attention map per head, differential attention has two and "
    "subtracts the second, weighted by λ, from the first:"
)


def text_document(study: TextStudy, claims: Table | None = None) -> Document:
    """Assemble the page."""
    kind = ROW_KINDS.get(study.info.get("kind", "text"), "study")
    sections = [
        Section("results", "Is the loss lower?", _results(study)),
        Section("parts", "Where does the difference lie?", _parts(study)),
        Section("maps", "What do the maps do?", _maps(study)),
        Section("costs", "What does it cost?", _costs(study)),
        Section("committed", "What does the longer study say?", _committed(study)),
        claims_section(claims),
        Section("provenance", "Where do the numbers come from?", provenance(study)),
    ]
    return Document(
        title=f"Differential attention: {kind} “{study.info.get('scale')}”",
        lead=_lead(study),
        sections=[section for section in sections if section.content],
    )


def text_markdown(study: TextStudy) -> str:
    """The verdict and the tables of results in Markdown."""
    recorded = study.recorded.get("verdict") or {}
    lines = [one_line(recorded["sentence"])] if recorded else []
    if recorded.get("details"):
        lines.append("\n".join(f"- {one_line(detail)}" for detail in recorded["details"]))
    every = [
        tables.results_table(study),
        tables.endpoints_table(study),
        *tables.other_tables(study),
        tables.rows_table(study),
    ]
    lines += [table_markdown(values).rstrip("\n") for values in every if values is not None]
    return "\n\n".join(lines) + "\n"


def _lead(study: TextStudy) -> list[Element]:
    """The first screen: one sentence, one figure, one table."""
    recorded = study.recorded.get("verdict")
    if not recorded:
        sentence = Text("There is no verdict yet: the study has not finished.", "verdict")
    else:
        role: Any = "verdict" if recorded["informative"] else "verdict uninformative"
        sentence = Text(sentence_beside_counts(study) or recorded["sentence"], role)
    figure = charts.difference_chart(study, "chart-differences")
    answer = [element for element in (figure, tables.results_table(study)) if element is not None]
    return _without_empty(
        sentence,
        Pair(answer, "answer") if answer else None,
        Bullets(study.gaps, "What is missing", "gap"),
    )


def _results(study: TextStudy) -> list[Element]:
    recorded = study.recorded.get("verdict") or {}
    controls = [
        tables.endpoints_table(study),
        *tables.other_tables(study),
        tables.rows_table(study),
        tables.matching_table(study),
    ]
    others = [values for values in controls if values is not None]
    level = tables.level_of(study)
    how: list[Element | None] = [
        Text(_comparison(study)),
        Text(statement(study)),
        tables.results_table(study, "common"),
        Text(_INTERVALS.format(level)) if level else None,
        details.runs_table(study) if study.results else None,
    ]
    return _without_empty(
        Bullets([*recorded.get("details", ()), *recorded.get("reasons", ())]),
        charts.loss_chart(study, "chart-loss"),
        Fold("Controls, ablations and tests", others) if others else None,
        Fold("How the learning rates were chosen", rates) if (rates := _rates(study)) else None,
        Fold("How we know", _without_empty(*how)),
    )


def _rates(study: TextStudy) -> list[Element]:
    swept = details.swept_rates(study)
    if not swept:
        return []
    recorded = study.recorded["rates"]
    where = []
    if recorded.get("sweep_seed") is not None:
        where.append(f"seed {recorded['sweep_seed']}")
    if recorded.get("sweep_steps") is not None:
        where.append(f"{count(recorded['sweep_steps'])} steps")
    brackets = f" ({', '.join(where)})" if where else ""
    again = any(entry.get("whole") for entry in swept.values())
    edge = [type_name(name) for name, entry in swept.items() if entry.get("inside") is False]
    return _without_empty(
        Text(
            f"Each of these models was first trained at several rates{brackets}. "
            + ("The best of them were trained again with all steps. " if again else "")
            + "The rate with the lowest validation loss was taken. The other variants use the rate "
            "of the model that they are compared with."
        ),
        Text(
            f"The chosen rate of {listing(edge)} lies at the edge of what was tried: a better one "
            "may lie outside.",
            "gap",
        )
        if edge
        else None,
        charts.rates_chart(study, "chart-rates"),
        details.rates_table(study),
    )


def _parts(study: TextStudy) -> list[Element]:
    shown = shown_in_charts(study)
    others = [name for name in study.variants if name not in shown]
    by_part = details.parts_table(
        study, shown, PARTS, f"By what the window held. {details.part_shares(study)}"
    )
    copying = charts.loss_chart(study, "chart-copying", "repeated_bigram")
    if by_part is None and copying is None:
        return []
    quarters = "By position in the window, from its first quarter to its last."
    how = _without_empty(
        Terms({PARTS[part]: meaning for part, meaning in PART_MEANINGS.items()}),
        details.parts_table(study, shown, QUARTERS, quarters),
        details.parts_table(
            study, others, PARTS | QUARTERS, "Controls, ablations and other matches."
        ),
    )
    phase = details.phase_table(_restricted_to(study, shown))
    how = _without_empty(*how, details.phase_table(_restricted_to(study, others)))
    return _without_empty(by_part, copying, phase, Fold("How we know", how))


def _maps(study: TextStudy) -> list[Element]:
    types = [name for name in study.variants if role_of(study, name) == "type"]
    lambdas = [charts.lambda_chart(study, name, f"chart-lambda-{name}") for name in types]
    trained = _without_empty(Pair(lambdas) if lambdas else None, details.lambda_table(study))
    summaries = {type_name(name): _TYPE_SUMMARIES[name] for name in study.variants if name in TYPES}
    method: list[Element] = [Text(_METHOD), Equation(), Terms(summaries), Text(_HEADS)]
    return _without_empty(*method, *attention_maps(study, "map-"), Fold("λ over training", trained))


def _costs(study: TextStudy) -> list[Element]:
    return _without_empty(
        cost_table(_restricted_to(study, shown_in_charts(study))),
        Fold("How we know", [models_table(study), cost_table(study), Text(_TIMES)]),
    )


def _committed(study: TextStudy) -> list[Element]:
    """The committed study; empty on its own page and on pages of ablations or ranks."""
    is_text = study.info.get("kind", "text") == "text"
    return committed_text(config_hash=study.info.get("config_hash")) if is_text else []


def _restricted_to(study: TextStudy, variants: list[str]) -> TextStudy:
    return replace(study, variants=tuple(variants))


def _without_empty(*elements: Element | None) -> list[Element]:
    """The elements that are not empty."""
    empty = (None, Bullets([]), Fold("How we know", []), Fold("λ over training", []))
    return [element for element in elements if element is not None and element not in empty]


def _comparison(study: TextStudy) -> str:
    """A paragraph: the models compared, their data, number of seeds and budget."""
    info = study.info
    compared = [name for name in study.variants if role_of(study, name) in COMPARED]
    names = listing(map(type_name, compared))
    others = len(study.variants) - len(compared)
    beside = f"; beside them {plural(others, 'other model')}" if others else ""
    size = info["config"].get("model") or {}
    shared = ", ".join(
        f"{count(size[key])} {word}"
        for key, word in (("num_hidden_layers", "layers"), ("hidden_size", "channels"))
        if key in size
    )
    match = _MATCHES.get(str(info.get("match", "params")), str(info.get("match")))
    numbers = {len(variant["at"]["best"]["runs"]) for variant in variants_of(study).values()}
    fewer = {number for number in numbers if number < len(info["seeds"])}
    some = f" ({listing(sorted(fewer))} where a table says so)" if fewer else ""
    return (
        f"Compared: language models that are alike but for their attention ({names}{beside}). Each "
        f"learned from the same data in the same order, {training_budget(info)} of "
        f"{_source(info)}, with {plural(len(info['seeds']), 'seed')}{some}. Unless said otherwise, "
        "their sizes"
        f"{f' ({shared})' if shared else ''} are chosen to give {match}, as nearly as whole heads "
        "and channels allow."
    )


def _source(info: dict[str, Any]) -> str:
    """Where the text came from, in words."""
    data = info.get("data") or {}
    source = str(data.get("source"))
    if source in _SOURCES:
        source = _SOURCES[source].format(data.get("python"))
    return f"{source} ({number(data.get('train_tokens', 0) / 1e6, 2)} million tokens)"
