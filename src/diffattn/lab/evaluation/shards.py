"""Shares of an evaluation that lie beside it, and their answers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.lab.evaluation.read_data import recorded_data
from diffattn.lab.records.claim import difference
from diffattn.lab.records.evaluations import EvalResult
from diffattn.lab.records.run import RunRecord

FREE_SETTINGS = ("model.path",)
"""The place of the weights does not matter: their hash tells whether they are the same."""


def all_finished(folder: Path, count: int) -> bool:
    """Whether all ``count`` shares have a result."""
    names = (f"{folder.name}.shard-{i}-of-{count}" for i in range(1, count + 1))
    return all((folder.parent / name / "result.json").exists() for name in names)


def rows_of_shards(
    folder: Path, config: Mapping[str, Any], data: str, on_message: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Rows of all finished shares with the same settings and data; others are named and left out.

    The place of the weights and the share itself may differ.
    """
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.parent.glob(f"{folder.name}.shard-*")):
        if not (path / "result.json").exists():
            continue
        try:
            recorded = RunRecord.read(path).config
            if difference("", recorded, config, ["shard", *FREE_SETTINGS]) is not None:
                on_message(f"{path.name} has other settings and is left out")
            elif recorded_data(path) not in (None, data):
                on_message(f"{path.name} has read other data and is left out")
            else:
                rows += EvalResult.read(path).read_items(path)
        except CheckpointError as error:
            on_message(f"A share is left out: {error}")
    return rows
