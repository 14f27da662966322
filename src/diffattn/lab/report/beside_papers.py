"""The page that sets the tables and figures of the papers beside the records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.lab.records.results import read_benchmarks
from diffattn.lab.report.benchmarks.tables import bench_section
from diffattn.lab.report.build import KINDS
from diffattn.lab.report.claims.claim import MeasuredClaim
from diffattn.lab.report.claims.records import ClaimRecords, read_folders
from diffattn.lab.report.claims.tables import measured_claims, table_of_claims
from diffattn.lab.report.page.elements import (
    Bullets,
    Code,
    Document,
    Element,
    Equation,
    Fold,
    Link,
    Pair,
    Part,
    Section,
    Terms,
    Text,
    shown,
)
from diffattn.lab.report.page.render import write_document
from diffattn.lab.report.page.tables import table
from diffattn.lab.report.page.wording import plural
from diffattn.lab.report.paper import PaperResult, paper_results, published_charts, published_table
from diffattn.lab.report.sections.gradient_flow import judgement_table, over_training
from diffattn.lab.report.sections.practical import practical_answers
from diffattn.lab.report.sections.scaling import loss_chart
from diffattn.lab.report.sections.stability import over_rates
from diffattn.lab.report.study.tables import endpoints_table, rows_table

_WORDS = {
    "seed": "A model is trained several times, each time from other random weights: its seeds. Two "
    "models are compared seed by seed. The spread of the differences gives the 95 % interval.",
    "reservation": "A reason why an effect may not be one of the second map: a control has it too, "
    "or the models have not learned the task.",
    "control": "A model that has only a part of the mechanism: no attention at all, or one map "
    "scaled or shifted. If it gains as much, the second map does not explain the gain.",
    "nats per token": "The unit of the loss: how surprised a model is by each token of unseen "
    "text, in natural logarithms. Lower is better; 0.01 is small, 0.1 is much.",
    "λ, λ_init": "The learned weight of the second map; λ_init is the number near which it starts.",
    "head norm": "After the subtraction DIFF V1 and Shared DIFF scale the output of each head to a "
    "fixed size. V2 does not.",
    "V1, V2, Shared DIFF": "V1 is the first paper's. V2 gives both maps the same keys and each "
    "token its λ. Shared DIFF gives both maps common weights, and each map a small update.",
}
"""Term -> explanation, for a reader who does not know the papers."""


def build_papers_report(
    folders: Sequence[Path],
    out: Path,
    root: Path | None = None,
    *,
    stages: Sequence[Link] = (),
    stage_benchmarks: Sequence[Path] = (),
    scale: str = "",
) -> Path:
    """Write one HTML file: each table and figure of the papers beside the results of the records.

    Args:
        folders: As in :func:`read_folders`. The page names a damaged one and leaves it out.
        root: The page shows paths relative to this folder. Default: as they are given.
        stages: Links to the pages of a reproduction that has just run.
        stage_benchmarks: Its records of ``diffattn bench``. No claim is measured by them.
    """
    records = read_folders(folders, root)
    if folders and not records.places:
        raise CheckpointError(f"report: one record must be readable, got none: {records.gaps[0]}")
    measured = measured_claims(records)
    by_id = {row.claim.id: row for row in measured}
    studies = _read_studies(records)
    from_studies = _study_elements(studies)
    note = Text(f"These parts have just run here, at scale “{scale}”. Each has a page of its own.")
    sections = [Section("own", "This run", [note, Bullets(stages)])] if stages else []
    for result in paper_results():
        rows = [by_id[claim["id"]] for claim in result.claims]
        content = _compare(result, rows, records.places, from_studies[result.id])
        sections.append(Section(result.id, result.title, content))
    document = Document(
        title="Differential attention: the papers beside the measurements",
        lead=_lead(measured, records),
        sections=[*sections, Section("provenance", "Provenance", _provenance(records, studies))],
    )
    timings = [*records.benchmarks.values(), *read_benchmarks(stage_benchmarks).values()]
    return write_document(out, document, bench_section(timings))


def _lead(measured: Sequence[MeasuredClaim], records: ClaimRecords) -> list[Element]:
    known = [row for row in measured if row.measured is not None]
    summary = (
        f"Of {plural(len(measured), 'claim')}, {len(known)} are measured here. Most are the "
        "papers'; “ours” follows from a paper, “asked” is a question that it leaves open. A number "
        "is about the models that were measured: those of this project have a few million "
        "parameters at most, the papers' 0.8 to 13 billion."
    )
    idea = Text(
        "Attention decides, for each word that a language model reads, how much to look at every "
        "word before it. Some of that attention goes to words that do not matter. Differential "
        "attention computes two attention maps and subtracts one from the other, weighted by λ. "
        "Noise that both have in common cancels, as in a differential amplifier:"
    )
    claimed = Text(
        "The papers claim lower loss for the same parameters and tokens, far better retrieval from "
        "long texts, less hallucination and smaller outliers, for 6 to 12 % of training speed. "
        "Below, each of their tables and figures stands beside the results of the records here."
    )
    return shown(
        Text(summary, "verdict"),
        table_of_claims("Every claim that is measured.", known) if known else None,
        Fold("What differential attention is", [idea, Equation(), claimed]),
        Fold("Words used on this page", [Terms(_WORDS)]),
        Bullets(records.gaps, "What is missing or was left out", "gap"),
    )


def _compare(
    result: PaperResult,
    rows: Sequence[MeasuredClaim],
    places: Mapping[str, str],
    from_studies: Sequence[Element],
) -> list[Element]:
    charts = published_charts(result.id)
    measured = [row for row in rows if row.measured is not None]
    not_run = [f"{row.claim.id}: {row.claim.says}" for row in rows if row.measured is None]
    commands: list[Element] = []
    for claim, *_ in rows:
        lines = zip(claim.commands._fields, claim.commands, strict=True)
        text = "\n".join(f"# {scale}\n{line}" for scale, line in lines if line)
        commands.append(Part(claim.id, [Code(text)]))
    content = shown(
        Text(result.remark, "remark"),
        *([Pair(charts)] if len(charts) > 1 else charts),
        *map(published_table, result.tables),
        table_of_claims("Measured here.", measured, places) if measured else None,
        Bullets(not_run, "Not run:"),
        *from_studies,
        Fold("Commands", commands),
    )
    count = f"Here: {len(measured)} of {plural(len(rows), 'claim')} measured"
    return [
        Text(f"The paper: {result.says} ({result.source})"),
        Fold(count if rows else "Its numbers", content),
    ]


def _read_studies(records: ClaimRecords) -> dict[str, Any]:
    studies = {}
    for kind, folder in records.study_folders.items():
        try:
            read, _ = KINDS[kind]
            studies[kind] = read(folder)
        except CheckpointError as error:
            records.gaps.append(f"{records.name(folder)} has no chart here: {error}")
    return studies


def _study_elements(studies: Mapping[str, Any]) -> dict[str, list[Element]]:
    """Result of a paper (its id) -> charts and tables of the records that belong to it."""
    finished = {kind: study for kind, study in studies.items() if study.results is not None}
    elements: dict[str, list[Element]] = {result.id: [] for result in paper_results()}
    if scaling := finished.get("scaling"):
        for axis, section in (("parameters", "size"), ("tokens", "tokens")):
            elements[section].append(loss_chart(scaling.results["axes"][axis], axis))
    if stability := finished.get("stability"):
        chart = over_rates(stability, "gradient_spike_share", "chart-gradient-spikes")
        elements["v2"].append(chart)
    if flow := finished.get("gradient-flow"):
        elements["gradients"] += [over_training(flow, "gradient"), judgement_table(flow)]
    if practical := finished.get("practical"):
        for section, answer in practical_answers(practical).items():
            elements[section] += answer
    for kind, section in (("text", "size"), ("ablations", "ablations"), ("rank", "shared")):
        if study := finished.get(kind):
            elements[section] += shown(endpoints_table(study), rows_table(study))
    return elements


def _provenance(records: ClaimRecords, studies: Mapping[str, Any]) -> list[Element]:
    facts: list[tuple[str, str]] = []
    for kind, folder in records.study_folders.items():
        words = [f"study of {kind}"]
        if kind in studies:
            info, runs = studies[kind].info, [run.record for run in studies[kind].runs]
            commits = sorted({(run.commit or "not recorded")[:12] for run in runs})
            machines = sorted({str(run.hardware.get("processor", "")) for run in runs})
            words += [f"scale {info.get('scale')}", f"created {info.get('created')}"]
            words += [f"{len(runs)} runs", f"commit {', '.join(commits)}", *filter(None, machines)]
        facts.append((records.name(folder), ", ".join(words)))
    facts += [(records.name(folder), "evaluation") for folder in records.evaluation_folders]
    for file, result in records.benchmarks.items():
        facts.append((records.name(file), f"benchmarks: {', '.join(result.runs)}"))
    return [
        Fold("Every record", [table("Records of this page.", ("Record", "Description"), facts)]),
        Text(
            "Published numbers: tables as printed, points of figures as read from the vector "
            "graphics of arXiv:2410.05258v2."
        ),
    ]
