"""The guard, measurements and trackers of one start of a run, and its post-mortem."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diffattn.errors import DiffAttnError
from diffattn.files.io import recover_jsonl, write_json
from diffattn.lab.training.callbacks import METRICS, DivergenceError, MetricsCallback, OnMessage
from diffattn.lab.training.checkpoints import last_checkpoint
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.distributed import micro_batch
from diffattn.lab.training.monitoring.guard import (
    GUARD,
    BatchGuard,
    GuardStop,
    LambdaPolicy,
    step_windows,
)
from diffattn.lab.training.monitoring.watching import GradientFlowCallback, WatchCallback, report
from diffattn.layers.saved_names import saved_name
from diffattn.models.chunked_loss import IGNORED
from diffattn.probes.activations import layer_activations


class Monitor:
    """Watches over one run."""

    def __init__(self, folder: Path, config: RunConfig, on_message: OnMessage) -> None:
        self.folder, self.config, self.on_message = folder, config, on_message
        is_guarded = config.guard.judges_batches
        self.guard = BatchGuard(folder, config, on_message) if is_guarded else None
        # The guard comes before the callbacks that read its logs.
        self.first_callbacks = [] if self.guard is None else [self.guard]

    def last_checkpoint(self) -> Path | None:
        """The newest whole checkpoint that has learned from no batch that is now left out."""
        fits = {} if self.guard is None else {"fits": self.guard.fits}
        return last_checkpoint(self.folder / "checkpoints", self.on_message, **fits)

    def attach(self, trainer: Any, metrics: MetricsCallback, probe: Mapping[str, Any]) -> None:
        """Connect the guard to a trainer that was made with ``first_callbacks``, and add the
        callbacks that measure; ``metrics`` sends λ to the trackers too."""
        trainer.guard = self.guard
        if self.guard is not None:
            self.guard.trainer = trainer
        if self.config.guard.lam != "report" and self.config.model.uses("lambda_vectors"):
            trainer.add_callback(LambdaPolicy(self.folder / GUARD, self.config))
        if self.config.gradient_steps:
            trainer.add_callback(GradientFlowCallback(self.folder, self.config, trainer))
        metrics.report = partial(report, trainer)
        trainer.add_callback(WatchCallback(self.folder, self.config, probe, trainer))

    def handle_divergence(self, error: DivergenceError, trainer: Any) -> DivergenceError:
        """Handle a diverged run: roll back if the guard allows it, else write the post-mortem.

        Returns the error that ends the run. A run whose divergence is a result has no post-mortem.
        """
        rolls_back = self.config.guard.not_finite == "roll_back"
        if self.guard is not None and rolls_back and not isinstance(error, GuardStop):
            try:
                self.guard.roll_back(error.step, "a number", "nan or infinity")
            except GuardStop as stop:
                error = stop
        if "divergence" not in self.config.resolved():
            write_postmortem(self.folder, self.config, trainer, error)
            self.on_message(f"the state of the run at its end: {self.folder / POSTMORTEM}")
        return error


POSTMORTEM = "postmortem.json"
_ROWS = 50


def write_postmortem(folder: Path, config: RunConfig, trainer: Any, error: DivergenceError) -> None:
    """Compute the step that failed once more, and write losses, activations and gradients.

    The weights are the run's last. If the guard judges batches, the failed step has not changed
    them; else they include all updates until a log or evaluation found the failure. The trainer's
    gradients are overwritten.
    """
    step = max(1, error.step)
    rows = recover_jsonl(folder / METRICS)[0]
    losses = [[row["step"], row["train_loss"]] for row in rows if "train_loss" in row]
    weights = trainer.model.named_parameters()
    facts = {
        "kind": "postmortem",
        "schema": 1,
        "run": config.name,
        "reason": str(error),
        "step": error.step,
        "updates_made": trainer.state.global_step,
        "windows": step_windows(trainer.train_dataset, step, step, config),
        "losses_before": losses[-_ROWS:],
        "weights_not_finite": [saved_name(n) for n, x in weights if not x.isfinite().all()],
        **_diagnosis(config, trainer, step),
    }
    if trainer.is_world_process_zero():
        text = json.dumps(facts)  # JSON has no NaN or infinity: they become text
        write_json(folder / POSTMORTEM, json.loads(text, parse_constant=lambda x: str(float(x))))


def _diagnosis(config: RunConfig, trainer: Any, step: int) -> dict[str, Any]:
    """Activations, λ and gradient norms for the step's batch, or the error that prevented them."""
    facts: dict[str, Any] = {"layers": None, "gradient_norms": None, "stopped_by": None}
    size, micro = config.train.batch_sequences, micro_batch(config.train)
    items = [trainer.train_dataset[i] for i in range((step - 1) * size, step * size)]
    batches = [trainer.data_collator(items[i : i + micro]) for i in range(0, size, micro)]
    predicted = sum(int((batch["labels"][:, 1:] != IGNORED).sum()) for batch in batches)
    model: Any = trainer.model
    try:
        first = batches[0]
        facts["layers"] = layer_activations(model, first["input_ids"], first.get("position_ids"))
        model.zero_grad()
        model.train()
        for batch in batches:
            inputs = trainer._prepare_inputs(batch)
            model(**inputs, num_items_in_batch=predicted).loss.backward()
        facts["gradient_norms"] = gradient_norms(model)
    except DiffAttnError as fault:  # the operator refuses a λ that is not finite
        facts["stopped_by"] = str(fault)
    return facts


def gradient_norms(model: nn.Module) -> dict[str, float]:
    """Group of parameters -> gradient norm. A group is a module; its λ parameters are apart."""
    groups: dict[str, list[torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            group, _, last = saved_name(name).rpartition(".")
            group += ".lambda" * last.startswith("lambda_")
            groups.setdefault(group, []).append(parameter.grad)
    return {
        group: float(torch.stack([x.double().norm() for x in grads]).norm())
        for group, grads in groups.items()
    }
