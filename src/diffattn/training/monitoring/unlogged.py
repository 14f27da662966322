"""The losses of the steps since the last row of the log, which transformers does not save."""

from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_pt_utils import nested_gather

from diffattn.records.io import read_json, write_json
from diffattn.training.checkpoints import Carried

_FILE = "unlogged.json"


class UnloggedLosses(TrainerCallback, Carried):
    """Carries the sum of losses that a row of ``metrics.jsonl`` will be the mean of.

    A run that was stopped between two rows therefore writes the same rows as one that was not.

    Args:
        trainer: Whose sum it is.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.loaded: dict[str, Any] | None = None

    def save(self, checkpoint: Path) -> None:
        """Write the sum; nothing, where the step has just been logged."""
        trainer = self.trainer
        if trainer._globalstep_last_logged == trainer.state.global_step:
            return
        total = nested_gather(trainer._tr_loss, trainer.args.parallel_mode).mean().item()
        if trainer.is_world_process_zero():
            facts = {"loss_sum": total, "last_logged": trainer._globalstep_last_logged}
            write_json(checkpoint / _FILE, facts)

    def load(self, checkpoint: Path) -> None:
        """Read the sum."""
        path = checkpoint / _FILE
        self.loaded = read_json(path) if path.exists() else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Go on from the sum; transformers starts from 0 just before this."""
        if self.loaded is not None:
            self.trainer._tr_loss = torch.tensor(self.loaded["loss_sum"], device=args.device)
            self.trainer._globalstep_last_logged = self.loaded["last_logged"]
