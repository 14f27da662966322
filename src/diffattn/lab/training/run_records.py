"""Records of a run directory: ``run.json``, and a row of ``launches.jsonl`` per start."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from diffattn.lab.records.run import RunRecord, append_launch, hardware
from diffattn.lab.training.callbacks import OnMessage
from diffattn.lab.training.checkpoints import checkpoint_step
from diffattn.lab.training.config import EngineConfig, RunConfig, TrainConfig
from diffattn.lab.training.distributed import is_first, micro_batch, num_processes, run_device
from diffattn.lab.training.recall_config import RecallConfig
from diffattn.models.attention.cached_attention import chosen_backend
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.twins import flops_per_token, parameter_count


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
    """Choose the operator's backend for the shapes of this run: operator name to backend name.

    If documents are kept apart, a micro batch is one packed row.
    """
    dtype = torch.bfloat16 if config.precision == "bfloat16" else torch.float32
    batch, num_tokens = micro_batch(config), config.seq_len
    if apart:
        batch, num_tokens = 1, batch * num_tokens
    return {
        kind.attention.op: chosen_backend(
            kind, device=run_device(), dtype=dtype, batch=batch, num_tokens=num_tokens
        )
        for kind, _ in model.by_type()
    }
