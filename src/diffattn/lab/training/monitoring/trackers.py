"""TensorBoard, Weights & Biases and trackio, through transformers."""

import copy
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers.integrations.integration_utils import (
    TensorBoardCallback,
    get_reporting_integration_callbacks,
)

from diffattn.errors import ConfigError
from diffattn.lab.training.config import TRACKERS, EngineConfig


def require_trackers(engine: EngineConfig) -> None:
    """Refuse trackers that are not installed."""
    for name in engine.trackers:
        modules = TRACKERS[name]
        if not any(find_spec(module) for module in modules):
            raise ConfigError(
                f"EngineConfig: report_to must name trackers that are installed, got {name!r} "
                f"without {' or '.join(modules)}. Install it: pip install {modules[0]}."
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
