"""Checkpoints. One that is damaged or half-written is left out."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from diffattn.errors import CheckpointError, DiffAttnError
from diffattn.files.folders import MANIFEST, verify_manifest
from diffattn.files.io import file_hash, make_folder, sync
from diffattn.lab.training.distributed import wait_for_all
from diffattn.lab.training.engine import EngineConfig

KEPT = "kept"
"""Folder in the run directory for copies of checkpoints that stay after the run."""


class CheckpointCallback(TrainerCallback):
    """Decides when a checkpoint is written, and which are kept.

    transformers picks the newest checkpoints by modification time. It also saves the interval in
    the checkpoint, so that a continued run could not change it.

    Args:
        back_every: Steps between the checkpoints to which a run may go back. Each is written, and
            kept while the run may need it. Default: the run never goes back.
    """

    def __init__(
        self,
        folder: Path,
        engine: EngineConfig,
        back_every: int | None = None,
        on_message: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.folder, self.kept, self.engine = folder, folder.parent / KEPT, engine
        self.back_every, self.on_message = back_every, on_message

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the copies that a killed process left undone; the other processes wait."""
        if state.is_world_process_zero:
            for path in self._to_copy(state.global_step):
                try:
                    verify_manifest(path)
                except CheckpointError as error:
                    self.on_message(f"{path.name} is not whole and cannot be kept: {error}")
                else:
                    self._copy(path)
        wait_for_all()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save at the steps of ``save_every`` in place of the evaluations, and after the last."""
        if self.engine.save_every is not None and state.global_step < state.max_steps:
            every = (self.engine.save_every, self.back_every)
            control.should_save = any(n and state.global_step % n == 0 for n in every)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Copy the newest checkpoint, if it stays; remove old ones. Other processes wait."""
        if state.is_world_process_zero:
            step = state.global_step
            for path in self._to_copy(step):
                if checkpoint_step(path) == step:
                    self._copy(path)
            done = self._checkpoints_until(step)
            # Checkpoints of later steps are damaged, else the run had continued from them.
            ahead = [path for path in _checkpoints(self.folder) if path not in done]
            # Targets of a roll-back from the next step, and from this step if it fails late.
            every = self.back_every
            needed = {step // every * every, (step - 1) // every * every} if every else set()
            for path in ahead + done[: -self.engine.keep_checkpoints]:
                if checkpoint_step(path) not in needed:
                    shutil.rmtree(path, ignore_errors=True)
        wait_for_all()

    def _checkpoints_until(self, step: int) -> list[Path]:
        return [path for path in _checkpoints(self.folder) if checkpoint_step(path) <= step]

    def _to_copy(self, step: int) -> list[Path]:
        """Checkpoints that need a copy: they have none, or one from steps that were undone."""
        every = self.engine.keep_every
        return [
            path
            for path in self._checkpoints_until(step)
            if every is not None
            and checkpoint_step(path) % every == 0
            and _manifest(path) != _manifest(self.kept / path.name)
        ]

    def _copy(self, path: Path) -> None:
        kept, unfinished = self.kept / path.name, self.kept / f".{path.name}.tmp"
        make_folder(self.kept)
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            shutil.copytree(path, unfinished)
            verify_manifest(unfinished)
            for copied in (*unfinished.iterdir(), unfinished):  # the original will be removed
                sync(copied)
        except (OSError, CheckpointError) as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise not_whole(unfinished, error) from error
        shutil.rmtree(kept, ignore_errors=True)
        unfinished.rename(kept)
        sync(self.kept)


def _manifest(folder: Path) -> str | None:
    """A hash of the hashes of a folder's files."""
    path = folder / MANIFEST
    return file_hash(path) if path.exists() else None


def checkpoint_step(path: Path) -> int:
    """Steps done at a checkpoint, from its name."""
    return int(path.name.split("-")[1])


def last_checkpoint(
    folder: Path,
    on_message: Callable[[str], None],
    *,
    fits: Callable[[Path], bool] = lambda checkpoint: True,
) -> Path | None:
    """The newest checkpoint that is whole and ``fits`` the run's decisions; misfits are removed.

    ``on_message`` is called with one line for each newer checkpoint that is left out.
    """
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
    """All checkpoints, oldest first."""
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
