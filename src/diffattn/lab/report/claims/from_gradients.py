"""Claims about gradients, measured by the study of gradient flow."""

import math

from diffattn.lab.report.claims import commands
from diffattn.lab.report.claims.claim import V1, Claim, Measure, Measured
from diffattn.lab.report.claims.records import PLACES, ClaimRecords
from diffattn.lab.stats.paired import paired_t_test

SAME_MAGNITUDE = 2.0
"""Factor within which gradients count as alike."""
CONSTANT = 1.5
"""Factor within which their ratio counts as the same at another size."""


def gradient_factor(judgement: str, bound: float) -> Measure:
    """Measure the largest factor by which a statement of the study is missed, from 1 up.

    Args:
        judgement: ``id`` of one of its statements.
        bound: Factor that the mean logarithm by seed is tested against.
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
            p=paired_t_test([math.log(value / bound) for value in values]),
            uninformative=row["why"],
        )

    return measure


def _gradient_claim(id: str, judgement: str, bound: float, says: str, effect: str) -> Claim:
    return Claim(
        id=id,
        source=f"{V1}, Appendix G",
        says=says,
        effect=f"{effect}, as a factor from 1 up",
        bound=bound,
        commands=commands.GRADIENT_FLOW,
        record=PLACES["gradient-flow"],
        measure=gradient_factor(judgement, bound),
    )


GRADIENT_CLAIMS = (
    # At small width alone the factor is 13, because of the head norm: values are small there.
    _gradient_claim(
        "gradients",
        "level-large-values",
        SAME_MAGNITUDE,
        "Gradients have the magnitude of those of softmax attention with h heads of 2d, up to a "
        "constant, so hyperparameters carry over.",
        "gradients of W_Q, W_K, W_V or W_O of V1 against softmax attention's, the worst, values "
        "of size 1 as in a model 2,500 wide",
    ),
    _gradient_claim(
        "gradients-constant",
        "drift-width",
        CONSTANT,
        "The ratio of the gradients is a constant.",
        "change of that ratio from width 64 to 256 at the first step, the worst matrix",
    ),
    _gradient_claim(
        "updates",
        "updates",
        SAME_MAGNITUDE,
        "AdamW's updates have the same size, as the gradients have.",
        "size of AdamW's updates of W_Q, W_K, W_V or W_O of V1 against softmax attention's, the "
        "worst",
    ),
    _gradient_claim(
        "head-norm-scale",
        "norm-gain-large-values",
        SAME_MAGNITUDE,
        "Early in training a head has size ‖x‖/√(2d) ≈ 1 − λ_init, so that its norm's Jacobian is "
        "Θ(1).",
        "the head norm's gain at the first step against 1, the worst layer, values of size 1 as "
        "in a model 2,500 wide",
    ),
)
