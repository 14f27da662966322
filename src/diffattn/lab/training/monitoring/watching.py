"""``watch.jsonl``: what a run looks like from inside, every so many steps."""

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from diffattn.files.io import append_jsonl
from diffattn.lab.training.callbacks import peak_bytes, require_finite
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.monitoring.rewinding import rewind
from diffattn.models.accounting import flops_per_token
from diffattn.probes.activations import layer_activations

WATCH = "watch.jsonl"


class WatchCallback(TrainerCallback):
    """Appends a row of activations, λ, gradient norm and speed.

    Measured on validation tokens, without gradients and without drawing random numbers: a run
    that is watched ends as one that is not, to the bit. All processes measure, as sharded models
    need; the first one writes.

    Args:
        folder: Run directory.
        config: The run.
        probe: The validation windows that are read, as
            :func:`diffattn.probes.activations.layer_activations` takes them.
        gradient_norm: Gives that of the last step, before clipping; ``None`` if it was left out.
        report: Given each row.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        probe: Mapping[str, Any],
        *,
        gradient_norm: Callable[[], float | None],
        report: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self.path = folder / WATCH
        self.config = config
        self.probe = probe
        self.gradient_norm = gradient_norm
        self.report = report
        self.seconds: list[float] = []
        self.began = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remove the rows of steps that are done again."""
        if state.is_world_process_zero:
            rewind(self.path, state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the step's clock."""
        self.began = time.perf_counter()

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Stop the step's clock; measure if it is time to."""
        every = self.config.engine.watch_every
        if every is None:
            return
        self.seconds.append(time.perf_counter() - self.began)
        if state.global_step % every:
            return
        step = state.global_step
        layers = layer_activations(model, **self.probe)
        norm = self.gradient_norm()
        for number, layer in enumerate(layers):
            require_finite(step, {f"{name} of layer {number}": x for name, x in layer.items()})
        require_finite(step, {"gradient_norm": norm})
        row: dict[str, Any] = {
            "step": step,
            "tokens": step * self.config.train.batch_tokens,
            "gradient_norm": norm,
            "layers": layers,
            "lam_below_0": [i for i, x in enumerate(layers) if x.get("lam_min", 0.0) < 0],
            "lam_above_1": [i for i, x in enumerate(layers) if x.get("lam_max", 0.0) > 1],
            "speed": self._speed(),
        }
        self.seconds.clear()
        if state.is_world_process_zero:
            append_jsonl(self.path, row)
        self.report({name: row[name] for name in ("layers", "speed")})

    def _speed(self) -> dict[str, float | None]:
        """By the clock on the wall and the median step since the last row."""
        train, peak = self.config.train, self.config.engine.peak_flops
        speed = train.batch_tokens / statistics.median(self.seconds)
        flops = flops_per_token(self.config.model, train.seq_len, training=True)
        return {
            "tokens_per_second": speed,
            "mfu": None if peak is None else speed * flops / peak,
            "peak_bytes": peak_bytes(),
        }
