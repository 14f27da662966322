"""Checkpoints that are either whole or do not count."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from diffattn.errors import CheckpointError, DiffAttnError
from diffattn.records.manifest import verify_manifest
from diffattn.training.distributed import is_first


class CheckpointCallback(TrainerCallback):
    """Keeps the two newest checkpoints.

    transformers' own limit goes by modification times, and warns where they are coarse.

    Args:
        folder: Where the checkpoints lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remove older checkpoints."""
        if not is_first():
            return
        for path in _checkpoints(self.folder)[:-2]:
            shutil.rmtree(path, ignore_errors=True)


def checkpoint_step(path: Path) -> int:
    """Steps done at a checkpoint, which its name tells."""
    return int(path.name.split("-")[1])


def last_checkpoint(folder: Path, on_message: Callable[[str], None]) -> Path | None:
    """The newest whole checkpoint, or ``None``.

    Args:
        folder: Where the checkpoints lie.
        on_message: Given one line for each newer one that is damaged, or that a killed process
            left half-written.
    """
    for path in reversed(_checkpoints(folder)):
        try:
            verify_manifest(path)
        except CheckpointError as error:
            on_message(f"{path.name} is not whole, an earlier one is used: {error}")
        else:
            return path
    return None


def _checkpoints(folder: Path) -> list[Path]:
    """All checkpoints, oldest first."""
    paths = (p for p in folder.glob("checkpoint-*") if p.name.split("-")[1].isdecimal())
    return sorted(paths, key=checkpoint_step)


@contextmanager
def written_whole(folder: Path) -> Iterator[None]:
    """Remove what was written if it could not all be, and say so in one line.

    What a killed process left there is removed first.

    Raises:
        DiffAttnError: Something went wrong, as a rule a full disk.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    # safetensors and torch raise these for a full disk, the tokenizer's Rust writer bare Exception.
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        reason = str(error).strip().split("\n")[0]
        free = shutil.disk_usage(folder.parent).free
        raise DiffAttnError(
            f"{folder}: must be written whole, got: {reason} ({free:,} bytes were free after "
            "that). The same command continues the run."
        ) from error
