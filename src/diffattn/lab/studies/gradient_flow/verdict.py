"""What would count for and against the claims of Appendix G, fixed before the first run.

The appendix says that the gradients of differential attention have the magnitude of those of
softmax attention with h heads of 2d, up to a constant factor; that the head norm's Jacobian is
Θ(1), as ‖x‖/√(2d) ≈ 1 − λ_init early in training; hence that AdamW's updates are alike.

- *Level.* Per seed, the largest factor, either way, between the two models' gradients over W_Q,
  W_K, W_V, W_O and the judged phases; a phase is the geometric mean over layers and its steps.
  Beyond :data:`LEVEL` it is not "the same magnitude".
- *Drift.* Per seed, the largest change of that ratio over the four matrices: from the shallowest to
  the deepest and from the narrowest to the widest model at the first step, from λ_init = 0.5 to 0.8
  there, and from the first step to the last judged phase. Beyond :data:`DRIFT` it is no constant.
- *Null.* The level of two softmax models of different seeds. A phase is judged only where the upper
  end of its interval lies below :data:`LEVEL`: elsewhere seeds alone differ as much.
- *Instrument.* Softmax attention times ½ must show gradients of W_V and W_O within
  :data:`HALF` of softmax attention's at the first step, or nothing is judged.
- *Updates.* AdamW moves every weight by about the learning rate whatever its gradient's size, so
  that updates are alike by construction. If the halved control's updates are alike too, this says
  nothing of gradients: uninformative. What a step does take off the loss per unit of learning rate,
  to first order, is no such matter of course, and is judged as *level* is.
- *Large values.* Level and the norm's gain once more where values start with size 1, as they do
  in a model as wide as the papers': a refutation at small width alone is one of small width.
- *Norm.* Per seed, the largest factor over layers between ‖x‖/√(2d) and 1 − λ_init, and between the
  norm's gain (1 − λ_init) w √(2d)/‖x‖ and 1, at the first step. Beyond :data:`LEVEL` it is not "≈".

*Agrees* if the 95 % interval over at least three seeds lies below the bound, *disagrees* if above,
*inconclusive* otherwise.
"""

from collections.abc import Sequence
from typing import Any

LEVEL = 2.0
"""Factor up to which magnitudes are the same."""
DRIFT = 1.5
"""Factor up to which a ratio is constant."""
HALF = (0.4, 0.6)
LEAST_SEEDS = 3


def judged(values: Sequence[float], low: float | None, high: float | None, bound: float) -> str:
    """The verdict on factors, from 1 up, that the claim says are below a bound.

    Args:
        values: One per seed.
        low: Lower end of their interval.
        high: Upper end.
        bound: :data:`LEVEL` or :data:`DRIFT`.
    """
    if len(values) < LEAST_SEEDS or low is None or high is None:
        return "inconclusive"
    return "agrees" if high < bound else "disagrees" if low > bound else "inconclusive"


def sentence(judgements: Sequence[dict[str, Any]]) -> str:
    """The verdicts in one line each, the reader's first."""
    if not judgements:
        return "Nothing is judged: there are no judgements."
    parts = [f"{row['says']}: {row['verdict']} ({_numbers(row)})" for row in judgements]
    return ". ".join(parts) + "."


def _numbers(row: dict[str, Any]) -> str:
    if row["mean"] is None:
        return str(row["why"])
    numbers = f"factor {row['mean']:.2f}"
    if row["low"] is not None:
        numbers += f", {row['low']:.2f} to {row['high']:.2f}"
    numbers += f", bound {row['bound']:g}"
    return f"{numbers}; {row['why']}" if row["why"] else numbers
