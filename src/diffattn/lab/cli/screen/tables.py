"""Tables on the screen."""

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

# In a file or a pipe, long rows are better than wrapped ones.
_WIDTH_ELSEWHERE = 160
_WIDEST_TEXT = 100
_GAP = 3
"""Columns of space between two columns of a table."""


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows under the keys of the first row. On a narrow screen cells wrap.

    Without rows nothing is printed.
    """
    if not rows:
        return
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=_WIDTH_ELSEWHERE)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    name, *others = (key.replace("_", " ") for key in rows[0])
    lines = [[_cell(value) for value in row.values()] for row in rows]
    columns = list(zip(*lines, strict=True))[1:]
    longest = [
        max(len(word) for text in (head, *column) for word in text.split() or [""])
        for head, column in zip(others, columns, strict=True)
    ]
    # Words are kept whole if every column has room for its longest word.
    room = console.width - max(len(line[0]) for line in lines) - _GAP * len(rows[0])
    fits = sum(longest) <= room
    # Names, which users type, do not wrap if there is room. Text() reads no markup: a name may hold
    # brackets.
    table.add_column(Text(name), overflow="fold", no_wrap=room >= len(others))
    for head, column in zip(others, columns, strict=True):
        one_word = not any(" " in text or "\n" in text for text in (head, *column))
        table.add_column(Text(head), overflow="fold", no_wrap=fits and one_word)
    for line in lines:
        table.add_row(*map(Text, line))
    console.print(table)


def print_groups(groups: Mapping[str, Sequence[tuple[str, ...]]]) -> None:
    """Print titles with rows below; the last cell of a row wraps within its column."""
    console = Console()
    width = min(console.width, _WIDEST_TEXT)
    for number, (title, rows) in enumerate(groups.items()):
        *columns, _ = zip(*rows, strict=True)
        widths = [max(map(len, column)) + 2 for column in columns]
        lines = [""] * (number > 0) + textwrap.wrap(title, width)
        for *cells, text in rows:
            begin = "  " + "".join(f"{cell:<{n}}" for cell, n in zip(cells, widths, strict=True))
            indent = " " * min(len(begin), width // 2)
            lines += textwrap.wrap(
                begin + text, width, subsequent_indent=indent, break_on_hyphens=False
            )
        console.print("\n".join(lines), markup=False, highlight=False)


def print_text(sentences: Iterable[str]) -> None:
    """Print sentences, each beginning on a new line."""
    console = Console()
    width = min(console.width, _WIDEST_TEXT)
    lines = [textwrap.fill(text, width, break_on_hyphens=False) for text in sentences]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key} {number:+,}" for key, number in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
