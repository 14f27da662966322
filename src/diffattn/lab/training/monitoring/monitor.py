"""The guard, measurements and trackers of one start of a run, and its post-mortem."""

import copy
import json
import statistics
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.integrations.integration_utils import (
    TensorBoardCallback,
    get_available_reporting_integrations,
    get_reporting_integration_callbacks,
)

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.files.io import recover_jsonl, write_json, write_jsonl
from diffattn.lab.training.callbacks import (
    METRICS,
    DivergenceError,
    MetricsCallback,
    OnMessage,
    StepLog,
    peak_bytes,
    require_finite,
)
from diffattn.lab.training.config import EngineConfig, RunConfig
from diffattn.lab.training.distributed import micro_batch, require_one_process
from diffattn.lab.training.monitoring.guard import (
    GUARD,
    BatchGuard,
    GuardStop,
    LambdaPolicy,
    step_windows,
)
from diffattn.lab.training.sharding import last_checkpoint
from diffattn.layers.saved_names import saved_name
from diffattn.models.chunked_loss import IGNORED
from diffattn.models.twins import flops_per_token
from diffattn.probes.activations import layer_activations
from diffattn.probes.gradients import GradientProbe


def require_trackers(engine: EngineConfig) -> None:
    """Refuse trackers that are not installed."""
    for name in engine.trackers:
        if name not in get_available_reporting_integrations():
            raise ConfigError(
                f"engine.report_to must name trackers that are installed, got {name!r}. "
                f"Install it: pip install {name}."
            )


def track_in(folder: Path, trainer: Any) -> None:
    """Have TensorBoard write to ``folder``, unless TENSORBOARD_LOGGING_DIR names another one."""
    for tracker in trainer.callback_handler.callbacks:
        if isinstance(tracker, TensorBoardCallback) and tracker.logging_dir is None:
            tracker.logging_dir = str(folder)


def report(trainer: Any, values: Mapping[str, Any]) -> None:
    """Send values that transformers does not log to the trackers of a ``transformers.Trainer``."""
    kinds = tuple(get_reporting_integration_callbacks(trainer.args.report_to))
    for tracker in trainer.callback_handler.callbacks:
        if isinstance(tracker, kinds):
            control = copy.copy(trainer.control)  # a tracker may change it
            logs = flat(values)
            tracker.on_log(trainer.args, trainer.state, control, logs=logs, model=trainer.model)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Nested numbers as name -> number: ``lam/0`` for a list's first, ``parts/quarter_1``."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, list):
            value = {str(place): item for place, item in enumerate(value)}
        if isinstance(value, Mapping):
            numbers |= flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            numbers[f"{prefix}{name}"] = value
    return numbers


class WatchCallback(StepLog):
    """Appends a row every ``engine.watch_every`` steps.

    It measures on validation tokens, without gradients or random numbers: the run's result is the
    same without it, to the bit. All processes measure, because sharded models need them all.
    """

    def __init__(
        self, folder: Path, config: RunConfig, probe: Mapping[str, Any], trainer: Any
    ) -> None:
        super().__init__(folder / "watch.jsonl")
        self.config, self.probe, self.trainer = config, probe, trainer
        self.seconds: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the step's clock."""
        self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the step's clock; measure at the chosen steps."""
        every, step = self.config.engine.watch_every, state.global_step
        if every is None:
            return
        self.seconds.append(time.perf_counter() - self.began)
        if step % every:
            return
        layers = layer_activations(kwargs["model"], **self.probe)
        norm = self.trainer.gradient_norm()
        for number, layer in enumerate(layers):
            require_finite(step, {f"{name} of layer {number}": x for name, x in layer.items()})
        require_finite(step, {"gradient_norm": norm})
        train, peak = self.config.train, self.config.engine.peak_flops
        # By the median step's wall time since the last row.
        speed = train.batch_tokens / statistics.median(self.seconds)
        flops = flops_per_token(self.config.model, train.seq_len, training=True)
        row: dict[str, Any] = {
            "step": step,
            "tokens": step * train.batch_tokens,
            "gradient_norm": norm,
            "layers": layers,
            "lam_below_0": [i for i, x in enumerate(layers) if x.get("lam_min", 0.0) < 0],
            "lam_above_1": [i for i, x in enumerate(layers) if x.get("lam_max", 0.0) > 1],
            "speed": {
                "tokens_per_second": speed,
                "mfu": None if peak is None else speed * flops / peak,
                "peak_bytes": peak_bytes(),
            },
        }
        self.seconds.clear()
        self.append(row)
        report(self.trainer, {name: row[name] for name in ("layers", "speed")})


GRADIENTS = "gradients.jsonl"


class GradientFlowCallback(StepLog):
    """Appends a row of :class:`GradientProbe` at each of ``config.gradient_steps``.

    It reads the tensors of the step and draws no random numbers: the run's result is the same
    without it, to the bit. A step that is left out has no row: its ``gradient_norm`` is ``None``.
    """

    def __init__(self, folder: Path, config: RunConfig, trainer: Any) -> None:
        require_one_process("a run whose gradients are measured")
        super().__init__(folder / GRADIENTS)
        self.config, self.trainer = config, trainer
        self.probe: GradientProbe | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the file, which stays empty where every chosen step is left out."""
        super().on_train_begin(args, state, control, **kwargs)
        if not self.path.exists():
            write_jsonl(self.path, [])

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach the probe before a chosen step."""
        if state.global_step + 1 in self.config.gradient_steps:
            self.probe = GradientProbe(kwargs["model"])
            self.probe.begin()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the weights, and the factor of the clipping that has happened, as torch has it."""
        if self.probe is None:
            return
        norm, most = self.trainer.gradient_norm(), self.config.train.max_grad_norm
        if norm is None:
            self.probe.end()
            self.probe = None
        else:
            factor = min(1.0, most / (norm + 1e-6)) if most else 1.0
            self.probe.before_step(kwargs["optimizer"], factor)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure and write."""
        if self.probe is not None:
            step = state.global_step + 1
            row = {"step": step, "tokens": step * self.config.train.batch_tokens}
            norm, layers = self.trainer.gradient_norm(), self.probe.after_step()
            self.append({**row, "gradient_norm": norm, "layers": layers})
            self.probe = None


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

        Returns the error that ends the run.
        """
        rolls_back = self.config.guard.not_finite == "roll_back"
        if self.guard is not None and rolls_back and not isinstance(error, GuardStop):
            try:
                self.guard.roll_back(error.step, "a number", "nan or infinity")
            except GuardStop as stop:
                error = stop
        write_postmortem(self.folder, self.config, trainer, error)
        self.on_message(f"the state of the run at its end: {self.folder / POSTMORTEM}")
        return error


POSTMORTEM = "postmortem.json"


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
        "losses_before": losses[-50:],
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
