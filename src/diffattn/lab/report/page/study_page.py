"""The parts that the pages of all kinds of studies share."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from diffattn.lab.report.page.elements import Bullets, Code, Document, Element, Fold, Section, Text
from diffattn.lab.report.page.run_tables import cost_table, models_table
from diffattn.lab.report.page.runs import Study, StudyRun
from diffattn.lab.report.page.tables import Table, table, word_cell
from diffattn.lab.report.page.wording import listing, pairs

_PUBLISHED = Path(__file__).parents[1] / "published"
TEXT, RECALL = _PUBLISHED / "text.json", _PUBLISHED / "recall.json"
"""Files with the loss differences of the text study, and the steps of the recall study."""
TIMES = (
    "Times depend on the machine and on its other load. Runs that shared a process can show the "
    "peak memory of an earlier run."
)
UNFINISHED = Text("The study has not finished: nothing is compared yet.", "gap")
"""Shown in place of a verdict."""
_NOT_RECORDED = "not recorded"


def study_document(
    study: Study,
    lead: str,
    sections: Sequence[Section] = (),
    *,
    models: Study,
    verdict: Element = UNFINISHED,
    summary: Table | None = None,
) -> Document:
    """Assemble the page of a study: verdict, lead, gaps, sections, models, costs, provenance.

    ``models``: the study with the runs whose sizes and costs are comparable.
    """
    return Document(
        title=f"Differential attention: {study.info['kind']} study “{study.info.get('scale')}”",
        lead=[
            verdict,
            Text(lead),
            Text(statement(study), "statement"),
            Bullets(study.gaps, "What is missing", "gap"),
        ],
        sections=[
            *sections,
            Section("models", "Models", [models_table(models)]),
            Section("costs", "Speed and memory", [cost_table(models), Text(TIMES)]),
            Section("provenance", "Provenance", provenance(study)),
        ],
        summary=summary,
    )


def claims_section(claims: Table | None) -> Section:
    """The section about the papers' claims; empty without a table."""
    content: list[Element] = []
    if claims is not None:
        content = [
            Text(
                "From the records in published/, not from the study above; none is about models of "
                "the papers' sizes. docs/findings/claims.md has what they mean for a decision.",
                "remark",
            ),
            Fold(claims.caption, [claims]),
        ]
    return Section("claims", "What do the papers claim?", content)


def provenance(study: Study) -> list[Element]:
    """Show facts of a study and its runs, and its resolved config as JSON."""
    settings = study.info.get("config", study.info.get("tasks"))
    config = json.dumps(settings, indent=1, ensure_ascii=False)
    return [
        Fold("Data, versions and machine", [_facts(study)]),
        Fold("Resolved config", [Code(config)]),
    ]


def statement(study: Study) -> str:
    """The study's recorded statement about its limits."""
    if study.results is None:
        return "The study has not finished, so it makes no statement."
    return str(study.results["statement"])


def _facts(study: Study) -> Table:
    info, protocol = study.info, (study.results or {}).get("protocol") or {}
    is_made = info.get("kind") in ("recall", "practical")
    facts = {
        "Study created": info.get("created"),
        "Scale": info.get("scale"),
        "Matched by": info.get("match"),
        "Seeds": ", ".join(map(str, info["seeds"])),
        "Protocol": protocol and f"{protocol.get('name')}, version {protocol.get('version')}",
        "Config hash": info.get("config_hash"),
        "Data": "made while training, from the seed and the step"
        if is_made
        else pairs(info.get("data") or {}),
    }
    rows = [(name, str(value or _NOT_RECORDED)) for name, value in facts.items()]
    facts_of_runs: dict[str, Callable[[StudyRun], str]] = {
        "Commit": _commit,
        "Versions": lambda run: pairs(run.record.versions),
        "Hardware": lambda run: pairs(run.record.hardware),
        "Device": lambda run: run.record.device,
        "Backends": lambda run: pairs(run.record.backends),
    }
    for name, fact in facts_of_runs.items():
        names: dict[str, list[str]] = {}
        for run in study.runs:
            names.setdefault(fact(run), []).append(run.name)
        for value, runs in names.items():  # with the names of its runs if there are several values
            text = value if len(names) == 1 else f"{value} ({', '.join(runs)})"
            rows.append((name, text or _NOT_RECORDED))
    copied = [
        f"{run.name}, recorded as {x}" for run in study.runs if (x := run.record.name) != run.name
    ]
    rows += [("Copied from another study", "; ".join(copied))] if copied else []
    return table("The study.", ["", ""], ((name, word_cell(text)) for name, text in rows))


def _commit(run: StudyRun) -> str:
    if run.record.commit is None:
        return f"{_NOT_RECORDED}: the package did not run from a checkout"
    changed = {True: " with uncommitted changes", False: ", source unchanged", None: ""}
    later = f", continued at {listing(run.continued)}" if run.continued else ""
    return run.record.commit + changed[run.record.dirty] + later
