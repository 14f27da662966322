"""Tables on the screen."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

# Where nobody looks at it directly, a row is better long than broken.
_WIDTH_ELSEWHERE = 160


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows under the keys of the first one; nothing is ever left out for want of space."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_ELSEWHERE)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    name, *others = (key.replace("_", " ") for key in rows[0])
    table.add_column(name, no_wrap=True)  # what one has to type, in one piece
    for column in others:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key} {number:+,}" for key, number in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
