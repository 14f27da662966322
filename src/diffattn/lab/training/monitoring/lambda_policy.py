"""Policies for a λ outside [0, 1]; V1's and Shared DIFF's λ is unbounded."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffattn.lab.training.callbacks import StepLog
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.monitoring.batch_guard import is_decision
from diffattn.layers.parts import LAMBDA_NAMES, LAMBDA_STD

TOLERANCE = 1e-5
"""A λ this close to an edge of [0, 1] is inside: float32 vectors do not reach it exactly."""


class LambdaPolicy(StepLog):
    """After every update, checks the λ of each layer and acts by ``guard.lam``."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        super().__init__(path, keeps=is_decision)
        self.config = config

    @torch.no_grad()
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Clip or draw anew, and write a row."""
        blocks, optimizer = kwargs["model"].model.layers, kwargs["optimizer"]
        layers = {i: x.self_attn for i, x in enumerate(blocks) if hasattr(x.self_attn, "lam")}
        values = torch.stack([layer.lam().detach() for layer in layers.values()]).tolist()
        action, step = self.config.guard.lam, state.global_step + 1
        for (number, layer), before in zip(layers.items(), values, strict=True):
            # The batch guard handles a λ that is not finite.
            if -TOLERANCE <= before <= 1 + TOLERANCE or not math.isfinite(before):
                continue
            if action == "clip":
                clip_lambda(layer)
            else:
                # The seed follows from run, step and layer: a restarted run draws the same values.
                seed = hash((self.config.train.seed, step, number)) % 2**63
                draw_lambda_vectors(layer, torch.Generator().manual_seed(seed))
                for name in LAMBDA_NAMES:
                    for moment in optimizer.state[getattr(layer, name)].values():
                        moment.zero_()
            row = {"step": step, "action": action, "layer": number, "before": before}
            self.append({**row, "after": float(layer.lam())})


@torch.no_grad()
def clip_lambda(layer: Any) -> None:
    r"""Move λ to the nearest edge of [0, 1] by the smallest change of one vector.

    If λ > 1, it changes :math:`\lambda_{q1}`, so that :math:`e^{\lambda_{q1} \cdot \lambda_{k1}}
    = 1 - \lambda_\mathrm{init} + e^{\lambda_{q2} \cdot \lambda_{k2}}`. If λ < 0, it changes
    :math:`\lambda_{q2}` likewise. If λ_init is outside [0, 1], the right side may not be positive:
    then it changes the other vector. The change is a multiple of λ_k1 or λ_k2 respectively.
    """
    vectors = layer.lambda_bias
    q1, k1, q2, k2 = (getattr(vectors, name).double() for name in LAMBDA_NAMES)
    above = float(layer.lam()) > 1
    missing = float(above) - layer.lambda_init
    # Values of the two exponentials that put λ at the edge; at least one is above 0.
    first = float((q2 @ k2).exp()) + missing
    second = float((q1 @ k1).exp()) - missing
    if first > 0 if above else second <= 0:
        vectors.lambda_q1 += _shift_along(q1, k1, math.log(first))
    else:
        vectors.lambda_q2 += _shift_along(q2, k2, math.log(second))


@torch.no_grad()
def draw_lambda_vectors(layer: Any, generator: torch.Generator) -> None:
    """Draw a layer's λ vectors anew, from the distribution of a new layer."""
    for name in LAMBDA_NAMES:
        vector = getattr(layer, name)
        vector.copy_(torch.normal(0.0, LAMBDA_STD, vector.shape, generator=generator))


def _shift_along(q: Tensor, k: Tensor, product: float) -> Tensor:
    """The shortest change of q that makes q · k equal ``product``; for k = 0, no change."""
    return ((product - q @ k) / (k @ k).clamp(min=1e-30) * k).float()
