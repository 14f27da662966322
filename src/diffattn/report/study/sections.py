"""Sections of a report: the words around its tables and charts."""

from collections.abc import Callable
from typing import Any

from diffattn.report.page.charts import difference_chart, loss_chart
from diffattn.report.page.provenance import protocol, provenance
from diffattn.report.page.wording import MISSING, count, esc, listing, number, plural, type_name
from diffattn.report.study.files import Study
from diffattn.report.study.lambda_charts import lambda_chart
from diffattn.report.study.map_charts import map_charts
from diffattn.report.study.tables import (
    cost_table,
    difference_table,
    lambda_table,
    loss_table,
    models_table,
    side_by_side_table,
)

_EQUATION = (
    '<p class="equation"><span>DiffAttn(<i>X</i>) = ( softmax(<i>Q</i><sub>1</sub>'
    "<i>K</i><sub>1</sub><sup>⊤</sup> / √<i>d</i>) − <i>λ</i> softmax(<i>Q</i><sub>2</sub>"
    "<i>K</i><sub>2</sub><sup>⊤</sup> / √<i>d</i>) ) <i>V</i></span>"
    "<small>arXiv:2410.05258v2, Eq. (1)</small></p>\n"
)
_WHAT_TYPES_ARE = {
    "softmax": "one attention map per head: the baseline.",
    "diff": "two maps per head and one learned λ per layer; the head's output is normalised "
    "and scaled by 1 − λ_init.",
    "diff_v2": "two maps per head that share their keys; λ is a sigmoid, computed from every "
    "token for every head; no norm on heads.",
    "shared_diff": "as DIFF V1, but the two maps share one base projection and differ by "
    "low-rank updates.",
}
_MATCHES = {
    "params": "the same number of parameters",
    "heads": "the same heads",
    "attention_flops": "the same attention FLOPs",
}


def study_sections(study: Study, prefix: str, level: int) -> str:
    """Every section of one study.

    Args:
        study: The study.
        prefix: Start of all element ids, unique in the page: ``""`` or ``"published-"``.
        level: Heading level of the sections.
    """
    sections: list[tuple[str, str, Callable[[Study, str], str]]] = [
        ("models", "Models", _models),
        ("loss", "Validation loss", _loss),
        ("curves", "Loss curves", _curves),
        ("costs", "Speed and memory", _costs),
        ("lambda", "λ over training", _lambdas),
        ("maps", "Attention maps", _maps),
        ("provenance", "Provenance", _provenance),
    ]
    return headline(study, brief=level > 2) + "".join(
        f'<section id="{prefix}{key}">\n<h{level}>{title}</h{level}>\n'
        f"{body(study, prefix)}</section>\n"
        for key, title, body in sections
    )


def headline(study: Study, *, brief: bool = False) -> str:
    """What was compared, what it shows, and what is missing.

    Args:
        study: The study.
        brief: Leave out what explains the method. Default: all of it.
    """
    info, train = study.info, study.info["config"].get("train") or {}
    names = listing(type_name(name) for name in study.types)
    steps, batch = train.get("num_steps"), train.get("batch_tokens")
    budget = MISSING
    if isinstance(steps, int) and isinstance(batch, int):
        budget = f"{count(steps)} steps of {count(batch)} tokens ({count(steps * batch)} tokens)"
    size = study.info["config"].get("model") or {}
    shared = ", ".join(
        f"{count(size[key])} {word}"
        for key, word in (("num_hidden_layers", "layers"), ("hidden_size", "channels"))
        if key in size
    )
    match = _MATCHES.get(str(info.get("match")), str(info.get("match")))
    text = (
        f"Compared: language models that are alike but for their attention ({names}). Each "
        f"learned from the same data in the same order, {budget} of {_source(info)}, with "
        f"{plural(len(info['seeds']), 'seed')}. Their sizes{f' ({shared})' if shared else ''} "
        f"are chosen to give {match}, as nearly as whole heads and channels allow."
    )
    method = (
        "<p>Where the Transformer has one attention map per head, differential attention has two "
        f"and subtracts the second, weighted by λ, from the first:</p>\n{_EQUATION}"
    )
    kinds = "".join(
        f"<dt>{esc(type_name(name))}</dt><dd>{esc(_WHAT_TYPES_ARE[name])}</dd>"
        for name in study.types
        if name in _WHAT_TYPES_ARE
    )
    statement = "The study has not finished, so it makes no statement."
    if study.results is not None:
        statement = study.results["statement"]
    return (
        f'<p class="lead">{esc(text)}</p>\n<p class="statement">{esc(statement)}</p>\n'
        f"{_gaps(study)}{'' if brief else f'{method}<dl>{kinds}</dl>'}\n"
    )


def published_section(study: Study, published: Study) -> str:
    """Another study beside the user's own, with its own provenance."""
    first = published.runs[0].record if published.runs else None
    where = "an unrecorded machine"
    if first is not None and first.hardware.get("processor"):
        where = str(first.hardware["processor"])
    commit = (first.commit or "not recorded")[:12] if first is not None else "not recorded"
    text = (
        f"A study of scale “{published.info.get('scale')}”, run on "
        f"{str(published.info.get('created'))[:10]} on {where} at commit {commit}, and shipped "
        "with the package. It has other sizes and token counts: its losses must not be compared "
        "with those above. Its differences to its own baseline may be read beside yours."
    )
    if protocol(study) == protocol(published):
        together = side_by_side_table(study, published)
    else:
        together = (
            f'<p class="gap">The two studies followed different protocols ({esc(protocol(study))}; '
            f"{esc(protocol(published))}), so their numbers share no table.</p>\n"
        )
    return (
        '<section id="published" class="published">\n<h2>Published study</h2>\n'
        f"<p>{esc(text)}</p>\n{together}{study_sections(published, 'published-', 3)}</section>\n"
    )


def _models(study: Study, prefix: str) -> str:
    return models_table(study) + (
        "<p>A differential head holds two maps. DIFF V1 and Shared DIFF have a value twice as wide "
        "as the head, and half as many heads as their Transformer twin.</p>\n"
    )


def _loss(study: Study, prefix: str) -> str:
    notes = (
        "<p>Intervals are Student's t over seeds. They cover the chance of a seed, not other data, "
        "sizes or learning rates, and are not adjusted for making several comparisons. With few "
        "seeds they are wide.</p>\n"
    )
    return (
        loss_table(study)
        + difference_table(study)
        + difference_chart(study, f"{prefix}chart-differences")
        + notes
    )


def _curves(study: Study, prefix: str) -> str:
    return loss_chart(
        study, "validation_loss", "validation loss, nats per token", f"{prefix}chart-validation"
    ) + loss_chart(study, "train_loss", "training loss, nats per token", f"{prefix}chart-train")


def _costs(study: Study, prefix: str) -> str:
    return cost_table(study) + (
        "<p>Times depend on the machine and on what else it was doing. They describe these runs of "
        "this implementation, not the methods.</p>\n"
    )


def _lambdas(study: Study, prefix: str) -> str:
    charts = [
        lambda_chart(study, name, f"{prefix}chart-lambda-{index}")
        for index, name in enumerate(study.differential_types)
    ]
    note = "<p>Layers are counted from 0, as in the code.</p>\n"
    return f'<div class="pair">{"".join(charts)}</div>\n{lambda_table(study)}{note}'


def _maps(study: Study, prefix: str) -> str:
    if study.maps is None:
        return '<p class="gap">maps.json is missing: no maps were recorded.</p>\n'
    return map_charts(study, f"{prefix}map-")


def _provenance(study: Study, prefix: str) -> str:
    return provenance(study)


def _gaps(study: Study) -> str:
    if not study.gaps:
        return ""
    items = "".join(f"<li>{esc(gap)}</li>" for gap in study.gaps)
    return f'<div class="gap"><strong>What is missing</strong><ul>{items}</ul></div>\n'


def _source(info: dict[str, Any]) -> str:
    """Where the text came from, in words."""
    data = info.get("data") or {}
    source = str(data.get("source"))
    if source == "stdlib":
        source = f"Python {data.get('python')} standard-library source code"
    tokens = data.get("train_tokens")
    if not isinstance(tokens, int):
        return source
    return f"{source} ({number(tokens / 1e6, 2)} million tokens)"
