"""Number formats and verdicts, everywhere the same. Plain text throughout."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from diffattn.lab.catalog.models import type_color as type_color
from diffattn.lab.catalog.models import type_name as type_name

MISSING = "—"
WHITE_SPACE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})
"""White space -> the character that shows it in tokens."""


def is_number(value: Any) -> bool:
    """Whether a value from a file is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(value: Any, digits: int = 4, *, signed: bool = False) -> str:
    """Fixed-point number with a true minus sign; never shows a nonzero value as zero."""
    if not is_number(value):
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


def label_of(result: Any) -> str:
    """The name of the model that was evaluated or analysed."""
    return str(result.model["label"])


def pairs(values: Mapping[str, Any]) -> str:
    """``"length 4096, depth 50"``; names without a value are left out."""
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def plural(quantity: int, noun: str) -> str:
    """``"1 seed"``, ``"3 seeds"``."""
    return f"{quantity:,} {noun}{'' if quantity == 1 else 's'}"


def brief_names(runs: Iterable[str]) -> list[str]:
    """Names of runs, with those that differ only in the seed merged: ``"diff-seed0 to 7"``."""
    seeds: dict[str, list[int]] = {}
    others = []
    for run in runs:
        stem, mark, seed = run.rpartition("seed")
        if mark and seed.isdecimal() and len(seed) < 19:  # Python parses no more than 4,300 digits
            seeds.setdefault(stem, []).append(int(seed))
        else:
            others.append(run)
    names = []
    for stem, numbers in seeds.items():
        numbers.sort()
        first, last = numbers[0], numbers[-1]
        is_range = len(numbers) > 2 and numbers == list(range(first, last + 1))
        listed = f"{first} to {last}" if is_range else ", ".join(map(str, numbers))
        names.append(f"{stem}seed{listed}")
    return names + others


def one_line(text: str) -> str:
    """The words with single blanks between them."""
    return " ".join(text.split())
