"""The primary scores of an evaluation with their verdicts: the part that a hurried reader sees."""

from collections.abc import Mapping, Sequence

from diffattn.lab.records.evaluations import PairedDifference
from diffattn.lab.report.evaluation.tables import place_text
from diffattn.lab.report.page.elements import Bullets, Element, Fold, Section, Terms, Text
from diffattn.lab.report.page.tables import Cell, Table, table
from diffattn.lab.report.page.wording import MISSING, count, number, p_value, span

_ONE_SEED = (
    "One model of each kind was compared. The intervals are over items: they say whether these "
    "very weights differ on other items of the same sort. Another training run of the same kind "
    "can differ by as much or more, so nothing here is a finding about a kind of attention. "
    "Models of several seeds, called NAME-seed0, NAME-seed1, …, are compared over seeds."
)
_SEVERAL_SEEDS = (
    "Rows “over seeds” take the difference of each seed as one value: they say what another "
    "training run would bring. The others are over items, of one pair of weights each."
)
_CAPTION = (
    "One declared score per protocol. p-values are adjusted by Holm for all rows over the same "
    "unit, items or seeds. At 0.05, one family of rows in twenty has any wrong verdict."
)
_HEADERS = (
    "Protocol",
    "Models",
    "Verdict on these models",
    "Difference",
    "95 % interval",
    "p, Holm",
    "n",
    "Model / baseline",
    "Chance / best guess",
)
_MEANINGS = {
    "higher, lower": "The adjusted p-value is at most 0.05.",
    "inconclusive": "It is above 0.05: the data fit a difference and none.",
    "uninformative": "No model is above guessing, or all have everything right.",
}


def verdict_section(
    differences: Sequence[PairedDifference],
    protocols: Mapping[str, str],
    published: Mapping[str, str],
) -> list[Section]:
    """Show the primary scores, and the limits of what they say; empty without any.

    Args:
        differences: Of models whose results are shown.
        protocols: Name of the protocol by variant.
        published: Results that papers print, by protocol.
    """
    primary = [pair for pair in differences if pair.primary and pair.variant in protocols]
    if not primary:
        return []
    by_seed = {pair.variant for pair in primary if pair.over == "seeds"}
    first = [pair for pair in primary if pair.over == "seeds" or pair.variant not in by_seed]
    is_informative = any(pair.verdict in ("higher", "lower") for pair in first)
    variants = dict.fromkeys(pair.variant for pair in primary)
    printed = {variant: published.get(protocols[variant], "") for variant in variants}
    guesses = [f"{pair.variant}: the best guess is {pair.guess}." for pair in primary if pair.guess]
    terms = _MEANINGS | ({"guessing": " ".join(dict.fromkeys(guesses))} if guesses else {})
    content: list[Element] = [
        Bullets(
            list(map(_sentence, first)),
            role="verdict" if is_informative else "verdict uninformative",
        ),
        Text(_SEVERAL_SEEDS if by_seed else _ONE_SEED),
        table(_CAPTION, _HEADERS, map(_row, primary)),
        Bullets([f"{name}: {text}" for name, text in printed.items() if text], "The papers print:"),
        Fold("What the verdicts mean", [Terms(terms)]),
    ]
    return [Section("verdicts", "What it shows", content)]


def _sentence(pair: PairedDifference) -> str:
    ends = span(pair.low, pair.high, 3)
    better = {True: "more is better", False: "less is better", None: ""}[pair.higher_is_better]
    over = ", over seeds" if pair.over == "seeds" else ""
    notes = ", ".join(text for text in (f"95 % {ends}" if ends != MISSING else "", better) if text)
    return (
        f"{pair.variant}{over}: {pair.score} of {pair.model} minus {pair.baseline} "
        f"{number(pair.difference, 3, signed=True)} ({notes}): {pair.verdict}."
    )


def _row(pair: PairedDifference) -> list[Cell | str]:
    over = ", over seeds" if pair.over == "seeds" else ""
    return [
        pair.variant,
        Cell(text=f"{pair.model} − {pair.baseline}{over}", note=pair.score),
        pair.verdict,
        number(pair.difference, 3, signed=True),
        span(pair.low, pair.high, 3),
        p_value(pair.p_holm),
        f"{count(pair.n)} seeds" if pair.over == "seeds" else count(pair.n),
        _both(pair.value, pair.baseline_value),
        _both(pair.chance, pair.guess_ceiling),
    ]


def _both(first: float | None, second: float | None) -> str:
    values = (first, second)
    return MISSING if values == (None, None) else " / ".join(number(x, 3) for x in values)


def parts_table(differences: Sequence[PairedDifference]) -> list[Table]:
    """Show the primary score part by part; empty if the protocol has one part."""
    parts = [pair for pair in differences if pair.where and pair.over == "items"]
    rows = [
        [
            place_text(pair.where),
            f"{pair.model} − {pair.baseline}",
            number(pair.value, 3),
            number(pair.baseline_value, 3),
            number(pair.difference, 3, signed=True),
            span(pair.low, pair.high, 3),
            p_value(pair.p_value),
            count(pair.n),
            number(pair.guess_ceiling, 3),
        ]
        for pair in parts
    ]
    headers = ("Part", "Models", "Model", "Baseline", "Difference", "95 % interval", "p", "n")
    if not parts:
        return []
    caption = (
        f"{parts[0].score}, part by part. p-values are not adjusted: with {len(parts)} rows, "
        f"{len(parts) / 20:.1f} below 0.05 are expected where nothing differs."
    )
    return [table(caption, (*headers, "Best guess"), rows)]
