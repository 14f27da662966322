"""Effects from the study of gradient flow. Pure; ``None`` without a record."""

import math

from diffattn.lab.report.claims.measured import Measure, Measured, exponential, paired
from diffattn.lab.report.claims.records import ClaimRecords


def gradient_factor(judgement: str, bound: float) -> Measure:
    """The largest factor by which a statement of the study is missed, by seed, from 1 up.

    Args:
        judgement: ``id`` of one of its statements.
        bound: Factor that the mean logarithm is tested against.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        found = [] if records.gradient_flow is None else records.gradient_flow["judgements"]
        row = next((row for row in found if row["id"] == judgement), None)
        if row is None:
            return None
        logs = [math.log(value) for value in row["values"] if value > 0]
        if not logs:
            why = row["why"] or "the record holds no value"
            return Measured(effect=math.nan, low=None, high=None, n=0, uninformative=why)
        return exponential(paired(logs, math.log(bound), uninformative=row["why"]))

    return measure
