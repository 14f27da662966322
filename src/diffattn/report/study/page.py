"""What the page of a study of models on text shows, as plain values."""

from typing import Any

from diffattn.report.page.charts import Chart
from diffattn.report.page.provenance import protocol, provenance, statement
from diffattn.report.page.run_tables import cost_table, models_table
from diffattn.report.page.runs import Study
from diffattn.report.page.tables import Table
from diffattn.report.page.wording import MISSING, count, listing, number, plural, type_name
from diffattn.report.study.charts import difference_chart, lambda_chart, loss_chart
from diffattn.report.study.map_charts import attention_maps
from diffattn.report.study.tables import (
    difference_table,
    lambda_table,
    loss_table,
    side_by_side_table,
)

CHAPTERS = {
    "models": "Models",
    "loss": "Validation loss",
    "curves": "Loss curves",
    "costs": "Speed and memory",
    "lambda": "λ over training",
    "maps": "Attention maps",
    "published": "Published study",
    "benchmarks": "Benchmarks",
    "provenance": "Provenance",
}
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


def study_page(study: Study, prefix: str = "") -> dict[str, Any]:
    """Every section of one study, as the template names them.

    Args:
        study: The study.
        prefix: Start of all element ids, unique in the page.
    """
    is_whole = study.all_records is None
    curves: list[Chart | str] = []
    lambda_charts: list[Chart | str] = []
    if is_whole:
        titles = {"validation": "validation loss", "train": "training loss"}
        curves = [
            loss_chart(study, f"{key}_loss", f"{title}, nats per token", f"{prefix}chart-{key}")
            for key, title in titles.items()
        ]
        lambda_charts = [
            lambda_chart(study, name, f"{prefix}chart-lambda-{index}")
            for index, name in enumerate(study.differential_types)
        ]
    types = [
        (type_name(name), _WHAT_TYPES_ARE[name]) for name in study.types if name in _WHAT_TYPES_ARE
    ]
    return {
        "prefix": prefix,
        "lead": _lead(study),
        "statement": statement(study),
        "gaps": study.gaps,
        "types": types,
        "models": models_table(study),
        "losses": loss_table(study),
        "differences": difference_table(study),
        "difference_chart": difference_chart(study, f"{prefix}chart-differences"),
        "curves": curves,
        "costs": cost_table(study),
        "lambda_charts": lambda_charts,
        "lambdas": lambda_table(study),
        "maps": attention_maps(study, f"{prefix}map-"),
        "provenance": provenance(study),
        "all_records": study.all_records,
    }


def published_study(study: Study, published: Study) -> dict[str, Any]:
    """Another study beside the user's, with its own provenance."""
    first = published.runs[0].record if published.runs else None
    where = (first.hardware.get("processor") if first else None) or "an unrecorded machine"
    commit = ((first.commit if first else None) or "not recorded")[:12]
    lead = (
        f"A study of scale “{published.info.get('scale')}”, run on "
        f"{str(published.info.get('created'))[:10]} on {where} at commit {commit}. It has other "
        "sizes and token counts: its losses must not be compared with those above. Its "
        "differences to its own baseline may be read beside yours."
    )
    together: Table | str = (
        f"The two studies followed different protocols ({protocol(study)}; "
        f"{protocol(published)}), so their numbers share no table."
    )
    if protocol(study) == protocol(published):
        together = side_by_side_table(study, published)
    return {"lead": lead, "together": together, "study": study_page(published, "published-")}


def _lead(study: Study) -> str:
    """What was compared, on what, and with how many seeds."""
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
    return (
        f"Compared: language models that are alike but for their attention ({names}). Each "
        f"learned from the same data in the same order, {budget} of {_source(info)}, with "
        f"{plural(len(info['seeds']), 'seed')}. Their sizes{f' ({shared})' if shared else ''} "
        f"are chosen to give {match}, as nearly as whole heads and channels allow."
    )


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
