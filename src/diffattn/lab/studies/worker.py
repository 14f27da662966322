"""Runs of a study in a process of their own: ``python -m diffattn.lab.studies.worker``.

Reads jobs, a line each, from standard input and writes one JSON line per event to standard output.
Ends when its standard input does, even within a run: then nobody waits for it.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from diffattn.errors import DiffAttnError
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.training.config import RunConfig


def job(
    config: Any,
    facts: dict[str, Any],
    data: Path | None,
    folder: Path,
    *,
    records_divergence: bool = False,
) -> str:
    """Everything a worker needs to know, as one JSON document; without ``data`` a recall task."""
    return json.dumps(
        {
            "name": config.name,
            "config": config.resolved(),
            "engine": asdict(config.engine) if isinstance(config, RunConfig) else None,
            "init": asdict(config.init) if isinstance(config, RunConfig) and config.init else None,
            "facts": facts,
            "records_divergence": records_divergence,
            "data": None if data is None else str(data),
            "folder": str(folder),
        }
    )


def main() -> int:
    """Run the jobs on standard input; 0 done, 1 failed."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library may print goes to the log
    orders: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    idle = threading.Event()
    idle.set()
    threading.Thread(target=_take_orders, args=(orders, idle), daemon=True).start()

    def send(**event: Any) -> None:
        print(json.dumps(event), file=events, flush=True)

    while (order := orders.get()) is not None:
        try:
            _train(order, send)
        except DiffAttnError as error:
            send(error=f"{order['name']}: {error}")
            return 1
        except OSError as error:  # a full disk, a folder that may not be written
            send(error=f"{order['name']}: files must be writable, got {error}.")
            return 1
        idle.set()  # before the answer, after which standard input may end
        send(done=True)
    return 0


def _train(order: dict[str, Any], send: Callable[..., None]) -> None:
    import torch

    torch.set_num_threads(1)
    last = 0.0

    def on_progress(step: int, loss: float | None) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5 or step == order["config"]["train"]["num_steps"]:
            last = time.monotonic()
            send(step=step, loss=loss)

    def on_message(line: str) -> None:
        send(message=line)

    # A worker whose parent was killed ends at once, but perhaps a moment after this one began.
    with sole_writer(Path(order["folder"]), wait=True):
        pass
    run = _train_on_task if order["data"] is None else _train_on_text
    run(order, on_progress=on_progress, on_message=on_message)


def _train_on_text(order: dict[str, Any], **callbacks: Callable[..., None]) -> None:
    from diffattn.lab.training.config import DataConfig, GuardConfig, InitConfig, TrainConfig
    from diffattn.lab.training.engine import EngineConfig
    from diffattn.lab.training.prepare import open_data
    from diffattn.lab.training.stability import RECORDED, StabilityRun, train_recorded
    from diffattn.lab.training.trainer import train
    from diffattn.lab.training.windows import WindowConfig
    from diffattn.models.config.configuration_diff_transformer import DiffTransformerConfig

    settings = order["config"]
    of_stability = settings.get("divergence") == RECORDED
    config = (StabilityRun if of_stability else RunConfig)(
        name=order["name"],
        model=DiffTransformerConfig(**settings["model"]),
        train=TrainConfig(**settings["train"]),
        data=DataConfig(**settings["data"]),
        guard=GuardConfig(**settings.get("guard", {})),
        engine=EngineConfig(**order["engine"]),
        windows=WindowConfig(**settings.get("windows", {})),
        init=InitConfig(**order["init"]) if order["init"] else None,
        gradient_steps=tuple(settings.get("gradient_steps", ())),
    )
    data = open_data(Path(order["data"]))
    may_diverge = of_stability or order["records_divergence"]
    run: Callable[..., Any] = train_recorded if may_diverge else train
    run(config, data, Path(order["folder"]), facts=order["facts"], **callbacks)


def _train_on_task(order: dict[str, Any], **callbacks: Callable[..., None]) -> None:
    from diffattn.lab.training.recall import train_recall
    from diffattn.lab.training.recall_config import RecallConfig

    config = RecallConfig.from_resolved(order["name"], order["config"])
    train_recall(config, Path(order["folder"]), facts=order["facts"], **callbacks)


def _take_orders(orders: "SimpleQueue[dict[str, Any] | None]", idle: threading.Event) -> None:
    with os.fdopen(os.dup(0), encoding="utf-8") as lines:  # whose lock is no one else's
        for line in lines:
            idle.clear()
            orders.put(json.loads(line))
    if not idle.is_set():
        os._exit(1)
    orders.put(None)


if __name__ == "__main__":
    sys.exit(main())
