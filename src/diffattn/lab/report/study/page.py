"""The page of a study of models on text, and such a study as a section of another page."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from diffattn.files.io import read_json
from diffattn.lab.catalog.models import BASELINE, FEW, GATE, TYPES
from diffattn.lab.records.text_results import COPIES
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
    shown,
)
from diffattn.lab.report.page.maps import attention_maps
from diffattn.lab.report.page.run_tables import cost_table, models_table
from diffattn.lab.report.page.study_page import TEXT, TIMES, claims_section, provenance, statement
from diffattn.lab.report.page.tables import Table, table_markdown
from diffattn.lab.report.page.wording import count, listing, number, one_line, plural, type_name
from diffattn.lab.report.study import charts, details, tables
from diffattn.lab.report.study.files import (
    COMPARED,
    LOSS,
    PART_MEANINGS,
    PARTS,
    ROW_KINDS,
    TextStudy,
    training_budget,
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
    "packages": "files of packages installed for Python {}",
}
_MATCHES = {
    "params": "the same number of parameters",
    "heads": "the same heads",
    "flops": "the same training FLOPs",
    "attention_flops": "the same attention FLOPs",
}
_QUARTERS = {f"quarter_{i}": f"Quarter {i}" for i in (1, 2, 3, 4)}


def text_document(study: TextStudy, claims: Table | None = None) -> Document:
    """Assemble the page."""
    kind = study.info.get("kind", "text")
    recorded = study.recorded.get("verdict")
    if not recorded:
        sentence = Text("There is no verdict yet: the study has not finished.", "verdict")
    else:
        role: Any = "verdict" if recorded["informative"] else "verdict uninformative"
        sentence = Text(sentence_beside_counts(study) or recorded["sentence"], role)
    figure = charts.difference_chart(study, "chart-differences")
    # Neither the committed study itself nor studies of ablations or ranks show it again.
    config_hash = study.info.get("config_hash")
    committed = committed_text(config_hash=config_hash) if kind == "text" else []
    costs: list[Element] = [
        cost_table(replace(study, variants=tuple(study.drawn))),
        Fold("How we know", [models_table(study), Text(TIMES)]),
    ]
    sections = [
        Section("results", "Is the loss lower?", _results(study)),
        Section("parts", "Where does the difference lie?", _parts(study)),
        Section("maps", "What do the maps do?", _maps(study)),
        Section("costs", "What does it cost?", costs),
        Section("committed", "What does the longer study say?", committed),
        claims_section(claims),
        Section("provenance", "Where do the numbers come from?", provenance(study)),
    ]
    return Document(
        title=f"Differential attention: {ROW_KINDS.get(kind, 'study')} “{study.info.get('scale')}”",
        lead=shown(
            sentence,
            Pair(shown(figure, tables.results_table(study)), "answer"),
            Bullets(study.gaps, "What is missing", "gap"),
        ),
        sections=[section for section in sections if section.content],
    )


def text_markdown(study: TextStudy) -> str:
    """The verdict and the tables of results in Markdown."""
    recorded = study.recorded.get("verdict") or {}
    lines = [one_line(recorded["sentence"])] if recorded else []
    if recorded.get("details"):
        lines.append("\n".join(f"- {one_line(detail)}" for detail in recorded["details"]))
    every = [results] if (results := tables.results_table(study)) else []
    lines += [table_markdown(x).rstrip("\n") for x in (*every, *tables.other_tables(study))]
    return "\n\n".join(lines) + "\n"


def _results(study: TextStudy) -> list[Element]:
    recorded = study.recorded.get("verdict") or {}
    level = tables.level_of(study)
    intervals = (
        f"Intervals are Student's t over seeds, at {level}. They cover the chance of a seed, not "
        "other data or sizes, and are not adjusted for making several comparisons. With few seeds "
        "they are wide."
    )
    how = shown(
        Text(_comparison(study)),
        Text(statement(study)),
        Text(intervals if level else ""),
        details.runs_table(study) if study.results else None,
    )
    return shown(
        Bullets([*recorded.get("details", ()), *recorded.get("reasons", ())]),
        charts.loss_chart(study, "chart-loss"),
        Fold("Controls, ablations and tests", tables.other_tables(study)),
        Fold("How the learning rates were chosen", _rates(study)),
        Fold("How we know", how),
    )


def _rates(study: TextStudy) -> list[Element]:
    swept = details.swept_rates(study)
    if not swept:
        return []
    recorded = study.recorded["rates"]
    again = any(entry.get("whole") for entry in swept.values())
    words = (
        f"The losses of every rate that was tried (seed {recorded['sweep_seed']}, "
        f"{count(recorded['sweep_steps'])} steps). The rate with the lowest was taken"
        f"{', among those trained again with all steps' if again else ''}. A variant without a "
        "sweep uses the rate of the model that it is compared with."
    )
    return shown(Text(words), details.rates_table(study))


def _parts(study: TextStudy) -> list[Element]:
    drawn = study.drawn
    others = [name for name in study.variants if name not in drawn]
    by_part = details.parts_table(
        study, drawn, PARTS, f"By what the window held. {details.part_shares(study)}"
    )
    copying = charts.loss_chart(study, "chart-copying", "repeated_bigram")
    if by_part is None and copying is None:
        return []
    quarters = "By position in the window, from its first quarter to its last."
    rest = "Controls, ablations and other matches."
    how = shown(
        Terms({PARTS[part]: meaning for part, meaning in PART_MEANINGS.items()}),
        details.parts_table(study, drawn, _QUARTERS, quarters),
        details.parts_table(study, others, PARTS | _QUARTERS, rest),
        details.phase_table(replace(study, variants=tuple(others))),
    )
    phase = details.phase_table(replace(study, variants=tuple(drawn)))
    return shown(by_part, copying, phase, Fold("How we know", how))


def _maps(study: TextStudy) -> list[Element]:
    types = [name for name in study.variants if study.role_of(name) == "type"]
    lambdas = [charts.lambda_chart(study, name, f"chart-lambda-{name}") for name in types]
    summaries = {type_name(name): _TYPE_SUMMARIES[name] for name in study.variants if name in TYPES}
    return shown(
        Text(
            "Where the Transformer has one attention map per head, differential attention has two "
            "and subtracts the second, weighted by λ, from the first:"
        ),
        Equation(),
        Terms(summaries),
        Text(
            "A differential head holds two maps. DIFF V1 and Shared DIFF have a value twice as "
            "wide as the head, and half as many heads as their Transformer twin."
        ),
        *attention_maps(study, "map-"),
        Fold("λ over training", shown(Pair(shown(*lambdas)))),
    )


def _comparison(study: TextStudy) -> str:
    info = study.info
    compared = [name for name in study.variants if study.role_of(name) in COMPARED]
    names = listing(map(type_name, compared))
    others = len(study.variants) - len(compared)
    beside = f"; beside them {plural(others, 'other model')}" if others else ""
    size = info["config"]["model"]
    shared = f"{count(size['num_hidden_layers'])} layers, {count(size['hidden_size'])} channels"
    match = _MATCHES[info.get("match", "params")]
    return (
        f"Compared: language models that are alike but for their attention ({names}{beside}). Each "
        f"learned from the same data in the same order, {training_budget(info)} of "
        f"{_text_of(info)} ({number(info['data']['train_tokens'] / 1e6, 2)} million tokens), with "
        f"{plural(len(info['seeds']), 'seed')}. Unless said otherwise, their sizes "
        f"({shared}) are chosen to give {match}, as nearly as whole heads and channels allow."
    )


def _text_of(info: dict[str, Any]) -> str:
    source, data = str(info["data"]["source"]), info["data"]
    return _SOURCES[source].format(data.get("python")) if source in _SOURCES else source


def loss_section(live: TextStudy | None = None) -> list[Element]:
    """Differences in loss: of a study that has just run, if informative, and the committed."""
    if live is None or not (sentence := sentence_beside_counts(live)):
        return committed_text()
    details = shown(
        tables.results_table(live),
        *tables.other_tables(live),
        charts.loss_chart(live, "chart-text-loss"),
        cost_table(live),
    )
    trained = [entry for name in live.variants if (entry := live.difference(name, BASELINE))]
    return [Text(sentence), *committed_text(trained), Fold("The models that you trained", details)]


def sentence_beside_counts(study: TextStudy) -> str:
    """Losses of the laptop comparison's models beside counting; empty for other models."""
    results = study.results
    if results is None or study.variants != FEW or not results["verdict"]["informative"]:
        return ""
    losses = listing(
        f"{type_name(name)} {number(variant['at']['best'][LOSS]['mean'], 2)}"
        for name, variant in study.entries.items()
    )
    counted = number(results["count_models"][COPIES]["loss"], 2)
    steps = count(study.info["config"]["train"]["num_steps"])
    chance = (
        " With one seed the differences may be chance." if len(study.info["seeds"]) == 1 else ""
    )
    return (
        f"After {steps} steps on {_text_of(study.info)} the losses in nats per token are: "
        f"{losses}. Counting pairs of tokens and copying them from the context gives {counted}: "
        f"the Transformer and DIFF V2 have learned more than that.{chance}"
    )


def committed_text(
    trained: Sequence[dict[str, Any]] = (), config_hash: str | None = None
) -> list[Element]:
    """The differences of the committed study on text, below those of a study that has just run.

    Nothing is shown if ``config_hash`` is that of the committed study.
    """
    committed = read_json(TEXT)
    if config_hash == committed["config_hash"]:
        return []
    entries = {entry["variant"]: entry for entry in committed["differences"]}
    best, gate = entries["diff_v2"], entries[GATE]
    lead = (
        f"The longer study in published/text has {count(committed['parameters'])} parameters, "
        f"{committed['train_tokens']} and {plural(committed['seeds'], 'seed')}. There DIFF V2 ends "
        f"{number(-best['mean'], 2)} nats per token below the Transformer and V2's gate on one map "
        f"{number(-gate['mean'], 2)}. On tokens that are new in their window, where nothing can be "
        f"copied, V2 is {number(-best['new'], 2)} below and the gate {number(-gate['new'], 2)}: "
        "most of V2's lead is copying from the context."
    )
    longer = [{"runs": [], "values": []} | entry for entry in committed["differences"]]
    labels = [f"Here: {type_name(entry['variant'])}" for entry in trained]
    where = "Longer study: " if trained else ""
    labels += [f"{where}{type_name(entry['variant'])}" for entry in longer]
    drawn = [*trained, *longer]
    bars = charts.difference_bars(drawn, labels, f"the {type_name(BASELINE)}", "chart-committed")
    return shown(Text(lead), bars)
