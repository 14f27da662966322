"""``postmortem.json``: the state of a run when its numbers were no longer finite."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diffattn.errors import DiffAttnError
from diffattn.files.io import recover_jsonl, write_json
from diffattn.lab.training.callbacks import METRICS, DivergenceError
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.distributed import micro_batch
from diffattn.lab.training.monitoring.batch_guard import step_windows
from diffattn.layers.saved_names import saved_name
from diffattn.models.chunked_loss import IGNORED
from diffattn.probes.activations import layer_activations

POSTMORTEM = "postmortem.json"
_ROWS = 50


def write_postmortem(folder: Path, config: RunConfig, trainer: Any, error: DivergenceError) -> None:
    """Compute the step that failed once more, and write losses, activations and gradients.

    The weights are the run's last. If the guard judges batches, the failed step has not changed
    them; else they include all updates until a log or evaluation found the failure. The trainer's
    gradients are overwritten.
    """
    step = max(1, error.step)
    rows = recover_jsonl(folder / METRICS)[0]
    losses = [[row["step"], row["train_loss"]] for row in rows if "train_loss" in row]
    weights = trainer.model.named_parameters()
    facts = {
        "kind": "postmortem",
        "schema": 1,
        "run": config.name,
        "reason": str(error),
        "step": error.step,
        "updates_made": trainer.state.global_step,
        "windows": step_windows(trainer.train_dataset, step, step, config),
        "losses_before": losses[-_ROWS:],
        "weights_not_finite": [saved_name(n) for n, x in weights if not x.isfinite().all()],
        **_diagnosis(config, trainer, step),
    }
    if trainer.is_world_process_zero():
        write_json(folder / POSTMORTEM, _plain(facts))


def _diagnosis(config: RunConfig, trainer: Any, step: int) -> dict[str, Any]:
    """Activations, λ and gradient norms for the step's batch, or the error that prevented them."""
    facts: dict[str, Any] = {"layers": None, "gradient_norms": None, "stopped_by": None}
    size, micro = config.train.batch_sequences, micro_batch(config.train)
    items = [trainer.train_dataset[i] for i in range((step - 1) * size, step * size)]
    batches = [trainer.data_collator(items[i : i + micro]) for i in range(0, size, micro)]
    predicted = sum(int((batch["labels"][:, 1:] != IGNORED).sum()) for batch in batches)
    model: Any = trainer.model
    try:
        first = batches[0]
        facts["layers"] = layer_activations(model, first["input_ids"], first.get("position_ids"))
        model.zero_grad()
        model.train()
        for batch in batches:
            inputs = trainer._prepare_inputs(batch)
            model(**inputs, num_items_in_batch=predicted).loss.backward()
        facts["gradient_norms"] = gradient_norms(model)
    except DiffAttnError as fault:  # the operator refuses a λ that is not finite
        facts["stopped_by"] = str(fault)
    return facts


def gradient_norms(model: nn.Module) -> dict[str, float]:
    """Group of parameters -> gradient norm. A group is a module; its λ parameters are apart."""
    groups: dict[str, list[torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            group, _, last = saved_name(name).rpartition(".")
            group += ".lambda" * last.startswith("lambda_")
            groups.setdefault(group, []).append(parameter.grad)
    return {
        group: float(torch.stack([x.double().norm() for x in grads]).norm())
        for group, grads in groups.items()
    }


def _plain(value: Any) -> Any:
    """Numbers that are not finite as text: JSON has no NaN or infinity."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
