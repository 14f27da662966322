"""``maps.json`` of a recall study: the head that looks most at the answer, on one test sequence."""

from pathlib import Path
from typing import Any

import torch

from diffattn.lab.data.recall_tasks import NoisyRecallConfig
from diffattn.lab.studies.example_maps import maps_of
from diffattn.lab.studies.recall.config import RecallStudyConfig
from diffattn.lab.training.recall import TEST, held_out
from diffattn.lab.training.recall_attention import GROUPS, key_groups
from diffattn.models.loading import without_bars
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.probes.attention_rows import attention_rows


def recall_maps(config: RecallStudyConfig, runs: Path) -> dict[str, Any] | None:
    """Maps of every type on the first test sequence; ``None`` where no weights were kept.

    They are of the last layer's head that gives the answers the most weight.
    """
    task = config.tasks[0]
    if not isinstance(task.task, NoisyRecallConfig):
        return None
    batch = held_out(task, TEST)
    is_answer = (key_groups(task.task, batch)[0] == GROUPS.index("answer")).float()  # [Q, T]
    ids, queries = batch.input_ids[0], batch.queries[0]
    layers: dict[str, Any] = {}
    for name in config.types:
        run = f"{task.task_name}-{name}-seed{config.seeds[0]}"
        if not (runs / run / "model").exists():
            continue
        with without_bars():
            model = DiffTransformerForCausalLM.from_pretrained(runs / run / "model").eval()
        rows = attention_rows(model, ids[None])
        on_answers = (rows[-1].signed[:, queries].cpu() * is_answer).sum((-2, -1))
        layer, head = len(rows) - 1, int(on_answers.argmax())
        layers[name] = {"run": run, "layer": layer, "head": head}
        layers[name] |= maps_of(model, ids, layer, head)
    if not layers:
        return None
    return {"schema": 1, "tokens": token_names(task.task, ids), "layers": layers}


def token_names(task: NoisyRecallConfig, ids: torch.Tensor) -> list[str]:
    """A letter for each key, a digit for each value, a dot for noise."""

    def name(token: int) -> str:
        if token <= task.num_keys:
            return chr(ord("A") + token - 1)
        if token <= task.num_keys + task.num_values:
            return str(token - task.num_keys)
        return "·"

    return [name(token) for token in ids.tolist()]
