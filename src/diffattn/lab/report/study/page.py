"""What the page of a study of models on text shows, as plain values."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from diffattn.lab.report.page.charts import Chart
from diffattn.lab.report.page.provenance import protocol, provenance, statement
from diffattn.lab.report.page.run_tables import cost_table, models_table
from diffattn.lab.report.page.tables import Table
from diffattn.lab.report.page.wording import (
    MISSING,
    TYPE_NAMES,
    count,
    listing,
    number,
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

CHAPTERS = {
    "results": "Results",
    "curves": "Loss curves",
    "parts": "Where the difference lies",
    "rates": "Learning rates",
    "matching": "Matching",
    "models": "Models",
    "costs": "Speed and memory",
    "lambda": "λ over training",
    "maps": "Attention maps",
    "published": "Published study",
    "claims": "Claims of the papers",
    "benchmarks": "Benchmarks",
    "provenance": "Provenance",
}
OPTIONAL = ("curves", "parts", "rates", "matching")
"""Sections that some studies do not have; empty in :func:`study_page` then."""
_WHAT_TYPES_ARE = {
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


def study_page(study: TextStudy, prefix: str = "") -> dict[str, Any]:
    """Every section of one study, as the template names them.

    Args:
        study: The study.
        prefix: Start of all element ids, unique in the page.
    """
    is_whole = study.all_records is None
    types = [name for name in study.variants if name in TYPE_NAMES]
    differential = [name for name, variant in variants_of(study).items() if variant.role == "type"]
    return {
        "prefix": prefix,
        "verdict": _verdict(study),
        "lead": _lead(study),
        "statement": statement(study),
        "gaps": study.gaps,
        "results": results_table(study),
        "rows": rows_table(study),
        "tests": len(tests_of(study)),
        "verdicts": None if rows_of(study) else verdict_table(study),
        "tested": adjusted_table(study),
        "others": other_tables(study),
        "each_run": [runs_table(study), pairs_table(study)],
        "difference_chart": rows_chart(study, f"{prefix}chart-differences")
        or difference_chart(study, f"{prefix}chart-differences"),
        "curves": _curves(study, prefix) if is_whole else None,
        "parts": parts_section(study, f"{prefix}chart-") if is_whole else None,
        "rates": rates_section(study, f"{prefix}chart-rates"),
        "matching": matching_table(study),
        "types": [(type_name(name), _WHAT_TYPES_ARE[name]) for name in types],
        "models": models_table(study),
        "costs": cost_table(study),
        "lambda_charts": [
            lambda_chart(study, name, f"{prefix}chart-lambda-{index}")
            for index, name in enumerate(differential)
            if is_whole
        ],
        "lambdas": lambda_table(study),
        "maps": attention_maps(study, f"{prefix}map-"),
        "provenance": provenance(replace(study, runs=study.all_runs)),
        "all_records": study.all_records,
    }


def published_study(study: TextStudy, published: TextStudy) -> dict[str, Any]:
    """Another study beside the user's, with its own provenance.

    Args:
        study: The user's.
        published: The other.
    """
    records = [run.record for run in published.all_runs]
    machines = [
        str(record.hardware.get("processor") or "an unrecorded machine") for record in records
    ]
    commits = [
        (commit or "not recorded")[:12]
        for run in published.all_runs
        for commit in (run.record.commit, *run.continued)
    ]
    where = listing(dict.fromkeys(machines)) or "an unrecorded machine"
    at = listing(dict.fromkeys(commits)) or "not recorded"
    word = "commits" if len(set(commits)) > 1 else "commit"
    lead = (
        f"A study of scale “{published.info.get('scale')}”, run on "
        f"{str(published.info.get('created'))[:10]} on {where} at {word} {at}. It has other "
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


def _verdict(study: TextStudy) -> dict[str, Any]:
    """The sentence that a page starts with, whether it says something, and why not."""
    if study.results is None:
        sentence = "No verdict yet: the study has not finished."
        return {"sentence": sentence, "informative": False, "details": [], "reasons": []}
    recorded = study.results.get("verdict")
    if not recorded:
        sentence = "No verdict was recorded."
        return {"sentence": sentence, "informative": False, "details": [], "reasons": []}
    return {
        "sentence": recorded["sentence"],
        "informative": recorded["informative"],
        "details": recorded.get("details", []),
        "reasons": recorded.get("reasons", []),
    }


def _curves(study: TextStudy, prefix: str) -> dict[str, Any]:
    """Losses over steps, and the validation loss against what was spent."""
    titles = {LOSS: "validation loss", "train_loss": "training loss"}
    whole: Sequence[Chart | str] = [
        loss_chart(study, metric, f"{title}, nats per token", f"{prefix}chart-{metric}")
        for metric, title in titles.items()
    ]
    budgets = [
        budget_chart(study, budget, f"{prefix}chart-{budget}") for budget in ("flops", "seconds")
    ]
    return {"validation": whole[0], "train": whole[1], "budgets": budgets}


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
