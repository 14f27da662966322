"""Logs and records of a run: losses, λ, costs, progress, ``run.json`` and ``launches.jsonl``."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
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
from diffattn.lab.records.run import RunRecord, append_launch, hardware
from diffattn.lab.training.config import EngineConfig, RecallConfig, RunConfig, TrainConfig
from diffattn.lab.training.distributed import is_first, micro_batch, num_processes, run_device
from diffattn.lab.training.sharding import checkpoint_step
from diffattn.models.attention.cached_attention import chosen_backend
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.twins import flops_per_token, parameter_count
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
        """Report progress, and have a row of losses written at each checkpoint."""
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

    A step is timed in CPU seconds of the process, which a busy or another processor of the same
    name can double; with a GPU, in wall seconds. The median step gives the speed: start-up and
    evaluation do not change it.
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


def record_launch(
    folder: Path, checkpoint: Path | None, engine: EngineConfig, on_message: OnMessage
) -> None:
    """Append this start of a run from a checkpoint to ``launches.jsonl``, and say if the number of
    CPU threads has changed."""
    if not is_first():
        return
    threads = torch.get_num_threads()
    before = append_launch(
        folder,
        step=0 if checkpoint is None else checkpoint_step(checkpoint),
        device=run_device(),
        threads=threads,
        engine=_executed(engine),
    )
    earlier = before.get("threads", threads) if checkpoint and before else threads
    if run_device() == "cpu" and earlier != threads:
        on_message(
            f"the run had OMP_NUM_THREADS={earlier} and goes on with {threads}: the last bits of "
            "its losses may differ"
        )


def record(
    config: RunConfig | RecallConfig,
    resolved: dict[str, Any],
    facts: dict[str, Any],
    engine: EngineConfig,
) -> RunRecord:
    """The content of ``run.json``. ``resolved``: settings; ``facts``: more facts on the model."""
    model, apart = config.model, isinstance(config, RunConfig) and config.windows.apart
    gpu = {} if run_device() == "cpu" else {"gpu": torch.cuda.get_device_name()}
    return RunRecord(
        name=config.name,
        config=resolved,
        seed=config.train.seed,
        backends=chosen_backends(model, config.train, apart=apart),
        device=run_device(),
        hardware=hardware() | gpu,
        engine=_executed(engine),
        model={
            "parameters": parameter_count(model),
            "non_embedding_parameters": parameter_count(model, embeddings=False),
            "train_flops_per_token": flops_per_token(model, config.train.seq_len, training=True),
            **facts,
        },
    )


def _executed(engine: EngineConfig) -> dict[str, Any]:
    """The engine's settings and the number of processes; ``parallel`` is ``None`` for one."""
    parallel = engine.parallel if num_processes() > 1 else None
    return asdict(engine) | {"processes": num_processes(), "parallel": parallel}


def chosen_backends(
    model: DiffTransformerConfig, config: TrainConfig, *, apart: bool
) -> dict[str, str]:
    """Choose the operator's backend for the shapes of this run: operator name to backend name."""
    shape: dict[str, Any] = {
        "batch": micro_batch(config),
        "num_tokens": config.seq_len,
        "apart": apart,
    }
    dtype = torch.bfloat16 if config.precision == "bfloat16" else torch.float32
    return {
        kind.attention.op: chosen_backend(kind, device=run_device(), dtype=dtype, **shape)
        for kind, _ in model.by_type()
    }
