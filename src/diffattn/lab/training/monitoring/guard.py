"""The guard: it leaves out batches whose loss or gradient is bad, and mends a λ outside [0, 1]."""

import math
import sys
from collections import deque
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffattn.errors import CheckpointError
from diffattn.files.io import append_jsonl, cut_half_row, read_json, read_jsonl, sync, write_json
from diffattn.lab.stats.spikes import LEAST_GRADIENT, LEAST_LOSS, WINDOW, spike_steps
from diffattn.lab.training.callbacks import DivergenceError, OnMessage, StepLog, diverged
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.sharding import checkpoint_step
from diffattn.layers.parts import LAMBDA_NAMES, LAMBDA_STD

GUARD = "guard.jsonl"
_STATE = "guard_state.json"
_WAY_OUT = "Put the file back as it was, or choose another --out: a run cannot undo its decisions."


class GuardStop(DivergenceError):
    """A policy ends the run."""


class RolledBack(Exception):
    """Training has to begin again from an earlier step; not an error."""


class BatchGuard(StepLog):
    """Judges loss and gradient norm of every step before its update.

    A decision is written to ``guard.jsonl`` before it takes effect, and holds for every later start
    of the run. A roll-back goes to the last evaluation and not to the last checkpoint, so that the
    result does not depend on when a run was interrupted.

    Source: arXiv:2204.02311, section 5.1, which leaves out the batches before a spike too.
    """

    def __init__(self, folder: Path, config: RunConfig, on_message: OnMessage) -> None:
        super().__init__(folder / GUARD, keeps=is_decision)
        self.config, self.policy, self.on_message = config, config.guard, on_message
        self.trainer: Any = None
        cut_half_row(self.path)
        try:
            rows = read_jsonl(self.path) if self.path.exists() else []
        except CheckpointError as error:
            raise CheckpointError(f"{error} {_WAY_OUT}") from error
        self.decisions = [row for row in rows if is_decision(row)]
        self.losses: deque[float] = deque(maxlen=WINDOW)
        self.log_norms: deque[float] = deque(maxlen=WINDOW)
        self.step_losses: list[Tensor] = []
        self.sum_before: Tensor | None = None

    @property
    def left_out(self) -> set[int]:
        """Steps without an update, counted from 1."""
        spans = [range(row["first"], row["last"] + 1) for row in self.decisions]
        return {step for span in spans for step in span}

    def save(self, checkpoint: Path) -> None:
        """Write the losses and norms that later steps are compared with, and the steps left out."""
        left_out = sorted(s for s in self.left_out if s <= checkpoint_step(checkpoint))
        window = {"losses": list(self.losses), "log_norms": list(self.log_norms)}
        write_json(checkpoint / _STATE, {**window, "left_out": left_out})

    def load(self, checkpoint: Path) -> None:
        """Read the losses and norms that later steps are compared with."""
        facts = read_json(checkpoint / _STATE)
        self.losses.extend(facts["losses"])
        self.log_norms.extend(facts["log_norms"])

    def fits(self, checkpoint: Path) -> bool:
        """Whether a checkpoint has seen no batch that was left out later; ``CheckpointError`` if
        it left out a step that no decision leaves out."""
        now = {step for step in self.left_out if step <= checkpoint_step(checkpoint)}
        then = set(read_json(checkpoint / _STATE)["left_out"])
        if lost := then - now:
            raise CheckpointError(
                f"{self.path}: must leave out step {min(lost)}, as {checkpoint.name} did, got no "
                f"such decision. {_WAY_OUT}"
            )
        return then == now

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the sum of losses; it is restored if the batch is left out."""
        self.step_losses.clear()
        self.sum_before = self.trainer._tr_loss.clone()

    def allows(self, norm: float) -> bool:
        """Whether the update of the current step may happen, by the gradient norm before clipping.

        A policy may also end the run, or go back to the last evaluation: GuardStop, RolledBack.
        """
        step = self.trainer.state.global_step + 1
        if step in self.left_out:
            return False
        loss = float(torch.stack(self.step_losses).sum())
        fault = self._fault(loss, norm)
        if fault is None:
            self.losses.append(loss)
            self.log_norms.append(_log_norm(norm))
            return True
        policy, name, value = fault
        if policy == "stop":
            raise _stop_error(name, value, step)
        if policy == "roll_back":
            self.roll_back(step, name, value)
        self._decide("skip", step, step, step, name, value)
        return False

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any
    ) -> None:
        """Log no gradient norm for a step that was left out."""
        if state.global_step in self.left_out and "grad_norm" in logs:
            logs["grad_norm"] = None

    def roll_back(self, step: int, name: str, value: object) -> None:
        """Leave out all batches from the last evaluation before a failed step up to it.

        Raises:
            RolledBack, Terminated, KeyboardInterrupt: Training begins again, or a signal came.
            GuardStop: All these batches are left out already, or ``limit`` is reached.
        """
        every = self.config.train.evaluate_every
        target = max(0, (step - 1) // every * every)
        if self.left_out.issuperset(range(target + 1, step + 1)):  # also at step 0
            raise _stop_error(name, value, step)
        self._decide("roll_back", step, target + 1, step, name, value)
        trainer = self.trainer
        state = f"stopped after step {step}, from which the run goes back to step {target}"
        trainer.signals.require_none(state, trainer.args.device)
        raise RolledBack

    def _fault(self, loss: float, norm: float) -> tuple[str, str, float] | None:
        """The policy that applies, the quantity and its value."""
        for name, value in (("the loss", loss), ("the gradient norm", norm)):
            if not math.isfinite(value):
                return self.policy.not_finite, name, value
        if self.policy.spike != "ignore":
            if spike_steps([*self.losses, loss], LEAST_LOSS)[-1]:
                return self.policy.spike, "the loss", loss
            if spike_steps([*self.log_norms, _log_norm(norm)], LEAST_GRADIENT)[-1]:
                return self.policy.spike, "the gradient norm", norm
        return None

    def _decide(
        self, action: str, step: int, first: int, last: int, name: str, value: object
    ) -> None:
        if len(self.decisions) >= self.policy.limit:
            raise GuardStop(
                f"training: batches must be left out at most guard.limit={self.policy.limit} "
                f"times, got {name} of {value} at step {step}.",
                step,
            )
        row = {
            "step": step,
            "action": action,
            "reason": name,
            "value": str(value),  # JSON has no NaN
            "first": first,
            "last": last,
            "windows": step_windows(self.trainer.train_dataset, first, last, self.config),
        }
        append_jsonl(self.path, row)
        sync(self.path)  # a later checkpoint needs the decision on the disk
        self.decisions.append(row)
        steps = f"step {last} is" if first == last else f"steps {first} to {last} are"
        self.on_message(f"{name} was {value} at step {step}: {steps} left out ({action})")


def step_windows(dataset: Any, first: int, last: int, config: RunConfig) -> list[int]:
    """Indices of the training windows read in steps ``first`` to ``last``, counted from 1."""
    size = config.train.batch_sequences
    return [int(i) for i in dataset.indices[(first - 1) * size : last * size]]


def is_decision(row: dict[str, Any]) -> bool:
    """Whether a row of ``guard.jsonl`` leaves batches out; such rows stay after a roll-back."""
    return "first" in row


def _log_norm(norm: float) -> float:
    return math.log(max(norm, sys.float_info.min))


def _stop_error(name: str, value: object, step: int) -> GuardStop:
    message = str(diverged(name, value, step))
    if isinstance(value, float) and math.isfinite(value):
        message = (
            f"training: {name} must not stick out above the {WINDOW} steps before "
            f"(guard.spike), got {value} at step {step}."
        )
    return GuardStop(message, step)


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
