"""The parts that the pages of all kinds of studies share."""

from collections.abc import Sequence
from pathlib import Path

from diffattn.lab.report.page.elements import Bullets, Document, Element, Fold, Section, Text
from diffattn.lab.report.page.provenance import provenance, statement
from diffattn.lab.report.page.runs import Study
from diffattn.lab.report.page.tables import Table

_PUBLISHED = Path(__file__).parents[1] / "published"
TEXT, RECALL = _PUBLISHED / "text.json", _PUBLISHED / "recall.json"
"""Files with the loss differences of the text study, and the steps of the recall study."""
TIMES = (
    "Times depend on the machine and on its other load. Runs that shared a process can show the "
    "peak memory of an earlier run."
)
UNFINISHED = Text("The study has not finished: nothing is compared yet.", "gap")
"""Shown in place of a verdict."""


def study_document(
    study: Study,
    lead: str,
    sections: Sequence[Section],
    *,
    verdict: Element = UNFINISHED,
    costs: Sequence[Table],
    summary: Table | None = None,
) -> Document:
    """Assemble the page of a study: verdict, lead, gaps, sections, costs, provenance.

    Args:
        costs: Tables of speed and memory; without tables the page has no section about costs.
    """
    times = [Section("costs", "Speed and memory", [*costs, Text(TIMES)])] if costs else []
    return Document(
        title=f"Differential attention: {study.info['kind']} study “{study.info.get('scale')}”",
        lead=[
            verdict,
            Text(lead),
            Text(statement(study), "statement"),
            Bullets(study.gaps, "What is missing", "gap"),
        ],
        sections=[*sections, *times, Section("provenance", "Provenance", provenance(study))],
        summary=summary,
    )


def claims_section(claims: Table | None) -> Section:
    """The section about the papers' claims; empty without a table."""
    content: list[Element] = []
    if claims is not None:
        content = [
            Text(claims.caption),
            Text(
                "From the records in published/, not from the study above; none is about models of "
                "the papers' sizes. docs/findings/claims.md has what they mean for a decision.",
                "remark",
            ),
            Fold("These claims and their numbers", [claims]),
        ]
    return Section("claims", "What do the papers claim?", content)
