"""Number formats and verdicts, everywhere the same. Plain text throughout."""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from diffattn.lab.catalog.models import type_color as type_color
from diffattn.lab.catalog.models import type_name as type_name

MISSING = "—"
WHITE_SPACE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})
"""White space -> the character that shows it in tokens."""
_LONGEST_SEED = 18
"""Most digits of a seed in a run's name. Python parses no number of more than 4,300 digits."""


def number(value: Any, digits: int = 4, *, signed: bool = False) -> str:
    """Fixed-point number with a true minus sign; never shows a nonzero value as zero."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return MISSING
    sign = "+" if signed and value else ""
    text = f"{value:{sign},.{digits}f}"
    while value and not text.strip("+-0.,") and digits < 12:
        digits += 1
        text = f"{value:{sign},.{digits}f}"
    return text.replace("-", "−")


def count(value: Any, *, signed: bool = False) -> str:
    """Whole number with thousands separators."""
    return number(value, 0, signed=signed)


def percent(part: Any, whole: Any) -> str:
    """Signed share of ``part`` in ``whole``, e.g. ``"+0.12 %"``."""
    if not isinstance(part, int | float) or not isinstance(whole, int | float) or not whole:
        return MISSING
    return f"{number(100 * part / whole, 2, signed=True)} %"


def ratio(value: Any, baseline: Any) -> str:
    """``value / baseline`` as a factor, e.g. ``"0.87×"``."""
    if not isinstance(value, int | float) or not isinstance(baseline, int | float) or not baseline:
        return MISSING
    return f"{number(value / baseline, 2)}×"


def mebibytes(value: Any) -> str:
    """Bytes as MiB to one decimal."""
    return f"{number(value / 2**20, 1)} MiB" if isinstance(value, int | float) else MISSING


def span(
    low: float | None,
    high: float | None,
    digits: int = 4,
    *,
    signed: bool = False,
    none: str = MISSING,
) -> str:
    """Both ends of an interval, e.g. ``"−0.10 to 0.20"``; ``none`` if one is missing."""
    if low is None or high is None:
        return none
    return f"{number(low, digits, signed=signed)} to {number(high, digits, signed=signed)}"


def ends(entry: Mapping[str, Any], digits: int = 4, *, signed: bool = False, none: str = "") -> str:
    """Both ends of a recorded interval; ``none`` if it has no ends, for example with one seed."""
    return span(entry["low"], entry["high"], digits, signed=signed, none=none)


def rate_name(value: float | None) -> str:
    """A learning rate, as short as it is exact."""
    return MISSING if value is None else f"{value:g}".replace("-", "−")


def p_value(p: float | None) -> str:
    """A p-value with three decimals: tests of so few runs are not more exact."""
    return "below 0.001" if p is not None and p < 0.001 else number(p, 3)


def verdict(difference: Mapping[str, Any]) -> str:
    """Put the interval of a loss difference into words."""
    low, high = difference["low"], difference["high"]
    if low is None or high is None:
        return "one seed cannot tell"
    if low <= 0 <= high:
        return "no reliable difference"
    return f"{'lower' if high < 0 else 'higher'} by {number(abs(difference['mean']))}"


def listing(items: Iterable[Any]) -> str:
    """``"a, b and c"``."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def plural(quantity: int, noun: str) -> str:
    """``"1 seed"``, ``"3 seeds"``."""
    return f"{quantity:,} {noun}{'' if quantity == 1 else 's'}"


def brief_names(runs: Iterable[str]) -> list[str]:
    """Names of runs, with those that differ only in the seed merged: ``"mqar-diff-seed0 to 7"``."""
    seeds: dict[str, list[int]] = {}
    others = []
    for run in runs:
        stem, mark, seed = run.rpartition("seed")
        if mark and seed.isdecimal() and len(seed) <= _LONGEST_SEED:
            seeds.setdefault(stem, []).append(int(seed))
        else:
            others.append(run)
    return [f"{stem}seed{_run_of(numbers)}" for stem, numbers in seeds.items()] + others


def _run_of(seeds: Sequence[int]) -> str:
    """``"0 to 7"`` for neighbours, else all of them."""
    numbers = sorted(seeds)
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(str(seed) for seed in numbers)


def one_line(text: str) -> str:
    """The words with single blanks between them."""
    return " ".join(text.split())


def markdown_table(
    headers: Sequence[str], rows: Iterable[Iterable[str]], numeric: Container[int] = ()
) -> str:
    """A Markdown table, without a final line break.

    Args:
        numeric: Indices of the columns that are aligned to the right.
    """
    rule = ["---:" if column in numeric else "---" for column in range(len(headers))]
    return "\n".join(map(_markdown_row, (headers, rule, *rows)))


def _markdown_row(cells: Iterable[str]) -> str:
    # A bar inside a cell would end the cell, and a line break would end the row.
    return "| " + " | ".join(one_line(cell).replace("|", "\\|") for cell in cells) + " |"
