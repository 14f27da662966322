"""The losses of the steps since the last row of the log, which transformers does not save."""

import statistics
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_pt_utils import nested_gather

from diffattn.files.io import read_json, write_json
from diffattn.lab.training.checkpoints import Carried
from diffattn.lab.training.distributed import process_index

_FILE = "unlogged.json"


def unlogged_losses(trainer: Any) -> list[float]:
    """The sum of losses since the last row of the log, of every process; called by all of them."""
    sums: list[float] = (
        nested_gather(trainer._tr_loss, trainer.args.parallel_mode).view(-1).tolist()
    )
    return sums


class UnloggedLosses(TrainerCallback, Carried):
    """Carries the sums of losses since the last row of ``metrics.jsonl``.

    A run that was stopped between two rows therefore writes the same rows as one that was not.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.loaded: dict[str, Any] | None = None

    def save(self, checkpoint: Path) -> None:
        """Write the sums, unless the step has just been logged."""
        trainer = self.trainer
        if trainer._globalstep_last_logged == trainer.state.global_step:
            return
        sums = unlogged_losses(trainer)
        if trainer.is_world_process_zero():
            facts = {"loss_sums": sums, "last_logged": trainer._globalstep_last_logged}
            write_json(checkpoint / _FILE, facts)

    def load(self, checkpoint: Path) -> None:
        """Read the sums."""
        path = checkpoint / _FILE
        self.loaded = read_json(path) if path.exists() else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Go on from this process's sum, of other processes from their mean; transformers starts
        from 0 just before this."""
        if self.loaded is not None:
            sums = self.loaded["loss_sums"]
            is_ours = len(sums) == args.world_size
            total = sums[process_index()] if is_ours else statistics.fmean(sums)
            self.trainer._tr_loss = torch.tensor(total, device=args.device)
            self.trainer._globalstep_last_logged = self.loaded["last_logged"]
