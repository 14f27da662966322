"""transformers.Trainer as our runs need it: windows in a fixed order, and losses by part."""

import itertools
import shutil
from array import array
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, SequentialSampler, Subset
from transformers import TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from diffattn.lab.data.context_parts import PartLosses
from diffattn.lab.data.tokens import PackedTokens, TokenDataset
from diffattn.lab.data.upsampling import UpsampledTokens
from diffattn.lab.training.callbacks import METRICS, OnMessage, require_finite
from diffattn.lab.training.config import RunConfig, TrainConfig
from diffattn.lab.training.distributed import (
    is_first,
    micro_batch,
    num_processes,
    run_device,
    together,
)
from diffattn.lab.training.engine import EngineConfig
from diffattn.lab.training.monitoring.monitored_trainer import MonitoredTrainer
from diffattn.lab.training.monitoring.unlogged import unlogged_losses
from diffattn.lab.training.sharding import ShardedState, written_by_all
from diffattn.ops.inputs.packed_rows import window_inputs
from diffattn.probes.window_losses import window_losses


def training_windows(
    split: PackedTokens, config: RunConfig, on_message: OnMessage = lambda line: None
) -> Subset[Any]:
    """The windows of every step of a run, in order, a function of its settings and data alone.

    Up-sampled, each pass is over documents drawn anew, whose windows are read in random order.

    Args:
        split: To train on.
        config: The run.
        on_message: Given one line on what is up-sampled.

    Raises:
        ConfigError: What is to be up-sampled is none of the documents, or all of them.
    """
    train, windows = config.train, config.windows
    if windows.upsample_longer_than is None:
        return training_order(TokenDataset(split, train.seq_len, apart=windows.apart), train)
    drawn = UpsampledTokens(
        split,
        longer_than=windows.upsample_longer_than,
        factor=windows.upsample_factor,
        num_tokens=train.num_steps * train.batch_tokens,
        seed=train.data_seed + 2**32,  # no data_seed: the order below has other random numbers
    )
    on_message(drawn.summary())
    generator = torch.Generator().manual_seed(train.data_seed)
    ends = [end // train.seq_len for end in drawn.pass_ends]
    order = torch.cat(
        [
            start + torch.randperm(end - start, generator=generator)
            for start, end in itertools.pairwise([0, *ends])
        ]
    )
    dataset = TokenDataset(drawn, train.seq_len, apart=windows.apart)
    return Subset(dataset, _numbers(order[: train.num_steps * train.batch_sequences]))


def training_order(dataset: Dataset[dict[str, Tensor]], config: TrainConfig) -> Subset[Any]:
    """The windows of every step, in order: a fresh permutation for each pass over the data.

    It depends on ``data_seed`` and the dataset alone, so every member of a comparison reads the
    same tokens at the same step.

    Args:
        dataset: Map-style, of n windows.
        config: Steps, batch and ``data_seed``.

    Returns:
        A dataset of ``num_steps * batch_sequences`` windows, to be read front to back.
    """
    size = len(dataset)  # type: ignore[arg-type]
    wanted = config.num_steps * config.batch_sequences
    generator = torch.Generator().manual_seed(config.data_seed)
    passes = [torch.randperm(size, generator=generator) for _ in range(-(-wanted // size))]
    return Subset(dataset, _numbers(torch.cat(passes)[:wanted]))


def _numbers(order: Tensor) -> "array[int]":
    """The same in 8 bytes each: a long run has 10^8 windows, of which a list would take 4 GB."""
    numbers = array("q")
    numbers.frombytes(order.numpy().data.cast("B"))
    return numbers


class OrderedTrainer(MonitoredTrainer, ShardedState):
    """transformers.Trainer that reads its dataset front to back, and evaluates by part."""

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Mean loss of a causal language model, and loss and tokens of every part, in one pass."""
        losses = PartLosses()
        for batch in dataloader:
            ids, positions = batch["input_ids"], batch.get("position_ids")
            measured = torch.from_numpy(window_losses(self.model, ids, positions)).to(ids.device)
            within = torch.ones_like(ids) if positions is None else positions
            if num_processes() > 1:  # each has read a share; what fills up the last batch goes
                ids, measured, within = self.accelerator.gather_for_metrics((ids, measured, within))
            losses.add(
                ids.cpu().numpy(),
                measured.cpu().numpy(),
                None if positions is None else within.cpu().numpy(),
            )
        return EvalLoopOutput(
            predictions=None,
            label_ids=None,
            metrics={
                f"{metric_key_prefix}_loss": losses.loss,
                f"{metric_key_prefix}_parts": losses.parts(),
            },
            num_samples=len(dataloader.dataset),
        )

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Documents that are kept apart go to the model as one packed row."""
        if "position_ids" in inputs:
            labels = inputs["labels"].reshape(1, -1)
            rows = window_inputs(inputs["input_ids"], inputs["position_ids"])
            inputs = {**rows, "labels": labels}
        return super()._prepare_inputs(inputs)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Not of a tied head, which no checkpoint holds: its weights are the embedding's."""
        tied = self.model.all_tied_weights_keys
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = self.state.global_step
        folder = Path(self.args.output_dir) / f"checkpoint-{step}"
        require_finite(step, {"train_loss": unlogged_losses(self)})  # no row has told of them yet
        with written_by_all(folder):
            with together():
                super()._save_checkpoint(model, trial)
            self.require_parts(folder)
            with together():
                if is_first():
                    shutil.copy(folder.parents[1] / METRICS, folder)
            self.save_carried(folder)  # by all: they gather what no row of the log holds yet


def training_arguments(
    config: TrainConfig, folder: Path, *, fresh: bool, engine: EngineConfig
) -> TrainingArguments:
    """The settings as transformers.Trainer takes them, with checkpoints in ``folder``."""
    micro = micro_batch(config)
    on_cpu = run_device() == "cpu"
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=micro,
        per_device_eval_batch_size=micro,
        gradient_accumulation_steps=config.batch_sequences // (micro * num_processes()),
        max_steps=config.num_steps,
        max_grad_norm=config.max_grad_norm,
        bf16=config.precision == "bfloat16",
        seed=config.seed,
        use_cpu=on_cpu,
        dataloader_pin_memory=not on_cpu,
        logging_strategy="steps",
        logging_steps=config.log_every,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=config.evaluate_every,
        eval_on_start=fresh,
        save_strategy="steps",
        save_steps=config.evaluate_every,
        report_to=list(engine.trackers) if engine else [],
        disable_tqdm=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        save_only_model=engine.parallel == "fsdp",  # the rest is ours to save, see ShardedState
        torch_compile=engine.compile,
    )
    # On several GPUs transformers would multiply the batch by their number.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def first_windows(dataset: TokenDataset, count: int) -> dict[str, Tensor]:
    """``input_ids`` of the first windows, int64 ``[B, T]``, with ``position_ids`` if they have any.

    Args:
        dataset: At least one window.
        count: B, or fewer if there are not so many.
    """
    items = [dataset[index] for index in range(min(count, len(dataset)))]
    return {name: torch.stack([x[name] for x in items]) for name in items[0] if name != "labels"}


def curve_windows(dataset: TokenDataset, config: TrainConfig) -> Subset[Any]:
    """What evaluations during training read: ``evaluation_tokens``, in whole windows spread evenly
    over the validation split, at least one."""
    count = max(1, min(config.evaluation_tokens // config.seq_len, len(dataset)))
    return Subset(dataset, [i * len(dataset) // count for i in range(count)])
