"""The parts that the pages of all kinds of studies share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffattn.lab.records.study_results import read_study_results
from diffattn.lab.report.page.elements import Bullets, Document, Element, Section, Text
from diffattn.lab.report.page.provenance import provenance, statement
from diffattn.lab.report.page.run_tables import cost_table
from diffattn.lab.report.page.runs import Study, read_versioned
from diffattn.lab.report.page.tables import Table

TIMES = (
    "Times depend on the machine and on its other load. Runs that shared a process can show the "
    "peak memory of an earlier run."
)


def read_info(folder: Path) -> dict[str, Any]:
    """Read ``study.json``.

    Raises:
        CheckpointError: The file is missing, damaged or of another schema version.
    """
    return read_versioned(folder / "study.json")


def read_results(folder: Path) -> dict[str, Any] | None:
    """Read ``results.json``; ``None`` while the study has not finished.

    Raises:
        CheckpointError: The file is damaged or of another schema version.
    """
    results: dict[str, Any] | None = read_study_results(folder)
    return results


def unfinished(verb: str) -> list[Element]:
    """Stand for the results of a study that has not finished."""
    return [Text(f"The study has not finished: nothing is {verb} yet.", "gap")]


def costs_section(tables: Sequence[Table]) -> Section:
    """Show speed and memory."""
    return Section("costs", "Speed and memory", [*tables, Text(TIMES)])


def study_document(
    study: Study,
    kind: str,
    *,
    verdict: Sequence[Element],
    lead: str,
    sections: Sequence[Section],
    costs: Sequence[Table] | None = None,
    summary: Table | None,
) -> Document:
    """Assemble the page of a study: verdict, lead, gaps, sections, costs, provenance.

    Args:
        study: Study that the page is of.
        kind: Of the study, for the title.
        verdict: Elements that stand first.
        lead: A sentence that names the comparison.
        sections: The sections of this kind.
        costs: Tables of speed and memory. Default: one of all models.
        summary: The table that a terminal shows.
    """
    tables = [cost_table(study)] if costs is None else costs
    return Document(
        title=f"Differential attention: {kind} study “{study.info.get('scale')}”",
        lead=[
            *verdict,
            Text(lead),
            Text(statement(study), "statement"),
            Bullets(study.gaps, "What is missing", "gap"),
        ],
        sections=[
            *sections,
            *([costs_section(tables)] if tables else ()),
            Section("provenance", "Provenance", provenance(study)),
        ],
        summary=summary,
    )
