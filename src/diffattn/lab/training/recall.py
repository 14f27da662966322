"""One training run on a recall task, from a configuration to a run directory."""

import itertools
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset
from transformers import set_seed

from diffattn.errors import ShapeError
from diffattn.files.io import log_facts, read_jsonl, write_json
from diffattn.lab.data.recall_tasks import (
    LookupConfig,
    ManyShotConfig,
    NoisyRecallConfig,
    guessing_ceilings,
    recall_tokenizer,
)
from diffattn.lab.data.synthetic import HELD_OUT_SEED, RecallBatch, generate
from diffattn.lab.training.callbacks import (
    CostCallback,
    DivergenceError,
    MetricsCallback,
    OnMessage,
    OnProgress,
    record,
    record_launch,
)
from diffattn.lab.training.config import EngineConfig, RecallConfig
from diffattn.lab.training.distributed import require_one_process
from diffattn.lab.training.practical_measures import (
    attention_shares,
    practical_measures,
    query_logits,
)
from diffattn.lab.training.run import finish
from diffattn.lab.training.sharding import (
    CheckpointCallback,
    checkpoint_step,
    last_checkpoint,
    save_model,
    written_by_all,
)
from diffattn.lab.training.trainer import RunTrainer, optimizer_and_scheduler, training_arguments
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.probes.activations import layer_lambdas, residual_writes

VALIDATION, TEST = 0, 1
"""Indices of held-out sets. Validation decides when training ends; the test comes at the end."""


def train_recall(
    config: RecallConfig,
    folder: Path,
    *,
    facts: dict[str, Any] | None = None,
    on_progress: OnProgress = lambda step, loss: None,
    on_message: OnMessage = lambda line: None,
) -> dict[str, Any]:
    """Train one model on a recall task until it is solved or the steps are used up.

    ``folder`` gets the files of :func:`diffattn.lab.training.run.train`, and the same call
    continues an interrupted run. Validation accuracy ends training if ``stops_when_solved``. The
    test set is scored at the end. A run that diverges has no ``model/`` and scores no correct
    answer.

    Returns:
        The content of ``results.json``. It holds whether and when the task was solved, test
        accuracy over all queries and by query position, and the guessing ceilings.
        ``largest_write`` is the largest write of a layer's attention or feed-forward at step 0, as
        a share of the residual stream. Noisy recall adds ``attention`` of :func:`attention_shares`;
        lookup and many-shot tasks add ``measures`` of :func:`practical_measures`.
    """
    folder = Path(folder)
    require_one_process("a run on a recall task")
    run = record(config, config.resolved(), facts or {}, EngineConfig())
    return finish(folder, run, lambda: _run(config, folder, on_progress, on_message))


def held_out(config: RecallConfig, index: int) -> RecallBatch:
    """Validation (0) or test (1) sequences, at least 5: the same for all models and seeds."""
    count = max(5, config.train.evaluation_tokens // config.train.seq_len)
    return generate(config.task, count, seed=HELD_OUT_SEED, index=index)


def recall_score(model: DiffTransformerForCausalLM, batch: RecallBatch) -> tuple[Tensor, float]:
    """For every query, 1 where the most likely token is the answer, else 0: float64 ``[B, Q]``.
    And the mean cross-entropy of the answers over the whole vocabulary, in nats."""
    logits, labels = query_logits(model, batch, 256), batch.labels.gather(1, batch.queries)
    losses = F.cross_entropy(logits.mT, labels, reduction="none")
    return (logits.argmax(-1) == labels).double(), float(losses.double().mean())


def solved_step(rows: list[dict[str, Any]], accuracy: float) -> int | None:
    """The earliest step at which an evaluation and the next one reach an accuracy, from the rows
    of ``metrics.jsonl``; ``None`` if there is no such step."""
    pairs = itertools.pairwise(row for row in rows if "accuracy" in row)
    both = (row for row, later in pairs if min(row["accuracy"], later["accuracy"]) >= accuracy)
    return next((int(row["step"]) for row in both), None)


class _FreshBatches(Dataset[dict[str, Tensor]]):
    def __init__(self, config: RecallConfig) -> None:
        self.task, self.train = config.task, config.train

    def __len__(self) -> int:
        return self.train.num_steps

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        count, seed = self.train.batch_sequences, self.train.data_seed
        batch = generate(self.task, count, seed=seed, index=step)
        return {"input_ids": batch.input_ids, "labels": batch.labels}


class _RecallCallback(MetricsCallback):
    """Adds validation accuracy to ``metrics.jsonl``, and ends a run that is solved."""

    def __init__(self, folder: Path, config: RecallConfig, on_progress: OnProgress) -> None:
        self.validation = held_out(config, VALIDATION)
        self.recall = config
        probe = {"input_ids": self.validation.input_ids[:64]}
        super().__init__(folder, config.train, probe, on_progress)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            self._score(0, kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_step_end(args, state, control, **kwargs)
        step = state.global_step
        if step % self.config.evaluate_every == 0 or step == self.config.num_steps:
            self._score(step, kwargs["model"])
            if self.ends():
                control.should_training_stop = True

    def solved(self) -> int | None:
        rows = read_jsonl(self.path) if self.path.exists() else []
        return solved_step(rows, self.recall.solved_accuracy)

    def ends(self) -> bool:
        return self.recall.stops_when_solved and self.solved() is not None

    def _score(self, step: int, model: DiffTransformerForCausalLM) -> None:
        hits, loss = recall_score(model, self.validation)
        row: dict[str, Any] = {
            "accuracy": float(hits.mean()),
            "by_query": hits.mean(0).tolist(),
            "validation_loss": loss,
        }
        lam = layer_lambdas(model, **self.probe)
        if lam is not None:
            row["lam"] = lam
        if step == 0:
            row["writes"] = [
                layer[part] / layer[whole]
                for layer in residual_writes(model, **self.probe)
                for part, whole in (("attention", "stream"), ("feed_forward", "between"))
            ]
        self._append(step, **row)


def _answer_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """Mean cross-entropy at the queries; labels are not shifted, unlike a language model's."""
    return F.cross_entropy(outputs.logits.float().flatten(0, 1), labels.flatten())


def _run(
    config: RecallConfig, folder: Path, on_progress: OnProgress, on_message: OnMessage
) -> None:
    train = config.train
    set_seed(train.seed)
    model = DiffTransformerForCausalLM(deepcopy(config.model))
    metrics = _RecallCallback(folder, config, on_progress)
    costs = CostCallback(folder, config.name, train)
    checkpoint = last_checkpoint(folder / "checkpoints", on_message)
    engine = EngineConfig()
    record_launch(folder, checkpoint, engine, on_message)
    arguments = training_arguments(train, folder / "checkpoints", fresh=False, engine=engine)
    arguments.per_device_train_batch_size = 1  # items: each is a whole batch
    arguments.set_evaluate(strategy="no")  # accuracy is measured by the callback
    # Few checkpoints, because a run takes only minutes.
    arguments.set_save(strategy="steps", steps=4 * train.evaluate_every)
    trainer = RunTrainer(
        model=model,
        args=arguments,
        train_dataset=_FreshBatches(config),
        data_collator=lambda features: features[0],  # an item is a whole batch
        compute_loss_func=_answer_loss,
        optimizers=optimizer_and_scheduler(model, train),
        callbacks=[metrics, costs, CheckpointCallback(folder / "checkpoints", engine)],
    )
    metrics.restore(checkpoint)
    has_diverged = False
    try:
        if checkpoint is not None and metrics.ends():
            # The run was solved at this checkpoint; transformers would take one more step.
            model = DiffTransformerForCausalLM.from_pretrained(checkpoint)
            trainer.state.global_step = checkpoint_step(checkpoint)
        else:
            trainer.train_from(checkpoint)
    except (DivergenceError, ShapeError) as error:
        # The operator raises ShapeError for a λ that is not finite, before the loss is computed.
        if isinstance(error, ShapeError) and all(x.isfinite().all() for x in model.parameters()):
            raise
        has_diverged = True
    costs.write()
    if not has_diverged:
        with written_by_all(folder / "model"):
            save_model(model, folder / "model")
            test = held_out(config, TEST)
            example = test.input_ids[0, : int(test.queries[0, 0]) + 1]  # up to the first query
            tokenizer = recall_tokenizer(config.task, example.tolist())
            tokenizer.save_pretrained(folder / "model")
    steps = trainer.state.global_step
    write_json(folder / "results.json", _results(config, model, steps, metrics, has_diverged))


def _results(
    config: RecallConfig,
    model: DiffTransformerForCausalLM,
    steps: int,
    metrics: _RecallCallback,
    has_diverged: bool,
) -> dict[str, Any]:
    test = held_out(config, TEST)
    hits = torch.zeros_like(test.queries).double()
    if not has_diverged:
        hits, _ = recall_score(model, test)
    solved = metrics.solved()
    scored = [row for row in read_jsonl(metrics.path) if "accuracy" in row]
    results = {
        "schema": 1,
        "run": config.name,
        "task": config.task_name,
        "solved": solved is not None,
        "solved_step": solved,
        "diverged": has_diverged,
        "steps": steps,
        "sequences": steps * config.train.batch_sequences,
        "validation_loss": None if has_diverged else scored[-1]["validation_loss"],
        "test_accuracy": float(hits.mean()),
        "test_by_query": hits.mean(0).tolist(),
        "test_sequences": len(test.input_ids),
        "ceilings": guessing_ceilings(config.task),
        "lam": None if has_diverged else layer_lambdas(model, **metrics.probe),
        "largest_write": max(scored[0]["writes"]),
        "metrics": log_facts(metrics.path),
    }
    if isinstance(config.task, NoisyRecallConfig) and not has_diverged:
        results["attention"] = attention_shares(model, config.task, test)
    if isinstance(config.task, LookupConfig | ManyShotConfig) and not has_diverged:
        results["measures"] = practical_measures(model, config.task)
    return results
