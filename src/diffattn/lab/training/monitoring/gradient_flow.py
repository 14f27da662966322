"""``gradients.jsonl``: sizes of gradients and updates at chosen steps of a run."""

from pathlib import Path
from typing import Any

from diffattn.files.io import write_jsonl
from diffattn.lab.training.callbacks import StepLog
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.distributed import require_one_process
from diffattn.probes.gradients import GradientProbe

GRADIENTS = "gradients.jsonl"


class GradientFlowCallback(StepLog):
    """Appends a row of :class:`GradientProbe` at each of ``config.gradient_steps``.

    It reads the tensors of the step and draws no random numbers: the run's result is the same
    without it, to the bit. A step that is left out has no row: its ``gradient_norm`` is ``None``.
    """

    def __init__(self, folder: Path, config: RunConfig, trainer: Any) -> None:
        require_one_process("a run whose gradients are measured")
        super().__init__(folder / GRADIENTS)
        self.config, self.trainer = config, trainer
        self.probe: GradientProbe | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the file, which stays empty where every chosen step is left out."""
        super().on_train_begin(args, state, control, **kwargs)
        if not self.path.exists():
            write_jsonl(self.path, [])

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach the probe before a chosen step."""
        if state.global_step + 1 in self.config.gradient_steps:
            self.probe = GradientProbe(kwargs["model"])
            self.probe.begin()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the weights, and the factor of the clipping that has happened, as torch has it."""
        if self.probe is None:
            return
        norm, most = self.trainer.gradient_norm(), self.config.train.max_grad_norm
        if norm is None:
            self.probe.end()
            self.probe = None
        else:
            factor = min(1.0, most / (norm + 1e-6)) if most else 1.0
            self.probe.before_step(kwargs["optimizer"], factor)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure and write."""
        if self.probe is not None:
            step = state.global_step + 1
            row = {"step": step, "tokens": step * self.config.train.batch_tokens}
            norm, layers = self.trainer.gradient_norm(), self.probe.after_step()
            self.append({**row, "gradient_norm": norm, "layers": layers})
            self.probe = None
