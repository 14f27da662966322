"""The papers' claims that evaluations of models are about, beside one evaluation."""

from collections.abc import Sequence

from diffattn.lab.records.evaluations import EvalResult
from diffattn.lab.report.claims.catalog import CLAIMS, Claim
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.report.claims.verdicts import judged_claims
from diffattn.lab.report.page.tables import Table, head_cell, number_cell, table, word_cell
from diffattn.lab.report.page.wording import MISSING, number, span

PROTOCOLS = {
    "lm-tasks": "lm_tasks",
    "needles": "needle",
    "answer-attention": "attention_segments",
    "noise-attention": "attention_segments",
    "many-shot": "many_shot",
    "order": "order_robustness",
    "hallucination-summaries": "hallucination",
    "hallucination-answers": "hallucination",
    "outliers": "outliers",
    "outliers-hidden": "outliers",
    "quantised-logits": "quantized_logits",
}
"""Claim -> the protocol whose records show it."""
_HEADERS = (
    "Claim", "The paper says", "Effect measured", "Effect", "95 % interval", "n", "p, Holm",
    "Verdict",
)  # fmt: skip


def published_values() -> dict[str, str]:
    """What the papers print, by protocol, with its source; protocols without a claim are absent."""
    said: dict[str, list[str]] = {}
    for claim in CLAIMS:
        if claim.id in PROTOCOLS:
            said.setdefault(PROTOCOLS[claim.id], []).append(f"{claim.says} ({claim.source})")
    return {protocol: " ".join(sentences) for protocol, sentences in said.items()}


def evaluation_claims(results: Sequence[EvalResult]) -> Table | None:
    """Verdicts on the claims that these results are about; ``None`` if there is no such claim.

    The rule is that of ``docs/findings/claims.md``, Holm's adjustment over the claims of this
    table. Models count by seed: ``softmax-seed0`` and ``diff-seed0`` are a pair.

    Args:
        results: Of one evaluation folder.
    """
    protocols = {result.protocol.removesuffix("_judge") for result in results}
    claims = [c for c in CLAIMS if PROTOCOLS.get(c.id) in protocols]
    if not claims:
        return None
    kinds = {str(result.model.get("attention_type")) for result in results}
    labels = {str(result.model.get("label")) for result in results}
    rows = []
    for judged in judged_claims(ClaimRecords(evaluations=tuple(results)), claims):
        of = judged.measured
        verdict = f"{judged.verdict}: {judged.why}" if judged.why else judged.verdict
        if of is None:
            verdict = _unmeasured(judged.claim, kinds, labels)
        rows.append(
            [
                head_cell(judged.claim.id),
                word_cell(f"{judged.claim.says} ({judged.claim.source})"),
                word_cell(judged.claim.effect),
                number_cell(MISSING if of is None else number(of.effect, 3, signed=True)),
                number_cell(MISSING if of is None else span(of.low, of.high, 3)),
                number_cell(MISSING if of is None else of.count),
                number_cell(number(judged.p_holm, 3)),
                word_cell(verdict),
            ]
        )
    return table("Claims of the papers that these protocols are about.", _HEADERS, rows)


def _unmeasured(claim: Claim, kinds: set[str], labels: set[str]) -> str:
    if not {"softmax", "diff"} <= kinds:
        return "not run: it needs models with softmax and with DIFF V1 attention"
    if claim.id.startswith("hallucination"):
        return "not run: it needs verdicts of 'diffattn judge', and models by seed"
    if any(label.replace("diff-seed", "softmax-seed") in labels - {label} for label in labels):
        return "not run: no number of this claim is there of all these models"
    return "inconclusive: one seed, as the models are not called softmax-seed0, diff-seed0, …"
