"""``watch.jsonl``: activations, λ, gradient norm and speed, every so many steps."""

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffattn.lab.training.callbacks import StepLog, peak_bytes, require_finite
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.monitoring.trackers import report
from diffattn.models.twins import flops_per_token
from diffattn.probes.activations import layer_activations


class WatchCallback(StepLog):
    """Appends a row every ``engine.watch_every`` steps.

    It measures on validation tokens, without gradients or random numbers: the run's result is the
    same without it, to the bit. All processes measure, because sharded models need them all.

    Args:
        probe: The validation windows, as arguments of
            :func:`diffattn.probes.activations.layer_activations`.
    """

    def __init__(
        self, folder: Path, config: RunConfig, probe: Mapping[str, Any], trainer: Any
    ) -> None:
        super().__init__(folder / "watch.jsonl")
        self.config, self.probe, self.trainer = config, probe, trainer
        self.seconds: list[float] = []
        self.began = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the step's clock."""
        self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the step's clock; measure at the chosen steps."""
        every, step = self.config.engine.watch_every, state.global_step
        if every is None:
            return
        self.seconds.append(time.perf_counter() - self.began)
        if step % every:
            return
        layers = layer_activations(kwargs["model"], **self.probe)
        norm = self.trainer.gradient_norm()
        for number, layer in enumerate(layers):
            require_finite(step, {f"{name} of layer {number}": x for name, x in layer.items()})
        require_finite(step, {"gradient_norm": norm})
        train, peak = self.config.train, self.config.engine.peak_flops
        # By the median step's wall time since the last row.
        speed = train.batch_tokens / statistics.median(self.seconds)
        flops = flops_per_token(self.config.model, train.seq_len, training=True)
        row: dict[str, Any] = {
            "step": step,
            "tokens": step * train.batch_tokens,
            "gradient_norm": norm,
            "layers": layers,
            "lam_below_0": [i for i, x in enumerate(layers) if x.get("lam_min", 0.0) < 0],
            "lam_above_1": [i for i, x in enumerate(layers) if x.get("lam_max", 0.0) > 1],
            "speed": {
                "tokens_per_second": speed,
                "mfu": None if peak is None else speed * flops / peak,
                "peak_bytes": peak_bytes(),
            },
        }
        self.seconds.clear()
        self.append(row)
        report(self.trainer, {name: row[name] for name in ("layers", "speed")})
