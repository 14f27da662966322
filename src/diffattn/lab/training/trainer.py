"""The windows of every step, the step from batch to update, its optimizer, and the checkpoint."""

import itertools
import shutil
import statistics
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, SequentialSampler, Subset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_pt_utils import nested_gather
from transformers.trainer_utils import EvalLoopOutput

from diffattn.files.io import read_json, write_json
from diffattn.lab.data.ngrams import PartLosses
from diffattn.lab.data.tokens import PackedTokens, TokenDataset, UpsampledTokens
from diffattn.lab.training.callbacks import METRICS, OnMessage, require_finite
from diffattn.lab.training.config import EngineConfig, RunConfig, TrainConfig
from diffattn.lab.training.distributed import (
    from_first,
    is_first,
    micro_batch,
    num_processes,
    process_index,
    run_device,
    together,
    wait_for_files,
)
from diffattn.lab.training.monitoring.guard import BatchGuard
from diffattn.lab.training.monitoring.monitor import flat
from diffattn.lab.training.monitoring.signals import StopSignals
from diffattn.lab.training.sharding import (
    is_sharded,
    load_optimizer,
    save_model,
    save_optimizer,
    written_by_all,
)
from diffattn.probes.passes import window_inputs, window_losses


def training_windows(
    split: PackedTokens, config: RunConfig, on_message: OnMessage = lambda line: None
) -> Subset[Any]:
    """The windows of every step of a run, in order: a function of its settings and data alone.

    With up-sampling, each pass draws documents anew and reads their windows in random order.
    """
    train, windows = config.train, config.windows
    if windows.upsample_longer_than is None:
        return training_order(TokenDataset(split, train.seq_len, apart=windows.apart), train)
    drawn = UpsampledTokens(
        split,
        longer_than=windows.upsample_longer_than,
        factor=windows.upsample_factor,
        num_tokens=train.num_steps * train.batch_tokens,
        seed=train.data_seed + 2**32,  # not the random numbers of the order below
    )
    on_message(drawn.summary)
    generator = torch.Generator().manual_seed(train.data_seed)
    ends = [end // train.seq_len for end in drawn.pass_ends]
    passes = itertools.pairwise([0, *ends])
    order: Any = torch.cat([a + torch.randperm(b - a, generator=generator) for a, b in passes])
    dataset = TokenDataset(drawn, train.seq_len, apart=windows.apart)
    return Subset(dataset, order[: train.num_steps * train.batch_sequences].numpy())


def training_order(dataset: Dataset[dict[str, Tensor]], config: TrainConfig) -> Subset[Any]:
    """The windows of every step, in order: a fresh permutation for each pass over the data.

    It depends on ``data_seed`` and the dataset alone, so every member of a comparison reads the
    same tokens at the same step.
    """
    size = len(dataset)  # type: ignore[arg-type]
    count = config.num_steps * config.batch_sequences
    generator = torch.Generator().manual_seed(config.data_seed)
    passes = [torch.randperm(size, generator=generator) for _ in range(-(-count // size))]
    order: Any = torch.cat(passes)[:count].numpy()  # as a list, 10^8 windows would take 4 GB
    return Subset(dataset, order)


def first_windows(dataset: TokenDataset, count: int) -> dict[str, Tensor]:
    """``input_ids`` of the first ``count`` windows, int64 ``[B, T]``, and their ``position_ids`` if
    documents are kept apart."""
    items = [dataset[index] for index in range(min(count, len(dataset)))]
    return {name: torch.stack([x[name] for x in items]) for name in items[0] if name != "labels"}


def curve_windows(dataset: TokenDataset, config: TrainConfig) -> Subset[Any]:
    """The windows of evaluations during training: ``evaluation_tokens``, spread evenly over the
    validation split, at least one window."""
    count = max(1, min(config.evaluation_tokens // config.seq_len, len(dataset)))
    return Subset(dataset, [i * len(dataset) // count for i in range(count)])


_UNLOGGED = "unlogged.json"


class RunTrainer(Trainer):
    """``transformers.Trainer`` for our runs. Its methods are in the order of a step:

    1. ``_get_train_sampler``: the windows come in the order of the dataset.
    2. ``_prepare_inputs``: the batch goes to the device, packed where documents are apart.
    3. ``training_step``: forward pass, loss, backward pass; once per micro batch.
    4. transformers clips the gradients to ``max_grad_norm``.
    5. ``_get_grad_norm``: the guard judges loss and norm, and may leave the batch out.
    6. transformers calls the optimizer (AdamW) and the schedule.
    7. ``log`` and ``evaluation_loop``, at the steps of ``log_every`` and ``evaluate_every``.
    8. ``_save_checkpoint``.
    """

    guard: BatchGuard | None = None
    signals: StopSignals
    unlogged: "_UnloggedLosses"
    _norm: Tensor | float | None = None

    def train_from(self, checkpoint: Path | None) -> None:
        """Train until the end or a signal, whose ``Terminated`` or ``KeyboardInterrupt`` means that
        a checkpoint is saved."""
        self.remove_callback(PrinterCallback)  # the caller shows progress
        self.unlogged = _UnloggedLosses(self)
        self.add_callback(self.unlogged)
        if checkpoint is not None:
            self.unlogged.load(checkpoint)
            if self.guard is not None:
                self.guard.load(checkpoint)
        with StopSignals() as self.signals:
            self.add_callback(self.signals)
            self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        steps = f"{self.state.global_step:,} of {self.state.max_steps:,}"
        state = f"stopped after step {steps}, whose checkpoint is saved"
        self.signals.require_none(state, self.args.device)

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if "position_ids" in inputs:
            labels = inputs["labels"].reshape(1, -1)
            rows = window_inputs(inputs["input_ids"], inputs["position_ids"])
            inputs = {**rows, "labels": labels}
        return super()._prepare_inputs(inputs)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run one forward and backward pass, unless an earlier decision leaves the step out."""
        if self.guard is None:
            return super().training_step(model, inputs, num_items_in_batch)
        if self.state.global_step + 1 in self.guard.left_out:
            return torch.zeros((), device=self.args.device)
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        self.guard.step_losses.append(loss)
        return loss

    def _defer_fsdp_gradient_reduction(self) -> AbstractContextManager[None]:
        # Deferring would keep whole float32 gradients on each device until the last pass.
        return nullcontext()

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The norm before clipping, which transformers computes just before the update."""
        self._norm = norm = super()._get_grad_norm(model, grad_norm)
        if self.guard is not None and not self.guard.allows(float(norm)):
            model.zero_grad(set_to_none=True)  # the optimizer skips weights without a gradient
            self._tr_loss = self.guard.sum_before  # the log averages the other steps
            self._globalstep_last_logged += 1
            self._norm = None
        return norm

    def gradient_norm(self) -> float | None:
        """Norm of the last step before clipping; ``None`` if its batch was left out."""
        return None if self._norm is None else float(self._norm)

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Log values; a mapping, such as the losses by part, becomes one number per entry."""
        super().log(flat(logs), start_time)

    def evaluation_loop(
        self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> EvalLoopOutput:
        """Mean loss of a causal language model, and loss and tokens of every part, in one pass."""
        losses = PartLosses()
        for batch in dataloader:
            ids, positions = batch["input_ids"], batch.get("position_ids")
            measured = torch.from_numpy(window_losses(self.model, ids, positions)).to(ids.device)
            within = torch.ones_like(ids) if positions is None else positions
            if num_processes() > 1:  # each has read a share; padding of the last batch is dropped
                ids, measured, within = self.accelerator.gather_for_metrics((ids, measured, within))
            starts = None if positions is None else within.cpu().numpy()
            losses.add(ids.cpu().numpy(), measured.cpu().numpy(), starts)
        metrics = {"loss": losses.loss, "parts": losses.parts()}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        return EvalLoopOutput(None, None, metrics, len(dataloader.dataset))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = self.state.global_step
        folder = Path(self.args.output_dir) / f"checkpoint-{step}"
        # These losses are in no row of the log yet.
        require_finite(step, {"train_loss": _unlogged_losses(self)})
        with written_by_all(folder):
            with together():
                super()._save_checkpoint(model, trial)
                if is_sharded(self.model):
                    self._save_rng_state(str(folder))
                    save_optimizer(self, folder)
            if num_processes() > 1:
                written = [f"rng_state_{index}.pth" for index in range(num_processes())]
                from_first(lambda: wait_for_files(folder, written))
            with together():
                if is_first():
                    shutil.copy(folder.parents[1] / METRICS, folder)
            self.unlogged.save(folder)  # on all processes: they gather sums of losses
            if self.guard is not None:
                self.guard.save(folder)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if output_dir is not None and is_sharded(self.model):
            save_model(self.model, Path(output_dir))
        else:
            super()._save(output_dir, state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if not is_sharded(self.model):  # a sharded model was made from the checkpoint
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None and is_sharded(self.model):
            load_optimizer(self, Path(checkpoint))
        else:
            super()._load_optimizer_and_scheduler(checkpoint)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # No checkpoint holds a tied head, whose weights are the embedding's.
        tied = self.model.all_tied_weights_keys
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))


def training_arguments(
    config: TrainConfig, folder: Path, *, fresh: bool, engine: EngineConfig
) -> TrainingArguments:
    """The settings for transformers.Trainer; a ``fresh`` run evaluates the model at step 0."""
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
        report_to=list(engine.trackers),
        disable_tqdm=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        save_only_model=engine.parallel == "fsdp",  # see save_optimizer
        torch_compile=engine.compile,
    )
    # On several GPUs transformers would multiply the batch by their number.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def _unlogged_losses(trainer: Any) -> list[float]:
    """The sum of losses since the last row of the log, of every process; called by all of them."""
    return nested_gather(trainer._tr_loss, trainer.args.parallel_mode).view(-1).tolist()


class _UnloggedLosses(TrainerCallback):
    """Carries the sums of losses since the last row of ``metrics.jsonl`` through a checkpoint.

    A run that was stopped between two rows thus writes the same rows as an uninterrupted run.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.loaded: dict[str, Any] | None = None

    def save(self, checkpoint: Path) -> None:
        sums, logged = _unlogged_losses(self.trainer), self.trainer._globalstep_last_logged
        if logged < self.trainer.state.global_step and is_first():
            write_json(checkpoint / _UNLOGGED, {"loss_sums": sums, "last_logged": logged})

    def load(self, checkpoint: Path) -> None:
        path = checkpoint / _UNLOGGED
        self.loaded = read_json(path) if path.exists() else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # transformers begins at 0. With another number of processes, each takes the mean sum.
        if self.loaded is not None:
            sums = self.loaded["loss_sums"]
            is_ours = len(sums) == args.world_size
            total = sums[process_index()] if is_ours else statistics.fmean(sums)
            self.trainer._tr_loss = torch.tensor(total, device=args.device)
            self.trainer._globalstep_last_logged = self.loaded["last_logged"]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Two groups: matrices with weight decay; λ vectors, norms and biases without.

    Source: arXiv:2410.05258v2, Appendix D (recipe of StableLM-3B-4E1T). Parameters with fewer than
    two axes are not decayed.
    """
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def learning_rate_factor(step: int, config: TrainConfig) -> float:
    """Learning rate at a step as a share of the peak: linear warm-up, linear decay to the floor.

    Source: arXiv:2410.05258v2, Appendix D (linear decay with warm-up). Steps done count from 0,
    where the factor is above 0.
    """
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    floor = config.final_learning_rate / config.learning_rate
    decay_steps = max(1, config.num_steps - 1 - config.warmup_steps)
    done = min(1.0, (step - config.warmup_steps) / decay_steps)
    return 1.0 - (1.0 - floor) * done


def optimizer_and_scheduler(
    model: nn.Module, config: TrainConfig
) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.LambdaLR]:
    """AdamW over :func:`parameter_groups`, with :func:`learning_rate_factor`."""
    optimizer = torch.optim.AdamW(
        parameter_groups(model, config.weight_decay),
        lr=config.learning_rate,
        betas=(config.beta_1, config.beta_2),
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, config)
    )
    return optimizer, scheduler
