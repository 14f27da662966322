"""``maps.json``: attention maps of every type on the first validation tokens."""

from pathlib import Path
from typing import Any

import torch

from diffattn.files.io import read_json
from diffattn.lab.catalog.models import VARIANTS
from diffattn.lab.studies.example_maps import maps_of
from diffattn.lab.studies.text.comparison import ComparisonConfig, trial_name
from diffattn.lab.training.prepare import PreparedData
from diffattn.models.loading import load_model

EXAMPLE_TOKENS = 48


def example_maps(config: ComparisonConfig, data: PreparedData, folder: Path) -> dict[str, Any]:
    """Maps of the middle layer's first head, of the first seed: chosen in advance.

    Where the weights of a run are gone its recorded maps stay; without them there are none.
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
            model, _ = load_model(str(weights))
            layers[name] = {"run": run, "layer": layer, "head": 0} | maps_of(model, ids, layer)
        elif earlier.get(name, {}).get("run") == run:  # records are committed without weights
            layers[name] = earlier[name]
    return {"schema": 1, "tokens": labels, "layers": layers}
