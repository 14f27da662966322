"""``transformers.Trainer`` as everything that watches over a run needs it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer

from diffattn.lab.training.checkpoints import Carried
from diffattn.lab.training.monitoring.batch_guard import BatchGuard
from diffattn.lab.training.monitoring.signals import StopSignals
from diffattn.lab.training.monitoring.trackers import flat
from diffattn.lab.training.monitoring.unlogged import UnloggedLosses


class MonitoredTrainer(Trainer):
    """Stops when asked to, carries more than transformers does, and knows gradient norms."""

    guard: BatchGuard | None = None
    """Judges every step, if a policy says so."""
    signals: StopSignals
    """Those that came while it trained."""
    _norm: Tensor | float | None = None

    def train_from(self, checkpoint: Path | None) -> None:
        """Train from a checkpoint, or from the start, until the end or a signal.

        Raises:
            Terminated: SIGTERM came, and a checkpoint is saved.
            KeyboardInterrupt: SIGINT came, and a checkpoint is saved.
            RolledBack: Training has to begin again, and no signal came.
        """
        self.add_callback(UnloggedLosses(self))
        if checkpoint is not None:
            for carried in self._carried():
                carried.load(checkpoint)
        with StopSignals() as self.signals:
            self.add_callback(self.signals)
            self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        saved = f"The checkpoint of step {self.state.global_step} is saved"
        self.signals.require_none(saved, self.args.device)

    def save_carried(self, folder: Path) -> None:
        """Add to a checkpoint what transformers does not save."""
        for carried in self._carried():
            carried.save(folder)

    def gradient_norm(self) -> float | None:
        """Of the last step, before clipping; ``None`` if its batch was left out."""
        return None if self._norm is None else float(self._norm)

    def _carried(self) -> list[Carried]:
        return [c for c in self.callback_handler.callbacks if isinstance(c, Carried)]

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        self._norm = super()._get_grad_norm(model, grad_norm)
        return self._norm

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One forward and backward pass, unless the step is known to be left out."""
        if self.guard is None:
            return super().training_step(model, inputs, num_items_in_batch)
        if self.guard.skips(self.state.global_step + 1):
            return torch.zeros((), device=self.args.device)
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        self.guard.step_losses.append(loss)
        return loss

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Log; to trackers losses by part are numbers of their own."""
        numbers: dict[str, Any] = {}
        for name, value in logs.items():
            numbers |= flat({name: value}) if isinstance(value, dict) else {name: value}
        super().log(numbers, start_time)
