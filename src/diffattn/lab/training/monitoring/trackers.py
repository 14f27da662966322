"""TensorBoard, Weights & Biases and trackio, through transformers."""

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.training.engine import TRACKERS, EngineConfig

_TENSORBOARD_FOLDER = "TENSORBOARD_LOGGING_DIR"  # where transformers reads the folder


def require_trackers(engine: EngineConfig) -> None:
    """Refuse trackers that are not installed."""
    for name in engine.trackers:
        modules = TRACKERS[name]
        if not any(find_spec(module) for module in modules):
            raise ConfigError(
                f"EngineConfig: report_to must name trackers that are installed, got {name!r} "
                f"without {' or '.join(modules)}. Install it: pip install {modules[0]}."
            )


@contextmanager
def tracked_in(folder: Path, engine: EngineConfig) -> Iterator[None]:
    """While a trainer is made, send TensorBoard's files to ``tracking/`` of the run directory.

    A folder that the environment variable already names is left in place.
    """
    if "tensorboard" not in engine.trackers or _TENSORBOARD_FOLDER in os.environ:
        yield
        return
    os.environ[_TENSORBOARD_FOLDER] = str(folder / "tracking")
    try:
        yield
    finally:
        del os.environ[_TENSORBOARD_FOLDER]


def report(trainer: Any, values: Mapping[str, Any]) -> None:
    """Send values that transformers does not log to the trackers of a ``transformers.Trainer``."""
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

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
