"""Building blocks of the HTML tables."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from diffattn.report.page.wording import esc, type_color, type_name

_NUMBER = '<td class="num"'


def table(caption: str, headers: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """One HTML table; a narrow page shows each row as a block of named values.

    Args:
        caption: Plain text; escaped here.
        headers: HTML of the header cells; no header row is shown if all are empty.
        rows: Rows of complete ``<th>`` or ``<td>`` elements.
    """
    headers, rows = list(headers), list(rows)
    # A header stands over its numbers: they are set flush right.
    numeric = [cell.startswith(_NUMBER) for cell in rows[0]] if rows else []
    head = "".join(
        f'<th scope="col"{" class=num" if right else ""}>{header}</th>'
        for header, right in zip_longest(headers, numeric)
    )
    body = "\n".join(f"<tr>{''.join(map(_labelled, headers, row))}</tr>" for row in rows)
    top = f"<thead><tr>{head}</tr></thead>\n" if any(headers) else ""
    return (
        f'<div class="scroll"><table><caption>{esc(caption)}</caption>\n'
        f"{top}<tbody>\n{body}\n</tbody></table></div>\n"
    )


def _labelled(header: str, cell: str) -> str:
    """Repeat the header in its cell, for pages too narrow for a header row."""
    return cell.replace("<td", f'<td data-label="{header}"', 1)


def type_cell(attention_type: str) -> str:
    """Row header: the colour and the human name of an attention type."""
    color = type_color(attention_type)
    return (
        f'<th scope="row"><span class="swatch" style="background:{color}"></span>'
        f"{esc(type_name(attention_type))}</th>"
    )


def number_cell(content: str, runs: Sequence[str] = ()) -> str:
    """A numeric cell; its tooltip names the runs that the number came from."""
    title = f' title="{esc("from " + ", ".join(runs))}"' if runs else ""
    return f"{_NUMBER}{title}>{content}</td>"


def word_cell(content: str) -> str:
    """A cell of words. The content is HTML: the caller has escaped it."""
    return f"<td>{content}</td>"


def run_cell(runs: Iterable[str]) -> str:
    """The names of the runs behind a row, each once."""
    names = "<br>".join(esc(run) for run in dict.fromkeys(runs))
    return f'<td class="runs">{names}</td>'


def per_run(pairs: Iterable[tuple[str, str]]) -> str:
    """One line per run: its value (HTML) and its name (plain)."""
    lines = "<br>".join(f"{value} <small>{esc(run)}</small>" for run, value in pairs)
    return f'<td class="runs">{lines}</td>'
