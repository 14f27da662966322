"""Models sharded over several processes (FSDP2), and checkpoints that all of them write."""

import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import AutocastKwargs
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel, Trainer, TrainerCallback
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from diffattn.errors import CheckpointError, ConfigError, DiffAttnError, first_line
from diffattn.files.folders import verify_manifest, write_manifest
from diffattn.files.io import make_folder, sync
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
        free = shutil.disk_usage(folder.parent).free
        raise DiffAttnError(
            f"{folder}: must be written whole, got: {first_line(error)} ({free:,} bytes were free "
            "after that). The same command continues the run."
        ) from error


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


class CheckpointCallback(TrainerCallback):
    """Decides when a checkpoint is written, and which are kept.

    transformers picks the newest checkpoints by modification time. It also saves the interval in
    the checkpoint, so that a continued run could not change it. ``back_every``: steps between the
    checkpoints to which a run may go back.
    """

    def __init__(self, folder: Path, engine: EngineConfig, back_every: int | None = None) -> None:
        self.folder, self.engine, self.back_every = folder, engine, back_every

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save at the steps of ``save_every`` in place of the evaluations, and after the last."""
        if self.engine.save_every is not None and state.global_step < state.max_steps:
            every = (self.engine.save_every, self.back_every)
            control.should_save = any(n and state.global_step % n == 0 for n in every)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Clear away old checkpoints; the other processes wait."""
        if state.is_world_process_zero:
            step, every = state.global_step, self.back_every
            done = [path for path in _checkpoints(self.folder) if checkpoint_step(path) <= step]
            # Checkpoints of later steps are damaged, else the run had continued from them.
            for path in _checkpoints(self.folder)[len(done) :]:
                shutil.rmtree(path, ignore_errors=True)
            # Targets of a roll-back from the next step, and from this step if it fails late.
            needed = {step // every * every, (step - 1) // every * every} if every else set()
            for path in done[: -self.engine.keep_checkpoints]:
                if checkpoint_step(path) not in needed:
                    _clear(path, self.engine.keep_every)
        wait_for_all()


def clear_checkpoints(folder: Path, keep_every: int | None) -> None:
    """Remove the checkpoints of a finished run; move those that stay to ``kept/``."""
    for path in _checkpoints(folder):
        _clear(path, keep_every)
    shutil.rmtree(folder, ignore_errors=True)


def _clear(path: Path, keep_every: int | None) -> None:
    if keep_every is None or checkpoint_step(path) % keep_every:
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        verify_manifest(path)
    except CheckpointError as error:  # killed while it was written, or damaged since
        warnings.warn(f"{path.name} is not whole and is not kept: {error}", stacklevel=2)
        shutil.rmtree(path, ignore_errors=True)
        return
    kept = path.parents[1] / "kept" / path.name
    make_folder(kept.parent)
    shutil.rmtree(kept, ignore_errors=True)  # of steps that were undone
    path.rename(kept)
    sync(kept.parent)


def checkpoint_step(path: Path) -> int:
    """Steps done at a checkpoint, from its name."""
    return int(path.name.split("-")[1])


def last_checkpoint(
    folder: Path,
    on_message: Callable[[str], None],
    *,
    fits: Callable[[Path], bool] = lambda checkpoint: True,
) -> Path | None:
    """The newest checkpoint that is whole and ``fits`` the run's decisions; misfits are removed."""
    paths = _checkpoints(folder)
    for path in reversed(paths):
        try:
            verify_manifest(path)
        except CheckpointError as error:
            then = "training begins anew" if path == paths[0] else "an earlier one is used"
            on_message(f"{path.name} is not whole, {then}: {error}")
        else:
            if fits(path):
                return path
            on_message(f"{path.name} has learned from batches that are left out now: removed")
            shutil.rmtree(path)
    return None


def _checkpoints(folder: Path) -> list[Path]:
    paths = (p for p in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-[0-9]+", p.name))
    return sorted(paths, key=checkpoint_step)
