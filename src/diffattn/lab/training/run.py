"""One training run, from a request or a configuration to a run directory."""

import contextlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from diffattn.errors import CheckpointError, ConfigError, ShapeError
from diffattn.files.folders import verify_manifest
from diffattn.files.io import log_facts, read_json, read_jsonl, write_json
from diffattn.lab.data.tokens import TokenDataset, long_documents
from diffattn.lab.records.fields import require
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.records.run import RunRecord, claim_run, difference, is_claimed
from diffattn.lab.training.callbacks import (
    METRICS,
    CostCallback,
    DivergenceError,
    MetricsCallback,
    OnMessage,
    OnProgress,
    chosen_backends,
    diverged,
    record,
    record_launch,
    require_finite,
)
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.distributed import (
    from_first,
    is_first,
    joined,
    micro_batch,
    num_processes,
    require_one_process,
    run_device,
    together,
    wait_for_files,
)
from diffattn.lab.training.initial import initial_config, initial_weights, require_same_tokenizer
from diffattn.lab.training.monitoring.guard import RolledBack
from diffattn.lab.training.monitoring.monitor import GRADIENTS, Monitor, require_trackers, track_in
from diffattn.lab.training.planning.search import require_run_memory
from diffattn.lab.training.prepare import PreparedData, open_data, prepare_data
from diffattn.lab.training.settings import TrainRequest, apply_settings
from diffattn.lab.training.sharding import (
    CheckpointCallback,
    apply_engine,
    clear_checkpoints,
    require_shardable,
    save_model,
    untrained_model,
    written_by_all,
)
from diffattn.lab.training.trainer import (
    RunTrainer,
    curve_windows,
    first_windows,
    optimizer_and_scheduler,
    training_arguments,
    training_windows,
)
from diffattn.models.loading import bfloat16_advice, quiet
from diffattn.probes.activations import layer_lambdas

RESULTS = "results.json"


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

    ``folder`` gets ``run.json`` before step 0, a row of ``launches.jsonl`` at every start, then
    ``metrics.jsonl``, ``costs.json``, ``model/`` (weights and tokenizer) and, last,
    ``results.json``. At the end checkpoints are removed, or moved to ``kept/``.

    Args:
        facts: Further facts about the model for the record, such as its difference to a baseline.
        on_message: Called with lines for the user: damaged checkpoints, decisions of the guard.

    Returns:
        The content of ``results.json``: losses in nats per token (also by part of the validation
        tokens, see :mod:`diffattn.lab.data.ngrams`) and in bits per byte, λ of each layer.

    Raises:
        ConfigError, BackendError: See :func:`require_runnable` and :func:`require_enough`.
        CheckpointError: ``folder`` holds another run, or another process is at work there.
        DiffAttnError, OSError: The loss is no longer finite, or a file could not be written whole.
        Terminated: SIGTERM came, and a checkpoint is saved; KeyboardInterrupt for SIGINT.
    """
    folder = Path(folder)
    require_runnable(config)
    require_enough(config, data)
    resolved = config.resolved()
    resolved["data"] |= data.facts()
    facts = dict(facts or {})
    if config.init is not None:
        facts["init_from"] = config.init.folder
    run = record(config, resolved, facts, config.engine)
    if not is_first():
        on_progress, on_message = (lambda *event: None), (lambda *event: None)

    def train_until_done() -> None:
        while True:  # again after every roll-back of the guard
            with contextlib.suppress(RolledBack):
                return _train(config, data, folder, on_progress, on_message)

    return finish(folder, run, train_until_done)


def require_runnable(config: RunConfig) -> None:
    """Refuse a run that this launch cannot start, before any data is packed: by its memory, its
    share of the batch, its shards, trackers, guard and backend."""
    require_run_memory(config)
    require_shardable(config.engine)
    require_trackers(config.engine)
    must = "guard must be left at its defaults where several processes share a run (WORLD_SIZE)"
    require("training", num_processes() == 1 or not config.guard.intervenes, must, config.guard)
    chosen_backends(config.model, config.train, apart=config.windows.apart)


def finish(folder: Path, run: RunRecord, execute: Callable[[], None]) -> dict[str, Any]:
    """Claim a directory, ``execute`` the run if it has no results yet, and return these."""

    def results() -> dict[str, Any]:
        clear_checkpoints(folder / "checkpoints", run.engine["keep_every"])
        return read_json(folder / RESULTS)

    with joined():
        _require_same(run)
        with contextlib.ExitStack() as held, quiet(warnings=True):
            from_first(lambda: held.enter_context(sole_writer(folder)))  # for all processes
            is_finished = from_first(lambda: _is_finished(folder, run))
            with together():
                wait_for_files(folder, ["run.json"])
            if not is_finished:
                execute()
            return from_first(results)


def _require_same(run: RunRecord) -> None:
    """Refuse a launch whose processes have different settings or versions of packages: they would
    average gradients of different models, or wait for one another for ever."""
    here = run.config | {"engine": run.engine, "versions": run.versions}
    first = from_first(lambda: here)
    with together():
        if fault := difference("", first, here, (), where="is the first process's"):
            raise ConfigError(
                "training: every process must be launched with the same settings, data and "
                f"versions of packages, got {fault}."
            )


def _is_finished(folder: Path, run: RunRecord) -> bool:
    claim_run(folder, run, f"run {run.name!r}", besides="data")
    if not (folder / RESULTS).exists():
        return False
    try:
        read_jsonl(folder / METRICS, recorded=read_json(folder / RESULTS).get("metrics"))
        if (folder / "model").exists():  # a study may have dropped it
            verify_manifest(folder / "model")
    except CheckpointError as error:
        raise CheckpointError(f"{error} To train it again, choose another --out.") from error
    return True


def require_enough(config: RunConfig, data: PreparedData) -> None:
    """Refuse data that is too short for a run, has ids beyond the model's vocabulary, or has
    another tokenizer than the initial weights."""
    if config.windows.upsample_longer_than is not None:
        long_documents(data.train, config.windows.upsample_longer_than)
    for split in (data.train, data.validation):
        TokenDataset(split, config.train.seq_len)
        least, size = split.metadata["vocab_size"], config.model.vocab_size
        must = f"model.vocab_size must be at least the data's {least}"
        require("training", size >= least, must, size)
    if config.init is not None:
        require_same_tokenizer(config.init, data.tokenizer)


def precision_advice(config: RunConfig) -> str | None:
    """Advice where the CPU is slow in the precision of a run."""
    dtype = getattr(torch, config.train.precision)
    return bfloat16_advice(torch.device(run_device()), dtype, "--set train.precision=float32")


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
    record_launch(folder, checkpoint, config.engine, on_message)
    model = untrained_model(
        config.model, config.engine, checkpoint, folder / "checkpoints" / "initial", config.init
    )
    validation = TokenDataset(data.validation, config.train.seq_len, apart=config.windows.apart)
    # As many windows at once as in a training step, whose memory was checked.
    probe: dict[str, Any] = {**first_windows(validation, 8), "at_once": micro_batch(config.train)}
    metrics = MetricsCallback(folder, config.train, probe, on_progress)
    costs = CostCallback(folder, config.name, config.train)
    arguments = training_arguments(
        config.train, folder / "checkpoints", fresh=checkpoint is None, engine=config.engine
    )
    rolls_back = "roll_back" in (config.guard.not_finite, config.guard.spike)
    back_every = config.train.evaluate_every if rolls_back else None
    checkpoints = CheckpointCallback(folder / "checkpoints", config.engine, back_every)
    trainer = RunTrainer(
        model=model,
        args=arguments,
        train_dataset=training_windows(data.train, config, on_message),
        eval_dataset=curve_windows(validation, config.train),
        optimizers=optimizer_and_scheduler(model, config.train),
        callbacks=[*monitor.first_callbacks, metrics, costs, checkpoints],
    )
    track_in(folder / "tracking", trainer)
    apply_engine(trainer, config.engine)
    monitor.attach(trainer, metrics, probe)
    metrics.restore(checkpoint)
    try:
        trainer.train_from(checkpoint)
        measured = trainer.evaluate(validation, metric_key_prefix="full")
        lam, loss = layer_lambdas(model, **probe), measured["full_loss"]
        require_finite(config.train.num_steps, {"validation_loss": loss, "lam": lam})
    except ShapeError as error:  # the operator refuses a λ that is not finite before the loss
        got = f"an error of the operator ({error})"
        fault = diverged("the model", got, trainer.state.global_step)
        raise monitor.handle_divergence(fault, trainer) from error
    except DivergenceError as error:
        raise monitor.handle_divergence(error, trainer) from error
    model.config.use_cache = config.model.use_cache  # transformers switches it off in training
    with written_by_all(folder / "model"):
        save_model(model, folder / "model", remote_code=True)
        if is_first():
            data.tokenizer.save_pretrained(folder / "model")
    costs.write()
    if is_first():
        write_json(folder / RESULTS, _results(config, data, folder, measured, lam, monitor))


def _results(
    config: RunConfig,
    data: PreparedData,
    folder: Path,
    measured: dict[str, Any],
    lam: list[float] | None,
    monitor: Monitor,
) -> dict[str, Any]:
    model, loss = config.model, measured["full_loss"]
    lambda_init = [model.layer_lambda_init(i) for i in range(model.num_hidden_layers)]
    results = {
        "schema": 1,
        "run": config.name,
        "validation_loss": loss,
        "validation_parts": measured["full_parts"],
        "validation_bits_per_byte": loss / math.log(2) / data.bytes_per_token,
        "lam": lam,
        "lambda_init": lambda_init if model.uses("lambda_vectors") else None,
        "tokens": config.train.num_steps * config.train.batch_tokens,
        "metrics": log_facts(folder / METRICS),
    }
    if monitor.guard is not None:
        results["left_out_steps"] = len(monitor.guard.left_out)
    if config.gradient_steps:
        results["gradients"] = log_facts(folder / GRADIENTS)
    return results


def train_recorded(
    config: RunConfig, data: PreparedData, folder: Path, **options: Any
) -> dict[str, Any]:
    """Train one model as :func:`train` does, but record a divergence as the result.

    Then ``validation_loss`` in ``results.json`` is ``None``, ``diverged_step`` the step where a
    number was not finite, and ``reason`` the message.
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
    return read_json(folder / RESULTS)


def configure(config: RunConfig, request: TrainRequest) -> tuple[RunConfig, PreparedData | None]:
    """The recipe's configuration with the request applied, and the packed data it names, if any."""
    packed, given = None, []
    if request.data is not None:  # the model's vocabulary follows the data's
        packed = open_data(request.data, verify=False)
        config = apply_settings(config, [f"data.vocab_size={packed.config.vocab_size}"])
        config = replace(config, data=packed.config)
    if request.same_model and request.init_from is not None:
        fields = initial_config(request.init_from).settings()
        given = [f"model.{name}={json.dumps(value)}" for name, value in fields.items()]
    config = apply_settings(config, [*given, *request.changes], attention=request.attention)
    if packed is not None and config.data != packed.config:
        raise ConfigError("train: --data fixes the data settings, got --set data.* too.")
    if request.init_from is not None:
        verify = request.verify and is_first()
        init = initial_weights(request.init_from, config.model, verify=verify)
        config = replace(config, init=init)
    return config, packed


def data_notes(config: RunConfig, data: PreparedData, request: TrainRequest) -> list[str]:
    """Lines for the user: a slow precision, the data's vocabulary size, repeated reads."""
    advice, vocab = precision_advice(config), config.model.vocab_size
    lines = [] if advice is None else [advice]
    if request.data is not None and not request.same_model:
        expected = request.recipe_vocab_size
        if vocab == data.config.vocab_size != expected:
            lines.append(f"model.vocab_size is the data's {vocab:,}, the recipe's is {expected:,}")
    read, held = config.train.num_steps * config.train.batch_tokens, data.train.num_tokens
    # With up-sampling the run itself reports how often documents are read.
    if read > held and config.windows.upsample_longer_than is None:
        lines.append(f"{held:,} training tokens are read {read / held:,.1f} times")
    return lines


def launch_run(
    config: RunConfig,
    request: TrainRequest,
    packed: PreparedData | None,
    *,
    on_progress: OnProgress,
    on_message: OnMessage,
) -> dict[str, Any]:
    """Pack the data where it is not yet packed, and train; see :func:`train`."""
    require_runnable(config)
    folder = request.out / "data"

    def claim_and_pack() -> None:
        if request.resume and not ((request.out / "run.json").exists() or folder.exists()):
            raise ConfigError(f"train: --resume needs a run in {request.out}, got none.")
        # A foreign folder is refused before anything is packed.
        is_claimed(request.out, "run.json", "a run", besides="data")
        if packed is None:
            require = partial(require_enough, config)
            prepare_data(config.data, folder, require=require, on_message=on_message)

    with joined():
        with together():  # a large hash takes longer than the timeout of the process group
            if request.data is not None and request.verify and is_first():
                open_data(request.data)
        from_first(claim_and_pack)
        data = packed or open_data(folder, verify=False)  # written by this call, or verified above
        for line in data_notes(config, data, request) if is_first() else []:
            on_message(line)
        return train(config, data, request.out, on_progress=on_progress, on_message=on_message)
