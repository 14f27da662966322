"""Lines of the launch table that ``tools/tune.py`` found, as source and put in force.

    PYTHONPATH=src python -m tools.measures.tuned_table bench ops --out FILE [--table RECORD.json]

A command of ``diffattn`` whose kernels are launched by the record's tiles, without one by the
package's. By a record everything is measured anew, for the result does not name its tiles.
"""

import argparse
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.io import read_json
from diffattn.lab.cli.app import main
from diffattn.ops.triton import configs
from diffattn.ops.triton.configs import LaunchConfig
from tools.measures.candidates import CANDIDATES


def lines_path(out: Path) -> Path:
    """Where the lines for the table lie, of the record ``out``."""
    return out.with_suffix(".lines.txt")


def lines_text(row: int, lines: Mapping[str, Any]) -> str:
    """One row of ``configs.SEEDS``, as source."""
    rows = []
    for launch, tiles in lines.items():
        columns = [str(tuple(tile)) if tile else "None" for tile in tiles]
        forms = (", ".join(columns[:3]), ", ".join(columns[3:]))  # one line for V1, one for V2
        head = f'        "{launch}": ('
        if any(tiles):
            rows.append(f"{head}{forms[0]},\n{' ' * len(head)}{forms[1]}),")
    return "\n".join([f"    {row}: {{", *rows, "    },", ""])


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedTable:
    """A tuner's result for one row of the launch table."""

    row: int
    lines: Mapping[str, Any]
    """Tiles by launch, as in ``configs.SEEDS``."""

    def in_force(self) -> AbstractContextManager[None]:
        """A context in which kernels launch by these lines."""
        return patch.dict(configs.SEEDS, {self.row: dict(self.lines)})


def read_table(path: Path, device: str) -> TunedTable:
    """The lines of a record of ``tools.tune``, to be launched on ``device``.

    It may be incomplete: a line that was not searched holds the package's tiles.

    Raises:
        CheckpointError: The file is missing, damaged or no record of the tuner.
        ConfigError: It is of other chips than this device.
    """
    record = read_json(path)
    row, lines = record.get("row"), record.get("lines", {})
    if row not in configs.CAPABILITIES or not _are_lines(lines, configs.SEEDS[row]):
        raise CheckpointError(
            f"{path}: must be the record of 'python -m tools.tune' by this version's launches, got "
            "another file."
        )
    here = configs.device_row(torch.device(device))
    if here != row:
        raise ConfigError(
            f"bench: the table must be for this device, row {here} of the launch table, got "
            f"row {row}."
        )
    tiles = {name: tuple(tuple(x) if x else None for x in line) for name, line in lines.items()}
    return TunedTable(row=row, lines=tiles)


def _are_lines(lines: Any, shipped: Mapping[str, Any]) -> bool:
    columns, numbers = {len(line) for line in shipped.values()}, len(fields(LaunchConfig))
    return (
        isinstance(lines, dict)
        and set(shipped) <= set(lines) <= set(shipped) | set(CANDIDATES)
        and all(isinstance(line, list) and len(line) in columns for line in lines.values())
        and all(not tile or len(tile) == numbers for line in lines.values() for tile in line)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, add_help=False, allow_abbrev=False)
    parser.add_argument("--table", type=Path)
    given, words = parser.parse_known_args()
    table = None if given.table is None else read_table(given.table, "cuda")
    sys.argv = ["diffattn", *words, *(["--fresh"] if table else [])]
    with table.in_force() if table else nullcontext():
        main()
