"""Parts of a study's page that show the committed studies and claims."""

from functools import cache
from pathlib import Path
from typing import Any

from diffattn.files.io import read_json
from diffattn.lab.report.page.elements import Element, Fold, Section, Text
from diffattn.lab.report.page.tables import Table

_PUBLISHED = Path(__file__).parents[1] / "published"
TEXT, RECALL = _PUBLISHED / "text.json", _PUBLISHED / "recall.json"
"""Files with the loss differences of the text study, and the steps of the recall study."""
_CLAIMS = (
    "From the records in published/, not from the study above; none is about models of the papers' "
    "sizes. docs/findings/claims.md has what they mean for a decision."
)


@cache
def committed_recall() -> dict[str, Any]:
    """The committed recall study: see ``recall_summary`` of ``tools/committed_pages.py``."""
    recorded: dict[str, Any] = read_json(RECALL)
    return recorded


def claims_section(claims: Table | None) -> Section:
    """The section about the papers' claims; empty without a table."""
    content: list[Element] = []
    if claims is not None:
        content = [
            Text(claims.caption),
            Text(_CLAIMS, "remark"),
            Fold("These claims and their numbers", [claims]),
        ]
    return Section("claims", "What do the papers claim?", content)
