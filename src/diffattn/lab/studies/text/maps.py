"""``maps.json``: attention maps of every type on the first validation tokens."""

from pathlib import Path
from typing import Any

import torch

from diffattn.files.io import read_json
from diffattn.lab.catalog.models import VARIANTS
from diffattn.lab.studies.text.comparison import ComparisonConfig, trial_name
from diffattn.lab.training.prepare import PreparedData
from diffattn.models.loading import load_model
from diffattn.probes.attention_rows import attention_rows

EXAMPLE_TOKENS = 48


def example_maps(config: ComparisonConfig, data: PreparedData, folder: Path) -> dict[str, Any]:
    """Maps of the middle layer's first head, of the first seed: chosen in advance.

    Where the weights of a run are gone its recorded maps stay; without them there are none.

    Args:
        config: The comparison.
        data: Its tokens.
        folder: Study folder.
    """
    path = folder / "maps.json"
    length = min(EXAMPLE_TOKENS, config.base.train.seq_len, data.validation.num_tokens)
    ids = torch.tensor(data.validation.tokens[:length].tolist())
    labels = [data.tokenizer.decode([token]) for token in ids.tolist()]
    recorded = read_json(path) if path.exists() else {}
    earlier = recorded["layers"] if recorded.get("tokens") == labels else {}
    layers: dict[str, Any] = {}
    for name in config.variants:
        if VARIANTS[name].role not in ("baseline", "type"):
            continue
        run = trial_name(name, config.seeds[0])
        weights = folder / "runs" / run / "model"
        if weights.exists():
            layer = config.base.model.num_hidden_layers // 2
            layers[name] = {"run": run, "layer": layer, "head": 0} | _maps(weights, ids, layer)
        elif earlier.get(name, {}).get("run") == run:  # records are committed without weights
            layers[name] = earlier[name]
    return {"schema": 1, "tokens": labels, "layers": layers}


def _maps(weights: Path, ids: torch.Tensor, layer: int) -> dict[str, Any]:
    model, _ = load_model(str(weights))
    rows = attention_rows(model, ids[None])[layer]
    first, *second = rows.maps[0]
    entry: dict[str, Any] = {"map_1": _rounded(first)}
    if second:
        entry["map_2"] = _rounded(second[0])
        entry["difference"] = _rounded(rows.signed[0])
        # Every row of the difference sums to 1 − λ; V2 has one λ per row, so give their mean.
        entry["lam"] = round(1.0 - float(rows.signed[0].sum(-1).mean()), 4)
    return entry


def _rounded(x: torch.Tensor) -> list[list[float]]:
    return [[round(value, 4) for value in row] for row in x.tolist()]
