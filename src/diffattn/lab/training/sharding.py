"""Models sharded over several processes (FSDP2), and checkpoints that all of them write."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import AutocastKwargs
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, Trainer
from transformers.trainer import SCHEDULER_NAME

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.files.folders import write_manifest
from diffattn.lab.training.checkpoints import not_whole
from diffattn.lab.training.config import EngineConfig, InitConfig
from diffattn.lab.training.distributed import (
    from_first,
    is_first,
    num_processes,
    process_index,
    together,
    wait_for_all,
    wait_for_files,
)
from diffattn.lab.training.initial import initial_model
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

_SHARDS = "optimizer-*-of-*.safetensors"


def require_shardable(engine: EngineConfig) -> None:
    """Refuse to shard without enough processes or with an old transformers."""
    if engine.shards(num_processes()) == 1:
        return
    if not hasattr(PreTrainedModel, "is_distributed_loading_by_transformers"):
        raise ConfigError(
            "training: engine.parallel 'fsdp' needs transformers 5.23 or newer, got an older one."
        )


def untrained_model(
    config: DiffTransformerConfig,
    engine: EngineConfig,
    checkpoint: Path | None,
    scratch: Path,
    init: InitConfig | None = None,
) -> DiffTransformerForCausalLM:
    """The model at the start of a launch, whole or this process's shard.

    With FSDP every parameter is split over the processes, and a decoder block is gathered for its
    computation. transformers shards while it reads weights, so that only the first process ever
    holds all of them. accelerate's FSDP needs a GPU and casts λ to bfloat16 in mixed precision.

    Args:
        checkpoint: A sharded model reads its weights; for a whole model the trainer does so later.
        scratch: A folder for the initial weights of a sharded model; it is removed again.
    """
    if engine.parallel != "fsdp":
        return initial_model(config, init if checkpoint is None else None)
    from transformers.distributed import DistributedConfig

    if checkpoint is None:
        from_first(lambda: initial_model(config, init).save_pretrained(scratch, remote_code=False))
    model = DiffTransformerForCausalLM.from_pretrained(
        checkpoint or scratch, distributed_config=DistributedConfig(fsdp_size=num_processes())
    )
    wait_for_all()
    if is_first():
        shutil.rmtree(scratch, ignore_errors=True)
    require_sharded(model)
    return model


def apply_engine(trainer: Any, engine: EngineConfig) -> None:
    """Apply the settings of the engine to a trainer and its model."""
    trainer.model.loss_chunk_tokens, trainer.model.skips_logits = engine.loss_chunk_tokens, True
    if engine.activation_checkpointing:
        checkpoint_activations(trainer.model)
        # Autocast's cache would keep bfloat16 copies of all matrices until the forward pass ends.
        trainer.accelerator.autocast_handler = AutocastKwargs(cache_enabled=False)


def checkpoint_activations(model: Any, options: dict[str, Any] | None = None) -> None:
    """Have the backward pass compute activations again; transformers 5.23 renamed the method."""
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)(options)


def require_sharded(model: torch.nn.Module) -> None:
    """Require that every process holds only its share of every parameter.

    Some engines train with whole copies, without a warning, where they cannot shard.
    """
    for name, parameter in model.named_parameters():
        placements = parameter.placements if isinstance(parameter, DTensor) else ()
        if not any(placement.is_shard() for placement in placements):
            raise DiffAttnError(
                f"training: 'fsdp' must shard every parameter, got {name} as a whole."
            )


def save_model(model: Any, folder: Path, *, remote_code: bool = False) -> None:
    """Write configuration and weights as one process would; all processes take part.

    transformers would write tied weights of a sharded model twice. ``remote_code`` adds the model's
    code and a card.
    """
    if not is_sharded(model):
        if is_first():
            model.save_pretrained(folder, remote_code=remote_code)
        return
    from transformers.distributed import gather_full_state_dict

    weights = gather_full_state_dict(model)
    if is_first():
        config = deepcopy(model.config)
        del config.distributed_config
        with torch.device("meta"):
            whole = DiffTransformerForCausalLM(config)
        whole.load_state_dict(weights, assign=True)
        whole.tie_weights()
        whole.save_pretrained(folder, remote_code=remote_code)


def is_sharded(model: Any) -> bool:
    """Whether the processes hold shards of a model."""
    return bool(getattr(model, "is_distributed_loading_by_transformers", False))


def require_same_parts(checkpoint: Path | None, engine: EngineConfig) -> None:
    """Refuse a checkpoint whose parts do not match these processes.

    Whole copies (DDP) continue on any number of processes, a sharded run on the same number.
    """
    if checkpoint is None:
        return
    counts = {int(path.stem.split("-")[3]) for path in checkpoint.glob(_SHARDS)}
    written = "fsdp" if counts else "ddp"
    if engine.parallel != written:
        raise ConfigError(
            f"training: engine.parallel must be {written!r}, as in {checkpoint.name}, to continue "
            f"the run, got {engine.parallel!r}."
        )
    if counts and counts != {num_processes()}:
        raise ConfigError(
            f"training: a sharded run must be continued by as many processes as wrote "
            f"{checkpoint.name}, {counts.pop()}, got WORLD_SIZE={num_processes()}."
        )


@contextmanager
def written_by_all(folder: Path) -> Iterator[None]:
    """A folder that all processes write to. It gets a manifest, or is removed after an error."""
    if is_first():
        shutil.rmtree(folder, ignore_errors=True)
    wait_for_all()
    try:
        with together():
            yield
        # NCCL, which comes next, has less patience than a large hash may take.
        from_first(lambda: write_manifest(folder))
    # safetensors and torch raise these for a full disk, the tokenizer's Rust writer bare Exception.
    except Exception as error:
        if is_first():
            shutil.rmtree(folder, ignore_errors=True)
        raise not_whole(folder, error) from error


def save_optimizer_shard(trainer: Trainer, folder: Path) -> None:
    """Add the optimizer's state and the schedule to a checkpoint of a sharded model:
    ``save_only_model`` keeps transformers from writing them."""
    state = {
        f"{index}.{name}": (value.to_local() if isinstance(value, DTensor) else value)
        .detach()
        .cpu()
        .contiguous()
        for index, values in trainer.optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    save_file(state, folder / _shard_name(process_index()))
    if is_first():
        torch.save(trainer.lr_scheduler.state_dict(), folder / SCHEDULER_NAME)


def load_optimizer_shard(trainer: Trainer, folder: Path) -> None:
    """Load the state that :func:`save_optimizer_shard` wrote."""
    scheduler = torch.load(folder / SCHEDULER_NAME, weights_only=True)
    trainer.lr_scheduler.load_state_dict(scheduler)
    states: dict[int, dict[str, torch.Tensor]] = {}
    parameters = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    for key, value in load_file(folder / _shard_name(process_index())).items():
        index, name = key.split(".")
        like = parameters[int(index)]
        states.setdefault(int(index), {})[name] = value if value.ndim == 0 else _shard(value, like)
    groups = trainer.optimizer.state_dict()["param_groups"]
    for group, rate in zip(groups, scheduler["_last_lr"], strict=True):
        group["lr"] = rate
    trainer.optimizer.load_state_dict({"state": states, "param_groups": groups})


def require_parts(model: Any, folder: Path) -> None:
    """Wait until the first process sees the files of all processes in a checkpoint."""
    processes = range(num_processes())
    parts = [_shard_name(index) for index in processes if is_sharded(model)]
    parts += [f"rng_state_{index}.pth" for index in processes if len(processes) > 1]
    from_first(lambda: wait_for_files(folder, parts))


def _shard_name(shard: int) -> str:
    return f"optimizer-{shard:05d}-of-{num_processes():05d}.safetensors"


def _shard(local: torch.Tensor, like: Any) -> DTensor:
    """The local part as a tensor that is sharded like a parameter."""
    return DTensor.from_local(
        local.to(like.to_local().device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
