"""Training runs whose divergence is a result, not a failure."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffattn.files.io import log_facts, read_json, write_json
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.training.callbacks import METRICS, DivergenceError
from diffattn.lab.training.checkpoints import clear_checkpoints
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.distributed import require_one_process
from diffattn.lab.training.prepare import PreparedData
from diffattn.lab.training.run import RESULTS, train


@dataclass(frozen=True, kw_only=True, slots=True)
class StabilityRun(RunConfig):
    """A run that may diverge. Its weights are not kept."""

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, and that a divergence is recorded."""
        return {**RunConfig.resolved(self), "divergence": "recorded"}


def train_recorded(
    config: RunConfig, data: PreparedData, folder: Path, **options: Any
) -> dict[str, Any]:
    """Train one model as :func:`diffattn.lab.training.run.train` does, but record a divergence
    as the result.

    Returns:
        The content of ``results.json``. If a number was not finite, ``validation_loss`` is
        ``None``, ``diverged_step`` the step where it was met, and ``reason`` the message.
    """
    folder = Path(folder)
    require_one_process("a run of which divergence is recorded")
    try:
        train(config, data, folder, **options)
    except DivergenceError as error:
        with sole_writer(folder):
            results = {
                "schema": 1,
                "run": config.name,
                "validation_loss": None,
                "diverged_step": error.step,
                "reason": str(error),
                "metrics": log_facts(folder / METRICS),
            }
            write_json(folder / RESULTS, results)
            clear_checkpoints(folder / "checkpoints", config.engine.keep_every)
    if isinstance(config, StabilityRun):
        shutil.rmtree(folder / "model", ignore_errors=True)
    return read_json(folder / RESULTS)
