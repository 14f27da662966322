"""Names, colours, number formats and verdicts, everywhere the same. Plain text throughout."""

import math
from collections.abc import Container, Iterable, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

from diffattn.lab.stats.intervals import Interval

TYPE_NAMES = {
    "softmax": "Transformer (softmax)",
    "diff": "DIFF V1",
    "diff_v2": "DIFF V2",
    "shared_diff": "Shared DIFF",
}
NO_ATTENTION = "none"
BLIND = (NO_ATTENTION, "none_ffn")
"""They never see another token: above a guess they show that a recall task leaks its answers."""
BLIND_SECOND = "softmax_minus_mean"
"""Softmax attention minus a second map that sees nothing."""
IMITATIONS = ("softmax_half", BLIND_SECOND)
"""Softmax attention with a side effect of the difference, and without a second map that learns: a
lead over softmax that one of them has too is no effect of that map."""
OWN_IMITATIONS = MappingProxyType({"diff_v2": ("diff_v2_gate", "diff_v2_added")})
"""By type, itself without its difference: a lead of V2 that its gate or its doubled queries have
alone is none of what it subtracts."""
CONTROLS = (*BLIND, *IMITATIONS, "diff_no_norm")
"""Of a study of text."""
WITH_EVERY_SEED = (*TYPE_NAMES, *CONTROLS, *chain(*OWN_IMITATIONS.values()))
"""Types, and what decides what a lead of theirs means; others may have fewer seeds."""
VARIANT_NAMES = {
    NO_ATTENTION: "No attention",
    "none_ffn": "No attention, wider FFN",
    "softmax_half": "Softmax × ½",
    "softmax_minus_mean": "Softmax − 0.7 mean value",
    "softmax_norm": "Softmax with head norm",
    "diff_no_norm": "DIFF V1 without head norm",
    "diff_added": "DIFF V1, maps added",
    "diff_uniform": "DIFF V1, uniform second map",
    "diff_token_lambda": "DIFF V1, λ per token",
    "diff_v2_gate": "DIFF V2, gate only",
    "diff_v2_constant": "DIFF V2, λ = ½",
    "diff_v2_norm": "DIFF V2 with head norm",
    "diff_v2_added": "DIFF V2, maps added",
    "diff_v2_no_lambda": "DIFF V2 without λ",
    "diff_v2_raw_lambda": "DIFF V2, λ without sigmoid",
    "diff_v2_across": "DIFF V2, pairs across groups",
    "shared_diff_map_norm": "Shared DIFF, norm on the map",
    "diff_v2_heads": "DIFF V2, equal heads",
    "diff_v2_flops": "DIFF V2, equal FLOPs",
    "shared_diff_heads": "Shared DIFF, equal heads",
    "softmax_wide": "Softmax, half the heads",
    "softmax_wide_norm": "Softmax, half the heads, head norm",
    "softmax_more_heads": "Softmax, 1.5 times the heads",
    "diff_lambda_08": "DIFF V1, λ_init 0.8",
    "diff_lambda_05": "DIFF V1, λ_init 0.5",
    **{
        f"shared_diff_r{rank}{end}": f"Shared DIFF, r = {rank}{more}"
        for rank in (2, 4, 8, 16)
        for end, more in (("", ""), ("_lambda_08", ", λ_init 0.8"), ("_lambda_05", ", λ_init 0.5"))
    },
}
"""Models of a comparison that are no attention type of their own: controls, ablations, matches."""
# Okabe and Ito's palette: distinct under the common colour-vision deficiencies and in grey.
_TYPE_COLORS = {
    "softmax": "#4d4d4d",
    "diff": "#0072b2",
    "diff_v2": "#d55e00",
    "shared_diff": "#009e73",
    "none": "#cc79a7",
    "none_ffn": "#e69f00",
    "diff_no_norm": "#56b4e9",
    "diff_v2_norm": "#8c6d00",
}
_OTHER_COLOR = "#999999"
MISSING = "—"
WHITE_SPACE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})
"""How it is shown in tokens."""
_LONGEST_SEED = 18
"""Digits of a seed in the name of a run: more are no seed, and beyond 4,300 no number."""


def type_name(attention_type: str) -> str:
    """Human name of an attention type or of a variant; an unknown one keeps its own name."""
    return TYPE_NAMES.get(attention_type) or VARIANT_NAMES.get(attention_type, attention_type)


def type_color(attention_type: str) -> str:
    """Hex colour of an attention type or of a variant."""
    return _TYPE_COLORS.get(attention_type, _OTHER_COLOR)


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


def ends(interval: Interval, *, signed: bool = False) -> str:
    """Both ends of an interval, or why there are none."""
    none = "none: one seed" if interval.n == 1 else "none"
    return span(interval.low, interval.high, signed=signed, none=none)


def p_value(p: float | None) -> str:
    """Three digits: no test of so few runs knows more."""
    return "below 0.001" if p is not None and p < 0.001 else number(p, 3)


def verdict(difference: Interval) -> str:
    """What an interval of a loss difference shows, in words."""
    if difference.low is None or difference.high is None:
        return "one seed: no interval, no verdict"
    if difference.low <= 0 <= difference.high:
        return "interval includes 0: no difference shown"
    side = "lower" if difference.high < 0 else "higher"
    return f"{side} by {number(abs(difference.mean))}"


def listing(items: Iterable[Any]) -> str:
    """``"a, b and c"``."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def plural(quantity: int, noun: str) -> str:
    """``"1 seed"``, ``"3 seeds"``."""
    return f"{quantity:,} {noun}{'' if quantity == 1 else 's'}"


def brief_names(runs: Iterable[str]) -> list[str]:
    """Names of runs that differ in the seed alone as one, e.g. ``"mqar-diff-seed0 to 7"``."""
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
    """A Markdown table, without the end of its last line.

    Args:
        headers: Of the columns.
        rows: Cells of each row, one per column.
        numeric: Indices of the columns that are aligned to the right.
    """
    rule = ["---:" if column in numeric else "---" for column in range(len(headers))]
    return "\n".join(map(_markdown_row, (headers, rule, *rows)))


def _markdown_row(cells: Iterable[str]) -> str:
    # A bar inside a cell would end it, and a line break the row.
    return "| " + " | ".join(one_line(cell).replace("|", "\\|") for cell in cells) + " |"
