"""The page of a study of models on text."""

from dataclasses import replace
from typing import Any

from diffattn.lab.catalog.models import TYPES
from diffattn.lab.report.page.elements import (
    Bullets,
    Code,
    Document,
    Element,
    Equation,
    Fold,
    Pair,
    Part,
    Section,
    Terms,
    Text,
)
from diffattn.lab.report.page.provenance import protocol, provenance, statement
from diffattn.lab.report.page.run_tables import cost_table, models_table
from diffattn.lab.report.page.tables import Table, table_markdown
from diffattn.lab.report.page.wording import (
    MISSING,
    count,
    listing,
    number,
    one_line,
    plural,
    type_name,
)
from diffattn.lab.report.study.charts import (
    budget_chart,
    difference_chart,
    lambda_chart,
    loss_chart,
)
from diffattn.lab.report.study.files import TextStudy
from diffattn.lab.report.study.map_charts import attention_maps
from diffattn.lab.report.study.parts import parts_section
from diffattn.lab.report.study.rates import rates_section
from diffattn.lab.report.study.rows import adjusted_table, rows_chart, rows_table
from diffattn.lab.report.study.summary import COMPARED, LOSS, rows_of, tests_of, variants_of
from diffattn.lab.report.study.tables import (
    lambda_table,
    matching_table,
    other_tables,
    pairs_table,
    results_table,
    runs_table,
    side_by_side_table,
    verdict_table,
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
}
_OTHER = "other model"
_MATCHES = {
    "params": "the same number of parameters",
    "heads": "the same heads",
    "attention_flops": "the same attention FLOPs",
}

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
_MAPS = (
    "Each row shows one head of one model, all on the same text. A row of a map is a query, a "
    "column a key; ␣ is a space, ⏎ a line break. Rows of A, A₁ and A₂ sum to 1, rows of A₁ − λA₂ "
    "to 1 − λ. One head is an example, not a measurement. The text:"
)
_CLAIMS = (
    "From the committed records, not from the study above. docs/findings/claims.md says how each "
    "is tested and when a verdict is given: at least three seeds, and a p-value of at most 0.05 "
    "after Holm's adjustment over all claims. None is about models of the papers' sizes."
)


def text_document(
    study: TextStudy, kind: str, *, published: TextStudy | None = None, claims: Table | None = None
) -> Document:
    """Assemble the page.

    Args:
        study: The study.
        kind: Its kind in words, for the title.
        published: Another study, shown beside it.
        claims: What committed records say of the papers' claims.
    """
    beside = [] if published is None else [_published_section(study, published)]
    if claims is not None:
        beside.append(Section("claims", "Claims of the papers", [claims, Text(_CLAIMS)]))
    return Document(
        title=f"Differential attention: {kind} “{study.info.get('scale')}”",
        lead=_headline(study),
        sections=[*_sections(study), *beside, _provenance_section(study)],
    )


def text_markdown(study: TextStudy) -> str:
    """The verdict and the tables of results in Markdown."""
    recorded = (study.results or {}).get("verdict") or {}
    lines = [one_line(recorded["sentence"])] if recorded else []
    if recorded.get("details"):
        lines.append("\n".join(f"- {one_line(detail)}" for detail in recorded["details"]))
    tables = [rows_table(study), results_table(study), *other_tables(study), adjusted_table(study)]
    lines += [table_markdown(values).rstrip("\n") for values in tables if values is not None]
    return "\n\n".join(lines) + "\n"


def _headline(study: TextStudy) -> list[Element]:
    recorded = (study.results or {}).get("verdict")
    if study.results is None:
        verdict: list[Element] = [Text("No verdict yet: the study has not finished.", "verdict")]
    elif not recorded:
        verdict = [Text("No verdict was recorded.", "verdict")]
    else:
        role: Any = "verdict" if recorded["informative"] else "verdict uninformative"
        verdict = [
            Text(recorded["sentence"], role),
            Bullets([*recorded.get("details", ()), *recorded.get("reasons", ())]),
        ]
    return [
        *verdict,
        Text(_lead(study), "lead"),
        Text(statement(study)),
        Bullets(study.gaps, "What is missing", "gap"),
    ]


def _sections(study: TextStudy, prefix: str = "") -> list[Section]:
    """Every section but that of the records.

    Args:
        study: The study.
        prefix: Start of all element ids, unique in the page.
    """
    is_whole = study.all_records is None
    rates = rates_section(study, f"{prefix}chart-rates")
    matching = matching_table(study)
    sections = [Section(f"{prefix}results", "Results", _results(study, prefix))]
    if is_whole:
        sections.append(Section(f"{prefix}curves", "Loss curves", _curves(study, prefix)))
        if parts := parts_section(study, f"{prefix}chart-"):
            sections.append(
                Section(f"{prefix}parts", "Where the difference lies", _where_it_lies(parts))
            )
    if rates:
        elements = [
            Text(rates["lead"]),
            Bullets(rates["warnings"], "Not settled", "gap"),
            rates["chart"],
            rates["table"],
        ]
        sections.append(Section(f"{prefix}rates", "Learning rates", elements))
    if matching:
        sections.append(Section(f"{prefix}matching", "Matching", [matching]))
    sections += [
        Section(f"{prefix}models", "Models", _models(study, prefix)),
        Section(f"{prefix}costs", "Speed and memory", [cost_table(study), Text(_TIMES)]),
        Section(
            f"{prefix}lambda",
            "λ over training" if is_whole else "λ after training",
            _lambdas(study, prefix, with_charts=is_whole),
        ),
    ]
    if is_whole:
        sections.append(Section(f"{prefix}maps", "Attention maps", _maps(study, prefix)))
    return sections


def _results(study: TextStudy, prefix: str) -> list[Element]:
    tests = len(tests_of(study))
    adjusted = (
        f" Verdicts are, by Holm over {tests} comparisons, but where they say that a difference is "
        "not among these."
        if tests
        else ""
    )
    intervals = Text(
        "Intervals are Student's t over seeds. They cover the chance of a seed, not other data or "
        f"sizes, and are not adjusted for making several comparisons.{adjusted} With few seeds "
        "they are wide."
    )
    element_id = f"{prefix}chart-differences"
    elements: list[Element | None] = [
        rows_table(study),
        results_table(study),
        rows_chart(study, element_id) or difference_chart(study, element_id),
        None if rows_of(study) else verdict_table(study),
        *other_tables(study),
        adjusted_table(study),
        intervals,
        Fold("Every run and every pair", [runs_table(study), pairs_table(study)]),
    ]
    return [element for element in elements if element is not None]


def _curves(study: TextStudy, prefix: str) -> list[Element]:
    """Losses over steps, and the validation loss against the cost so far."""
    validation, train = (
        loss_chart(study, metric, f"{title}, nats per token", f"{prefix}chart-{metric}")
        for metric, title in ((LOSS, "validation loss"), ("train_loss", "training loss"))
    )
    budgets = [
        budget_chart(study, budget, f"{prefix}chart-{budget}") for budget in ("flops", "seconds")
    ]
    return [validation, Pair(budgets), train]


def _where_it_lies(parts: dict[str, Any]) -> list[Element]:
    others = parts["by_part_others"]
    phase = parts["phase_what"]
    elements: list[Element | None] = [
        Text(
            "Each token of the validation text but the first of a window is in one of three parts:"
        ),
        Terms({name: f"{meaning}." for name, meaning in parts["meanings"]}),
        parts["by_part"],
        Fold("Controls, ablations and other matches", [others]) if others else None,
        Pair(parts["curves"]),
        parts["by_quarter"],
        parts["quarters"],
        Text(f"The induction phase: {phase}.") if phase and parts["phase"] else None,
        parts["phase"],
    ]
    return [element for element in elements if element is not None]


def _models(study: TextStudy, prefix: str) -> list[Element]:
    summaries = {type_name(name): _TYPE_SUMMARIES[name] for name in study.variants if name in TYPES}
    method: list[Element] = [] if prefix else [Text(_METHOD), Equation(), Terms(summaries)]
    return [*method, models_table(study), Text(_HEADS)]


def _lambdas(study: TextStudy, prefix: str, *, with_charts: bool) -> list[Element]:
    types = [name for name, variant in variants_of(study).items() if variant.role == "type"]
    charts = [
        lambda_chart(study, name, f"{prefix}chart-lambda-{index}")
        for index, name in enumerate(types)
        if with_charts
    ]
    table = lambda_table(study)
    counted = Text("Layers are counted from 0, as in the code.")
    return [Pair(charts), *([] if table is None else [table]), counted]


def _maps(study: TextStudy, prefix: str) -> list[Element]:
    maps = attention_maps(study, f"{prefix}map-")
    if maps is None:
        return [Text("maps.json is missing: no maps were recorded.", "gap")]
    absent = maps["absent"]
    return [
        Text(_MAPS),
        Code(maps["text"]),
        *(
            Part(f"{head['title']} ({head['where']})", [Pair(head["charts"], "maps")])
            for head in maps["heads"]
        ),
        *([Text(f"No maps were recorded for {absent}.", "gap")] if absent else ()),
    ]


def _provenance_section(study: TextStudy, prefix: str = "") -> Section:
    every = replace(study, runs=study.all_runs)
    return Section(f"{prefix}provenance", "Provenance", provenance(every))


def _published_section(study: TextStudy, published: TextStudy) -> Section:
    """Another study beside the user's, with its own provenance."""
    records = [run.record for run in published.all_runs]
    machines = [
        str(record.hardware.get("processor") or "an unrecorded machine") for record in records
    ]
    commits = [
        (commit or "not recorded")[:12]
        for run in published.all_runs
        for commit in (run.record.commit, *run.continued)
    ]
    places = listing(dict.fromkeys(machines)) or "an unrecorded machine"
    versions = listing(dict.fromkeys(commits)) or "not recorded"
    word = "commits" if len(set(commits)) > 1 else "commit"
    lead = (
        f"A study of scale “{published.info.get('scale')}”, run on "
        f"{str(published.info.get('created'))[:10]} on {places} at {word} {versions}. It has other "
        "sizes and token counts: its losses must not be compared with those above. Its "
        "differences to its own baseline may be read beside yours."
    )
    elements: list[Element] = [Text(lead)]
    if published.all_records:
        elements.append(
            Text(
                "The package carries a summary of it. All its records, with the loss curves, λ "
                f"over training and the attention maps, are in {published.all_records} of the "
                "repository."
            )
        )
    if protocol(study) == protocol(published):
        elements.append(side_by_side_table(study, published))
    else:
        sentence = (
            f"The two studies followed different protocols ({protocol(study)}; "
            f"{protocol(published)}), so their numbers share no table."
        )
        elements.append(Text(sentence, "gap"))
    prefix = "published-"
    parts = [*_sections(published, prefix), _provenance_section(published, prefix)]
    elements += _headline(published)
    elements += [Part(part.title, part.content, part.id) for part in parts]
    return Section("published", "Published study", elements)


def _lead(study: TextStudy) -> str:
    """What was compared, on what, and with how many seeds."""
    info, train = study.info, study.info["config"].get("train") or {}
    every = variants_of(study)
    names = listing(type_name(name) for name, v in every.items() if v.role in COMPARED)
    beside = sum(variant.role not in COMPARED for variant in every.values())
    steps, batch = train.get("num_steps"), train.get("batch_tokens")
    budget = MISSING
    if isinstance(steps, int) and isinstance(batch, int):
        budget = f"{count(steps)} steps of {count(batch)} tokens ({count(steps * batch)} tokens"
        text = (info.get("data") or {}).get("train_tokens")
        passes = steps * batch / text if isinstance(text, int) and text else 0
        budget += f", {number(passes, 1)} times the text)" if passes > 1 else ")"
    size = study.info["config"].get("model") or {}
    shared = ", ".join(
        f"{count(size[key])} {word}"
        for key, word in (("num_hidden_layers", "layers"), ("hidden_size", "channels"))
        if key in size
    )
    match = _MATCHES.get(str(info.get("match", "params")), str(info.get("match")))
    return (
        f"Compared: language models that are alike but for their attention ({names}"
        f"{f'; beside them {plural(beside, _OTHER)}' if beside else ''}). Each "
        f"learned from the same data in the same order, {budget} of {_source(info)}, with "
        f"{plural(len(info['seeds']), 'seed')}{_fewer(study)}. Unless said otherwise, their sizes"
        f"{f' ({shared})' if shared else ''} "
        f"are chosen to give {match}, as nearly as whole heads and channels allow."
    )


def _fewer(study: TextStudy) -> str:
    """How many seeds the variants have that have fewer."""
    numbers = {v.best.loss.interval.n for v in variants_of(study).values() if v.best is not None}
    fewer = sorted(number for number in numbers if number < len(study.info["seeds"]))
    return f" ({listing(fewer)} where a table says so)" if fewer else ""


def _source(info: dict[str, Any]) -> str:
    """Where the text came from, in words."""
    data = info.get("data") or {}
    source = str(data.get("source"))
    if source in _SOURCES:
        source = _SOURCES[source].format(data.get("python"))
    tokens = data.get("train_tokens")
    if not isinstance(tokens, int):
        return source
    return f"{source} ({number(tokens / 1e6, 2)} million tokens)"
