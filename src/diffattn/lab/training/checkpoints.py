"""Checkpoints. One that is damaged or half-written is left out."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from diffattn.errors import CheckpointError, DiffAttnError
from diffattn.files.folders import verify_manifest
from diffattn.files.io import make_folder, sync
from diffattn.lab.training.config import EngineConfig
from diffattn.lab.training.distributed import wait_for_all


class CheckpointCallback(TrainerCallback):
    """Decides when a checkpoint is written, and which are kept.

    transformers picks the newest checkpoints by modification time. It also saves the interval in
    the checkpoint, so that a continued run could not change it. ``back_every``: steps between the
    checkpoints to which a run may go back.
    """

    def __init__(self, folder: Path, engine: EngineConfig, back_every: int | None = None) -> None:
        self.folder, self.engine, self.back_every = folder, engine, back_every

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save at the steps of ``save_every`` in place of the evaluations, and after the last."""
        if self.engine.save_every is not None and state.global_step < state.max_steps:
            every = (self.engine.save_every, self.back_every)
            control.should_save = any(n and state.global_step % n == 0 for n in every)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Clear away old checkpoints; the other processes wait."""
        if state.is_world_process_zero:
            step, every = state.global_step, self.back_every
            done = [path for path in _checkpoints(self.folder) if checkpoint_step(path) <= step]
            # Checkpoints of later steps are damaged, else the run had continued from them.
            for path in _checkpoints(self.folder)[len(done) :]:
                shutil.rmtree(path, ignore_errors=True)
            # Targets of a roll-back from the next step, and from this step if it fails late.
            needed = {step // every * every, (step - 1) // every * every} if every else set()
            for path in done[: -self.engine.keep_checkpoints]:
                if checkpoint_step(path) not in needed:
                    _clear(path, self.engine.keep_every)
        wait_for_all()


def clear_checkpoints(folder: Path, keep_every: int | None) -> None:
    """Remove the checkpoints of a finished run; move those that stay to ``kept/``."""
    for path in _checkpoints(folder):
        _clear(path, keep_every)
    shutil.rmtree(folder, ignore_errors=True)


def _clear(path: Path, keep_every: int | None) -> None:
    if keep_every is None or checkpoint_step(path) % keep_every:
        shutil.rmtree(path, ignore_errors=True)
        return
    kept = path.parents[1] / "kept" / path.name
    make_folder(kept.parent)
    shutil.rmtree(kept, ignore_errors=True)  # of steps that were undone
    path.rename(kept)
    sync(kept.parent)


def checkpoint_step(path: Path) -> int:
    """Steps done at a checkpoint, from its name."""
    return int(path.name.split("-")[1])


def last_checkpoint(
    folder: Path,
    on_message: Callable[[str], None],
    *,
    fits: Callable[[Path], bool] = lambda checkpoint: True,
) -> Path | None:
    """The newest checkpoint that is whole and ``fits`` the run's decisions; misfits are removed."""
    paths = _checkpoints(folder)
    for path in reversed(paths):
        try:
            verify_manifest(path)
        except CheckpointError as error:
            then = "training begins anew" if path == paths[0] else "an earlier one is used"
            on_message(f"{path.name} is not whole, {then}: {error}")
        else:
            if fits(path):
                return path
            on_message(f"{path.name} has learned from batches that are left out now: removed")
            shutil.rmtree(path)
    return None


def _checkpoints(folder: Path) -> list[Path]:
    paths = (p for p in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-[0-9]+", p.name))
    return sorted(paths, key=checkpoint_step)


def not_whole(folder: Path, error: Exception) -> DiffAttnError:
    """The error of a folder that could not be written, in one line; its parent must exist."""
    reason = str(error).strip().split("\n")[0]
    free = shutil.disk_usage(folder.parent).free
    return DiffAttnError(
        f"{folder}: must be written whole, got: {reason} ({free:,} bytes were free after that). "
        "The same command continues the run."
    )
