"""What pages show of the committed studies and claims, beside the study that they are of."""

from functools import cache
from pathlib import Path
from typing import Any

from diffattn.files.io import read_json
from diffattn.lab.report.page.elements import Element, Fold, Section, Text
from diffattn.lab.report.page.tables import Table, number_cell, table, type_cell, word_cell
from diffattn.lab.report.page.wording import count

_PUBLISHED = Path(__file__).parents[1] / "published"
TEXT, RECALL = _PUBLISHED / "text.json", _PUBLISHED / "recall.json"
"""Differences in loss of the study on text, and steps until learned of the recall study."""
_CLAIMS = (
    "From the committed records, not from the study above. docs/findings/claims.md says how each "
    "is tested and when a verdict is given: at least three seeds, and a p-value of at most 0.05 "
    "after Holm's adjustment over all claims. None is about models of the papers' sizes."
)


def committed_text(config_hash: str | None = None) -> list[Element]:
    """The differences of the committed study on text.

    Args:
        config_hash: That of the study of the page; beside itself the committed one shows nothing.
    """
    committed = read_json(TEXT)
    if config_hash == committed["config_hash"]:
        return []
    rows = [
        [
            type_cell(entry["variant"]),
            number_cell(entry["mean"], note=entry["interval"]),
            word_cell(entry["verdict"]),
        ]
        for entry in committed["differences"]
    ]
    caption = (
        f"Validation loss minus the Transformer's, nats per token; mean of {committed['seeds']} "
        f"seeds and {committed['level']} interval."
    )
    lead = (
        f"The repository holds a larger study of text, of {committed['created'][:10]}: "
        f"{count(committed['parameters'])} parameters, {committed['train_tokens']}. Its records "
        "are in published/text. Nothing in it may be compared with a loss of another size or text."
    )
    return [Text(lead), table(caption, ["Model", "Difference", "Verdict"], rows)]


@cache
def committed_recall() -> dict[str, Any]:
    """The committed recall study: see :func:`recall_summary` of its section."""
    recorded: dict[str, Any] = read_json(RECALL)
    return recorded


def claims_section(claims: Table | None) -> Section:
    """The papers' claims; empty without."""
    content: list[Element] = []
    if claims is not None:
        content = [Text(_CLAIMS), Fold("Every claim, its number and its verdict", [claims])]
    return Section("claims", "What do the papers claim?", content)
