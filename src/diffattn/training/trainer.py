"""One training run, from a configuration to a run directory."""

import contextlib
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, SequentialSampler, Subset
from transformers import PrinterCallback, TrainingArguments, set_seed
from transformers.trainer_utils import EvalLoopOutput

from diffattn.data.context_parts import PartLosses
from diffattn.data.tokens import TokenDataset
from diffattn.errors import CheckpointError, ConfigError, ShapeError
from diffattn.models.accounting import flops_per_token, parameter_count
from diffattn.models.cached_attention import chosen_backend
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.loading import without_bars
from diffattn.models.packed_rows import packed_row
from diffattn.probes.lambdas import layer_lambdas
from diffattn.probes.window_losses import window_losses
from diffattn.records.claim import claim_run
from diffattn.records.io import log_facts, read_json, read_jsonl, write_json
from diffattn.records.manifest import verify_manifest
from diffattn.records.run import RunRecord
from diffattn.training.callbacks import (
    METRICS,
    CostCallback,
    DivergenceError,
    MetricsCallback,
    OnMessage,
    OnProgress,
    diverged,
    require_finite,
)
from diffattn.training.checkpoints import CheckpointCallback
from diffattn.training.config import RunConfig, TrainConfig
from diffattn.training.distributed import (
    from_first,
    is_first,
    joined,
    launch,
    micro_batch,
    num_processes,
    run_device,
    written_by_first,
)
from diffattn.training.engine import EngineConfig
from diffattn.training.memory import require_run_memory
from diffattn.training.monitoring.batch_guard import RolledBack, require_policies
from diffattn.training.monitoring.monitor import Monitor
from diffattn.training.monitoring.monitored_trainer import MonitoredTrainer
from diffattn.training.monitoring.trackers import require_trackers, tracked_in
from diffattn.training.prepare import PreparedData
from diffattn.training.schedule import optimizer_and_scheduler
from diffattn.training.sharding import (
    ShardedState,
    prepare_model,
    require_same_parts,
    require_shardable,
    save_model,
    untrained_model,
    written_by_all,
)
from diffattn.training.windows import WindowConfig

RESULTS = "results.json"
_APART = asdict(WindowConfig(documents="apart"))


def train(
    config: RunConfig,
    data: PreparedData,
    folder: Path,
    *,
    facts: dict[str, Any] | None = None,
    on_progress: OnProgress = lambda step, loss: None,
    on_message: OnMessage = lambda line: None,
) -> dict[str, Any]:
    """Train one model and write its run directory; continue it if it was interrupted.

    ``folder`` gets ``run.json`` before step 0, then ``metrics.jsonl``, ``costs.json``, ``model/``
    (weights and tokenizer) and, last, ``results.json``. Checkpoints are removed at the end.

    Args:
        config: Model, training and data.
        data: Tokens; see :func:`diffattn.training.prepare.prepare_data`.
        folder: Run directory.
        facts: More to record about the model, for example its difference to a baseline.
        on_progress: Called after every step.
        on_message: Given one line for every checkpoint that is damaged and left out.

    Returns:
        What ``results.json`` holds: losses in nats per token (also by part of the
        validation tokens, see :mod:`diffattn.data.context_parts`) and in bits per byte, λ.

    Raises:
        ConfigError: The data is too short for one sequence, the run does not fit into memory, or
            its batch cannot be shared out to the processes of the launch.
        CheckpointError: ``folder`` holds another run, or another process is at work there.
        DiffAttnError: The loss is no longer finite, or a file could not be written whole; the
            same call continues.
        OSError: The disk is full or not writable; the same call continues.
        Terminated: SIGTERM came, and what was done is saved; KeyboardInterrupt for SIGINT.
    """
    folder = Path(folder)
    require_run_memory(config)
    require_enough(config, data)
    require_shardable(config.engine)
    require_trackers(config.engine)
    require_policies(config)
    resolved = config.resolved()
    resolved["data"] |= data.facts()
    run = record(config.name, config.model, config.train, resolved, facts or {}, config.engine)
    if not is_first():
        on_progress, on_message = _say_nothing, _say_nothing
    return finish(folder, run, lambda: _run(config, data, folder, on_progress, on_message))


def finish(folder: Path, run: RunRecord, train: Callable[[], None]) -> dict[str, Any]:
    """Claim a run directory, train unless it has results, and return what they hold."""

    def results() -> dict[str, Any]:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return read_json(folder / RESULTS)

    with joined(), written_by_first(folder), without_bars():
        if not from_first(lambda: _is_finished(folder, run)):
            train()
        return from_first(results)


def _is_finished(folder: Path, run: RunRecord) -> bool:
    """Whether a run directory, claimed for a run, holds its results.

    Raises:
        CheckpointError: It holds another run, or of a finished one a file is damaged: it cannot
            be continued.
    """
    claim_run(folder, run, f"run {run.name!r}", besides="data")
    if not (folder / RESULTS).exists():
        return False
    try:
        read_jsonl(folder / METRICS, recorded=read_json(folder / RESULTS).get("metrics"))
        if (folder / "model").exists():  # runs on recall tasks keep none
            verify_manifest(folder / "model")
    except CheckpointError as error:
        raise CheckpointError(f"{error} To train it again, choose another --out.") from error
    return True


def _say_nothing(*what: object) -> None:
    """Progress and messages of all processes but the first."""


def require_enough(config: RunConfig, data: PreparedData) -> None:
    """Refuse data that a run cannot read: too short, or with tokens the model does not know.

    Raises:
        ConfigError: It cannot.
    """
    for split in (data.train, data.validation):
        TokenDataset(split, config.train.seq_len)
        if split.metadata["vocab_size"] > config.model.vocab_size:
            raise ConfigError(
                f"training: model.vocab_size must be at least the data's "
                f"{split.metadata['vocab_size']}, got {config.model.vocab_size}."
            )


def _run(
    config: RunConfig,
    data: PreparedData,
    folder: Path,
    on_progress: OnProgress,
    on_message: OnMessage,
) -> None:
    """Train, again after every roll-back of the guard, and write ``results.json``."""
    while True:
        with contextlib.suppress(RolledBack):
            return _train(config, data, folder, on_progress, on_message)


def _train(
    config: RunConfig,
    data: PreparedData,
    folder: Path,
    on_progress: OnProgress,
    on_message: OnMessage,
) -> None:
    """Train from the start or from the last checkpoint, and write ``results.json``."""
    set_seed(config.train.seed)
    monitor = Monitor(folder, config, on_message)
    checkpoint = from_first(monitor.last_checkpoint)
    require_same_parts(checkpoint, config.engine)
    model = untrained_model(
        config.model, config.engine, checkpoint, folder / "checkpoints" / "initial"
    )
    prepare_model(model, config.engine)
    windows = partial(TokenDataset, seq_len=config.train.seq_len, apart=config.windows.apart)
    validation = windows(data.validation)
    probe = torch.stack([validation[i]["input_ids"] for i in range(min(8, len(validation)))])
    metrics = MetricsCallback(folder, config.train, probe, on_progress)
    costs = CostCallback(folder, config.name, config.train)
    arguments = training_arguments(
        config.train, folder / "checkpoints", fresh=checkpoint is None, engine=config.engine
    )
    checkpoints = CheckpointCallback(folder / "checkpoints", config.engine)
    with tracked_in(folder, config.engine):
        trainer = OrderedTrainer(
            model=model,
            args=arguments,
            train_dataset=training_order(windows(data.train), config.train),
            eval_dataset=_spread(
                validation, config.train.evaluation_tokens // config.train.seq_len
            ),
            optimizers=optimizer_and_scheduler(model, config.train),
            callbacks=[*monitor.first_callbacks(), metrics, costs, checkpoints],
        )
    trainer.remove_callback(PrinterCallback)  # the caller shows progress
    monitor.attach(trainer, metrics, probe)
    metrics.restore(checkpoint)
    try:
        trainer.train_from(checkpoint)
        measured = trainer.evaluate(validation, metric_key_prefix="full")
        lam, loss = layer_lambdas(model, probe), measured["full_loss"]
        require_finite(config.train.num_steps, {"validation_loss": loss, "lam": lam})
    except ShapeError as error:  # the operator meets a λ that is no number before any loss does
        got = f"an error of the operator ({error})"
        fault = diverged("the model", got, trainer.state.global_step)
        raise monitor.ended(fault, trainer) from error
    except DivergenceError as error:
        raise monitor.ended(error, trainer) from error
    initial = (
        [config.model.layer_lambda_init(i) for i in range(config.model.num_hidden_layers)]
        if config.model.attention.lambda_vectors
        else None
    )
    model.config.use_cache = config.model.use_cache  # transformers switches it off in training
    results = {
        "schema": 1,
        "run": config.name,
        "validation_loss": loss,
        "validation_parts": measured["full_parts"],
        "validation_bits_per_byte": loss / math.log(2) / data.bytes_per_token,
        "lam": lam,
        "lambda_init": initial,
        "tokens": config.train.num_steps * config.train.batch_tokens,
        "metrics": log_facts(metrics.path) if is_first() else None,
    }
    with written_by_all(folder / "model"):
        save_model(model, folder / "model")
        if is_first():
            data.tokenizer.save_pretrained(folder / "model")
    costs.write()
    if is_first():
        write_json(folder / RESULTS, results)


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
    return Subset(dataset, torch.cat(passes)[:wanted].tolist())


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
                None if positions is None else (within != 0).cpu().numpy()[:, 1:],
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
            rows = {name: inputs[name].reshape(1, -1) for name in ("input_ids", "labels")}
            inputs = rows | packed_row(inputs["position_ids"])
        return super()._prepare_inputs(inputs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        with written_by_all(folder):
            super()._save_checkpoint(model, trial)
            if is_first():
                shutil.copy(folder.parents[1] / METRICS, folder)
                self.save_carried(folder)


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


def record(
    name: str,
    model: DiffTransformerConfig,
    config: TrainConfig,
    resolved: dict[str, Any],
    facts: dict[str, Any],
    engine: EngineConfig,
) -> RunRecord:
    """What ``run.json`` says of a run.

    Args:
        name: Of the run.
        model: The model's configuration.
        config: Its training.
        resolved: All settings as plain values.
        facts: More about the model.
        engine: How it is executed.
    """
    return RunRecord(
        name=name,
        config=resolved,
        seed=config.seed,
        backends=_chosen_backends(model, config, apart=resolved.get("windows") == _APART),
        device=run_device(),
        engine=asdict(engine) | launch(engine),
        model={
            "parameters": parameter_count(model),
            "non_embedding_parameters": parameter_count(model, embeddings=False),
            "train_flops_per_token": flops_per_token(model, config.seq_len, training=True),
            **facts,
        },
    )


def _chosen_backends(
    model: DiffTransformerConfig, config: TrainConfig, *, apart: bool
) -> dict[str, str]:
    """Which backend the operator will run on, for the shapes of this run."""
    dtype = torch.bfloat16 if config.precision == "bfloat16" else torch.float32
    batch, num_tokens = micro_batch(config), config.seq_len
    if apart:
        batch, num_tokens = 1, batch * num_tokens
    chosen = chosen_backend(
        model, device=run_device(), dtype=dtype, batch=batch, num_tokens=num_tokens
    )
    return {model.attention_op: chosen}


def _spread(dataset: TokenDataset, count: int) -> Subset[Any]:
    """``count`` windows spread evenly over the dataset, at least one."""
    count = max(1, min(count, len(dataset)))
    return Subset(dataset, [i * len(dataset) // count for i in range(count)])
