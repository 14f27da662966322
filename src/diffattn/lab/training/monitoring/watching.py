"""Measurements during a run, in ``watch.jsonl`` and ``gradients.jsonl``, and trackers."""

import copy
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.integrations.integration_utils import (
    TensorBoardCallback,
    get_available_reporting_integrations,
    get_reporting_integration_callbacks,
)

from diffattn.errors import ConfigError
from diffattn.files.io import write_jsonl
from diffattn.lab.training.callbacks import StepLog, peak_bytes, require_finite
from diffattn.lab.training.config import EngineConfig, RunConfig
from diffattn.lab.training.distributed import require_one_process
from diffattn.models.twins import flops_per_token
from diffattn.probes.activations import layer_activations
from diffattn.probes.gradients import GradientProbe


def require_trackers(engine: EngineConfig) -> None:
    """Refuse trackers that are not installed."""
    for name in engine.trackers:
        if name not in get_available_reporting_integrations():
            raise ConfigError(
                f"EngineConfig: report_to must name trackers that are installed, got {name!r}. "
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
