"""How unstable a training run was: spikes of its loss and gradient norm, clipping, divergence.

The definitions below were fixed, in a separate commit, before the first run of the stability study.
Hard batches raise the loss of any model. So runs are compared that read the same tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WINDOW = 32
"""A step is compared with so many steps before it. The first ``WINDOW`` steps are not judged."""
DEVIATIONS = 5.0
"""A spike exceeds the window's median by more than so many robust standard deviations."""
LEAST_LOSS = 0.1
"""A spike of the loss exceeds the window's median by more than this too, in nats."""
LEAST_GRADIENT = math.log(2.0)
"""Likewise for the natural logarithm of the gradient norm: a factor of 2."""
_ROBUST = 1.4826
"""Standard deviation of a normal distribution divided by its median absolute deviation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stability:
    """The measures of one run. All shares are from 0 (stable) to 1."""

    diverged: bool
    """Whether a number was not finite, or the final loss is at least ``ln V``, that of a guess."""
    diverged_step: int | None
    """Steps done when a number was not finite; ``None`` if all were finite."""
    loss: float
    """Final validation loss in nats per token, at most ``ln V``; ``ln V`` if the run diverged."""
    loss_spike_share: float
    """Share of the judged steps that are spikes, like the next."""
    gradient_spike_share: float
    clipped_share: float
    """Share of all steps."""
    median_gradient_norm: float | None
    """Before clipping, over judged steps made; ``None`` if none was made."""


def spike_steps(values: Sequence[float] | np.ndarray, least: float) -> np.ndarray:
    r"""Find values that stick out above the 32 values before them.

    .. math:: x_t - m_t > \max(5 \cdot 1.4826\,\mathrm{median}_i |x_i - m_t|,\ \text{least}),
        \quad m_t = \mathrm{median}_i\, x_i, \quad t - 32 \le i < t

    Source: ours; fixed before the study was run.

    Returns:
        bool ``[n]``, one per value; the first 32 are False.
    """
    x = np.asarray(values, dtype=np.float64)
    spikes = np.zeros(len(x), dtype=bool)
    if len(x) <= WINDOW:
        return spikes
    before = np.lib.stride_tricks.sliding_window_view(x, WINDOW)[:-1]  # [n - WINDOW, WINDOW]
    middle = np.median(before, axis=-1)
    deviation = _ROBUST * np.median(np.abs(before - middle[:, None]), axis=-1)
    spikes[WINDOW:] = x[WINDOW:] - middle > np.maximum(DEVIATIONS * deviation, least)
    return spikes


def stability(
    losses: Sequence[float],
    gradient_norms: Sequence[float],
    *,
    num_steps: int,
    vocab_size: int,
    max_gradient_norm: float,
    validation_loss: float | None,
) -> Stability:
    """Measure one run.

    Each step that a diverged run did not make counts as both kinds of spike and as clipped.
    Otherwise a run could look stable by ending early.

    Args:
        losses: ``[n]``, training loss of every step made, in nats per token.
        gradient_norms: ``[n]``, norm of the gradient of every step made, before clipping.
        num_steps: Steps planned, more than 32 and at least n.
        max_gradient_norm: Norm above which gradients are clipped; 0 for never.
        validation_loss: ``None`` if the run met a number that is not finite.
    """
    steps = len(losses)
    assert steps == num_steps or (validation_loss is None and steps < num_steps), "a row per step"
    ceiling, lost, judged = math.log(vocab_size), num_steps - steps, num_steps - WINDOW
    norms = np.asarray(gradient_norms, dtype=np.float64)
    logs = np.log(np.maximum(norms, np.finfo(np.float64).tiny))
    clipped = norms > max_gradient_norm if max_gradient_norm else np.zeros(steps, dtype=bool)

    def share(spikes: np.ndarray) -> float:
        return min(1.0, (int(spikes.sum()) + lost) / judged)

    return Stability(
        diverged=validation_loss is None or validation_loss >= ceiling,
        diverged_step=steps if validation_loss is None else None,
        loss=ceiling if validation_loss is None else min(validation_loss, ceiling),
        loss_spike_share=share(spike_steps(losses, LEAST_LOSS)),
        gradient_spike_share=share(spike_steps(logs, LEAST_GRADIENT)),
        clipped_share=(int(clipped.sum()) + lost) / num_steps,
        median_gradient_norm=float(np.median(norms[WINDOW:])) if steps > WINDOW else None,
    )


def rate_sensitivity(losses: Sequence[float]) -> float:
    r"""Mean loss over learning rates, less the loss at the best learning rate.

    .. math:: \frac{1}{n} \sum_\eta \min(L(\eta), \ln V) - \min_\eta L(\eta)

    Source: arXiv:2309.14322, section 2.2 (there with the loss at initialisation for ln V, and over
    rates that are evenly spaced in logarithm; here all rates have equal weight).

    ``losses``: :attr:`Stability.loss` of each rate.
    """
    return sum(losses) / len(losses) - min(losses)
