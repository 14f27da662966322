"""One run of a comparison in a process of its own: ``python -m diffattn.studies.worker``.

Reads a job from standard input and writes one JSON line per event to standard output.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from diffattn.errors import DiffAttnError


def job(config: Any, facts: dict[str, Any], data: Path, folder: Path) -> str:
    """Everything a worker needs to know, as one JSON document."""
    return json.dumps(
        {
            "name": config.name,
            "config": config.resolved(),
            "facts": facts,
            "data": str(data),
            "folder": str(folder),
        }
    )


def main() -> int:
    """Run the job on standard input; 0 done, 1 failed."""
    import torch
    from transformers.utils import logging

    from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
    from diffattn.training.config import DataConfig, RunConfig, TrainConfig
    from diffattn.training.prepare import open_data
    from diffattn.training.trainer import train

    order = json.load(sys.stdin)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    settings = order["config"]
    config = RunConfig(
        name=order["name"],
        model=DiffTransformerConfig(**settings["model"]),
        train=TrainConfig(**settings["train"]),
        data=DataConfig(**settings["data"]),
    )
    last = 0.0

    def progress(step: int, loss: float | None) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5 or step == config.train.num_steps:
            last = time.monotonic()
            _tell(step=step, loss=loss)

    try:
        data = open_data(Path(order["data"]))
        train(config, data, Path(order["folder"]), facts=order["facts"], progress=progress)
    except DiffAttnError as error:
        _tell(error=str(error))
        return 1
    except OSError as error:  # a full disk, a folder that may not be written
        _tell(error=f"{config.name}: files must be writable, got {error}.")
        return 1
    _tell(done=True)
    return 0


def _tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(main())
