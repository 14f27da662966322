"""Models sharded over several processes (FSDP2), and checkpoints that all of them write."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import AutocastKwargs
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel, Trainer
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.files.folders import write_manifest
from diffattn.lab.training.checkpoints import not_whole
from diffattn.lab.training.config import EngineConfig, InitConfig
from diffattn.lab.training.distributed import (
    from_first,
    is_first,
    num_processes,
    together,
    wait_for_all,
)
from diffattn.lab.training.initial import initial_model
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


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
    A whole model gets the weights of a checkpoint later, from the trainer.
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
    """Require that every process holds only its share of every parameter: some engines train with
    whole copies, without a warning, where they cannot shard."""
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


def save_optimizer(trainer: Trainer, folder: Path) -> None:
    """Write the whole state of a sharded optimizer, and the schedule, as one process would:
    transformers refuses to."""
    state, whole = trainer.optimizer.state_dict(), {}
    for index, values in state["state"].items():
        gathered = {
            name: value.full_tensor() if isinstance(value, DTensor) else value
            for name, value in values.items()
        }
        if is_first():
            whole[index] = {name: value.cpu() for name, value in gathered.items()}
    if is_first():
        torch.save(state | {"state": whole}, folder / OPTIMIZER_NAME)
        torch.save(trainer.lr_scheduler.state_dict(), folder / SCHEDULER_NAME)


def load_optimizer(trainer: Trainer, folder: Path) -> None:
    """Load a whole state into a sharded optimizer."""
    trainer.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULER_NAME, weights_only=True))
    state = torch.load(folder / OPTIMIZER_NAME, map_location="cpu", weights_only=True, mmap=True)
    parameters = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    for index, values in state["state"].items():
        like = parameters[index]
        for name in [name for name, value in values.items() if value.ndim]:
            whole = values[name].to(like.device)
            values[name] = distribute_tensor(whole, like.device_mesh, like.placements)
    trainer.optimizer.load_state_dict(state)
