"""The claims of the papers that one evaluation is about."""

from collections.abc import Sequence
from dataclasses import replace

from diffattn.lab.records.evaluations import EvalResult
from diffattn.lab.report.claims.catalog import CLAIMS, MeasuredClaim, measured_claims
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.report.claims.tables import HEADERS, table_of_claims
from diffattn.lab.report.page.tables import Table


def published_values() -> dict[str, str]:
    """The results that the papers print, by protocol, with their sources."""
    sentences: dict[str, list[str]] = {}
    for claim in CLAIMS:
        if claim.protocol:
            sentences.setdefault(claim.protocol, []).append(f"{claim.says} ({claim.source})")
    return {protocol: " ".join(texts) for protocol, texts in sentences.items()}


def evaluation_claims(results: Sequence[EvalResult]) -> Table | None:
    """Measure the claims that these results are about; ``None`` if there is no such claim.

    Models count by seed: ``softmax-seed0`` and ``diff-seed0`` are a pair.

    Args:
        results: Of one evaluation folder.
    """
    protocols = {result.protocol.removesuffix("_judge") for result in results}
    claims = [claim for claim in CLAIMS if claim.protocol in protocols]
    if not claims:
        return None
    measured = [
        row if row.measured is not None else replace(row, missing=_why_missing(row, results))
        for row in measured_claims(ClaimRecords(evaluations=tuple(results)), claims)
    ]
    headers = [header for header in HEADERS if header != "Record"]
    caption = "Claims of the papers that these protocols are about."
    return table_of_claims(caption, measured, headers)


def _why_missing(row: MeasuredClaim, results: Sequence[EvalResult]) -> str:
    kinds = {str(result.model.get("attention_type")) for result in results}
    labels = {str(result.model.get("label")) for result in results}
    if not {"softmax", "diff"} <= kinds:
        return "it needs models with softmax and with DIFF V1 attention"
    if row.claim.protocol == "hallucination":
        return "it needs verdicts of 'diffattn judge', and models by seed"
    if any(label.replace("diff-seed", "softmax-seed") in labels - {label} for label in labels):
        return "these models share no number of this claim"
    return "models must be called softmax-seed0, diff-seed0, … to be compared by seed"
