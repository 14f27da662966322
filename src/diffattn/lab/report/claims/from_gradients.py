"""Claims about gradients, measured by the study of gradient flow."""

import math

from diffattn.lab.report.claims import commands
from diffattn.lab.report.claims.claim import ClaimMeasure, Measure, Measured
from diffattn.lab.report.claims.records import PLACES, ClaimRecords


def gradient_factor(judgement: str) -> Measure:
    """Measure the largest factor by which a statement of the study is missed, from 1 up.

    Args:
        judgement: ``id`` of one of its statements.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        rows = [] if records.gradient_flow is None else records.gradient_flow["judgements"]
        row = next((row for row in rows if row["id"] == judgement), None)
        if row is None:
            return None
        values = [value for value in row["values"] if value > 0]
        if not values:
            why = row["why"] or "the record holds no value"
            return Measured(effect=math.nan, low=None, high=None, n=0, uninformative=why)
        return Measured(
            effect=row["mean"],
            low=row["low"],
            high=row["high"],
            n=len(values),
            uninformative=row["why"],
        )

    return measure


def _gradient_claim(judgement: str) -> ClaimMeasure:
    return ClaimMeasure(
        commands=commands.GRADIENT_FLOW,
        record=PLACES["gradient-flow"],
        measure=gradient_factor(judgement),
    )


GRADIENT_MEASURES = {
    # At small width alone the factor is 13, because of the head norm: values are small there.
    "gradients": _gradient_claim("level-large-values"),
    "gradients-constant": _gradient_claim("drift-width"),
    "updates": _gradient_claim("updates"),
    "head-norm-scale": _gradient_claim("norm-gain-large-values"),
}
