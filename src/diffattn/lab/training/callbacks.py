"""The logs of a training run: losses, λ, costs, progress."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from diffattn.errors import DiffAttnError
from diffattn.files.io import (
    append_jsonl,
    read_json,
    read_jsonl,
    recover_jsonl,
    write_json,
    write_jsonl,
)
from diffattn.lab.records.memory import give_back, highest, reset_highest
from diffattn.lab.training.config import TrainConfig
from diffattn.lab.training.distributed import is_first, num_processes
from diffattn.ops.backends.chunk_layout import release_memory
from diffattn.probes.activations import layer_lambdas

OnProgress = Callable[[int, float | None], None]
"""Called with the steps done and the last logged training loss in nats per token, if any."""
OnMessage = Callable[[str], None]
METRICS = "metrics.jsonl"


class MetricsCallback(TrainerCallback):
    """Appends losses, and λ at each evaluation, to ``metrics.jsonl``.

    ``probe`` are the windows over which V2's λ is averaged: arguments of ``layer_lambdas``.
    """

    def __init__(
        self, folder: Path, config: TrainConfig, probe: Mapping[str, Any], on_progress: OnProgress
    ) -> None:
        self.path = folder / METRICS
        self.config, self.probe, self.on_progress = config, probe, on_progress
        self.loss: float | None = None
        self.report: Callable[[Mapping[str, Any]], None] = lambda values: None
        """Called with values that transformers does not send to trackers."""

    def restore(self, checkpoint: Path | None) -> None:
        """Go back to the rows of a checkpoint; later rows will be measured again."""
        if is_first():
            rows = read_jsonl(checkpoint / self.path.name) if checkpoint else []
            write_jsonl(self.path, rows)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report progress; log before every checkpoint, which does not keep the losses so far."""
        self.on_progress(state.global_step, self.loss)
        if control.should_save:
            control.should_log = True

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any
    ) -> None:
        """Write a row of training loss."""
        if "loss" in logs:
            self.loss = logs["loss"]
            self._append(
                state.global_step,
                train_loss=self.loss,
                learning_rate=logs["learning_rate"],
                gradient_norm=logs["grad_norm"],
            )

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, Any], **kwargs: Any
    ) -> None:
        """Write a row of validation loss, over all tokens and by part, and λ."""
        if "eval_loss" not in metrics:
            return
        parts = {name: entry["loss"] for name, entry in metrics["eval_parts"].items()}
        row = {"validation_loss": metrics["eval_loss"], "validation_parts": parts}
        lam = layer_lambdas(kwargs["model"], **self.probe)
        if lam is not None:
            row["lam"] = lam
            self.report({"lam": lam})
        self._append(state.global_step, **row)

    def _append(self, step: int, **values: Any) -> None:
        require_finite(step, values)
        if is_first():
            tokens = step * self.config.batch_tokens
            append_jsonl(self.path, {"step": step, "tokens": tokens, **values})


class StepLog(TrainerCallback):
    """A log of rows with a ``step``, which the first process writes. A run that goes back to an
    earlier step drops later rows, unless ``keeps`` says that a row stays."""

    def __init__(
        self, path: Path, keeps: Callable[[dict[str, Any]], bool] = lambda row: False
    ) -> None:
        self.path, self.keeps = path, keeps

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remove the rows of steps that are done again."""
        if is_first():
            rows, faults = recover_jsonl(self.path)
            left = [row for row in rows if row["step"] <= state.global_step or self.keeps(row)]
            if len(left) < len(rows) or faults:
                write_jsonl(self.path, left)

    def append(self, row: dict[str, Any]) -> None:
        """Write a row."""
        if is_first():
            append_jsonl(self.path, row)


def require_finite(step: int, values: Mapping[str, Any]) -> None:
    """Raise ``DivergenceError`` if a number is NaN or infinite.

    ``values`` gives a name to a measured number, a list or mapping of numbers, or ``None``.
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            value = list(value.values())
        for number in value if isinstance(value, list) else [value]:
            if number is not None and not math.isfinite(number):
                raise diverged(name, number, step)


class DivergenceError(DiffAttnError):
    """The numbers of a run have left the range of floats."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def diverged(name: str, got: object, step: int) -> DivergenceError:
    """The error of a diverged run: ``name`` is the quantity that was not finite."""
    message = (
        f"training: {name} must stay finite, got {str(got).rstrip('.')} at step {step}. "
        "A lower train.learning_rate may help."
    )
    return DivergenceError(message, step)


class CostCallback(TrainerCallback):
    """Keeps time and memory apart from results, in ``costs.json``; adds up over restarts.

    A step is timed in CPU seconds of the process, which other load does not stretch; with a GPU,
    in wall seconds. The median step gives the speed: start-up and evaluation do not change it.
    """

    def __init__(self, folder: Path, run: str, config: TrainConfig) -> None:
        self.path = folder / "costs.json"
        self.run, self.config = run, config
        self.earlier = read_json(self.path) if self.path.exists() else {}
        release_memory()  # forget earlier runs of this process in the peak
        give_back()
        reset_highest()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self.start_wall, self.start_cpu = time.perf_counter(), time.process_time()
        self.steps: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the step's clock."""
        self.began = _step_clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the step's clock."""
        self.steps.append(_step_clock() - self.began)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the costs so far beside the checkpoint."""
        self.write()

    def write(self) -> None:
        """Write ``costs.json``: the costs of the first process."""
        if not is_first():
            return
        earlier = self.earlier
        step = statistics.median(self.steps) if self.steps else earlier.get("step_seconds")
        # CPU seconds of one process cover only its share of a step: this is one process's speed.
        share = 1 if torch.cuda.is_available() else num_processes()
        wall, cpu = time.perf_counter() - self.start_wall, time.process_time() - self.start_cpu
        write_json(
            self.path,
            {
                "schema": 1,
                "run": self.run,
                "wall_seconds": earlier.get("wall_seconds", 0.0) + wall,
                "cpu_seconds": earlier.get("cpu_seconds", 0.0) + cpu,
                "step_seconds": step,
                "tokens_per_second": self.config.batch_tokens / step / share if step else None,
                "peak_bytes": max(earlier.get("peak_bytes", 0), peak_bytes()),
            },
        )


def peak_bytes() -> int:
    """Most memory held at once: of the GPU if there is one, else of this process."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else highest()


def _step_clock() -> float:
    """CPU seconds of this process; with a GPU, wall seconds after the GPU's work is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()
