"""Tables and their cells as plain values; a template writes their HTML."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from diffattn.lab.report.page.wording import (
    MISSING,
    brief_names,
    ends,
    number,
    one_line,
    type_color,
    type_name,
)

_LONG_TEXT = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One cell. Its texts are plain text, not HTML."""

    text: str = ""
    kind: Literal["head", "words", "num", "long"] = "words"
    color: str = ""
    """Colour of the swatch before the text; empty for no swatch."""
    note: str = ""
    """A second line in smaller type."""
    runs: tuple[str, ...] = ()
    """Names of the runs behind a number, for its tooltip."""

    @property
    def source(self) -> str:
        """The runs in few words."""
        return ", ".join(brief_names(self.runs))


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table. A narrow page shows each row as a block of named values."""

    caption: str
    headers: tuple[str, ...]
    """No header row is shown if all are empty."""
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """Pairs of a header and whether its column holds numbers, which are aligned right."""
        first = self.rows[0] if self.rows else ()
        return [
            (header, cell is not None and cell.kind == "num")
            for header, cell in zip_longest(self.headers, first[: len(self.headers)])
        ]


def table(caption: str, headers: Iterable[str], rows: Iterable[Iterable[Any]]) -> Table:
    """Make a table of cells and of plain strings.

    A string in the first column names its row. A column of strings is numeric if every string is
    short, and is the mark of a missing value or begins with a number, also after "below".
    """
    lines = [tuple(row) for row in rows]

    def is_number(text: str) -> bool:
        starts = text == MISSING or re.match(r"(below )?[+−]?\d", text)
        return bool(starts) and len(text) <= _LONG_TEXT

    numeric = [
        all(isinstance(cell, Cell) or is_number(cell) for cell in column)
        for column in zip_longest(*lines, fillvalue=MISSING)
    ]

    def cell_of(text: Cell | str, place: int) -> Cell:
        if isinstance(text, Cell):
            return text
        if place == 0:
            return head_cell(text)
        if numeric[place]:
            return number_cell(text)
        return Cell(text=text, kind="long") if len(text) > _LONG_TEXT else word_cell(text)

    cells = (tuple(cell_of(cell, place) for place, cell in enumerate(row)) for row in lines)
    return Table(caption=caption, headers=tuple(headers), rows=tuple(cells))


def record_table(caption: str, records: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table of records with equal keys, one row each."""
    return table(caption, records[0] if records else (), (row.values() for row in records))


def table_markdown(values: Table) -> str:
    """A table in Markdown, notes in brackets. Ends in a newline."""
    rule = ["---:" if is_number else "---" for _, is_number in values.columns]
    texts = (
        [cell.text + (f" ({cell.note})" if cell.note else "") for cell in row]
        for row in values.rows
    )
    rows: list[Iterable[str]] = [values.headers, rule, *texts]
    # A bar inside a cell would end the cell, and a line break would end the row.
    escaped = ([one_line(text).replace("|", "\\|") for text in row] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in escaped)


def head_cell(text: str) -> Cell:
    """Row header."""
    return Cell(text=text, kind="head")


def type_cell(attention_type: str, note: str = "") -> Cell:
    """Row header: the colour and the human name of an attention type."""
    name, color = type_name(attention_type), type_color(attention_type)
    return Cell(text=name, kind="head", color=color, note=note)


def number_cell(text: str, runs: Sequence[str] = (), *, note: str = "") -> Cell:
    """A numeric cell; its tooltip names the runs that the number came from."""
    return Cell(text=text, kind="num", runs=tuple(runs), note=note)


def mean_cell(
    entry: Mapping[str, Any] | None,
    digits: int = 4,
    runs: Sequence[str] = (),
    *,
    signed: bool = False,
    none: str = "",
) -> Cell:
    """A recorded mean, with its interval or the text ``none`` below; a dash without a record."""
    if entry is None:
        return number_cell(MISSING)
    note = ends(entry, digits, signed=signed, none=none)
    return number_cell(number(entry["mean"], digits, signed=signed), runs, note=note)


def word_cell(text: str) -> Cell:
    """A cell of words. A damaged record may hold something else, which raises ``TypeError``."""
    if not isinstance(text, str):
        raise TypeError(f"a cell of words must be text, got {type(text).__name__}")
    return Cell(text=text)
