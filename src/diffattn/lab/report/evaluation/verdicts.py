"""The primary scores of an evaluation with their verdicts: what a hurried reader sees."""

from collections.abc import Mapping, Sequence
from typing import Any

from diffattn.lab.records.evaluations import PairedDifference
from diffattn.lab.report.page.tables import Cell, Table, head_cell, number_cell, table, word_cell
from diffattn.lab.report.page.wording import MISSING, count, number, span

ONE_SEED = (
    "One model of each kind was compared. The intervals are over items: they say whether these "
    "very weights differ on other items of the same sort. Another training run of the same kind "
    "can differ by as much or more, so nothing here is a finding about a kind of attention. "
    "Models of several seeds, called NAME-seed0, NAME-seed1, …, are compared over seeds."
)
SEVERAL_SEEDS = (
    "Rows “over seeds” take each seed's difference as one value: they say what another training "
    "run would bring. The others are over items, of one pair of weights each."
)
_HEADERS = (
    "Protocol", "Models", "Verdict on these models", "Difference", "95 % interval", "p, Holm", "n",
    "Model / baseline", "Chance / best guess", "Published",
)  # fmt: skip


def verdict_section(
    differences: Sequence[PairedDifference],
    protocols: Mapping[str, str],
    published: Mapping[str, str],
) -> dict[str, Any] | None:
    """The table of primary scores, and what it can and cannot show; ``None`` without any.

    Args:
        differences: Of models whose results are shown.
        protocols: Name of the protocol by variant.
        published: What papers print, by protocol.
    """
    primary = [one for one in differences if one.primary and one.variant in protocols]
    if not primary:
        return None
    seeds = any(one.over == "seeds" for one in primary)
    rows = [_row(one, published.get(protocols[one.variant], MISSING)) for one in primary]
    caption = (
        "One declared score per protocol. p-values are adjusted by Holm for all rows over the same "
        "thing; with 0.05, one family of rows in twenty has any wrong one."
    )
    by_seed = {one.variant for one in primary if one.over == "seeds"}
    told = [one for one in primary if one.over == "seeds" or one.variant not in by_seed]
    return {
        "sentences": [_sentence(one) for one in told],
        "informative": any(one.verdict in ("higher", "lower") for one in told),
        "means": SEVERAL_SEEDS if seeds else ONE_SEED,
        "table": table(caption, _HEADERS, rows),
        "guesses": list(
            dict.fromkeys(
                f"{one.variant}: the best guess is {one.guess}." for one in primary if one.guess
            )
        ),
    }


def _sentence(one: PairedDifference) -> str:
    ends = span(one.low, one.high, 3)
    better = {True: "more is better", False: "less is better", None: ""}[one.higher_is_better]
    over = ", over seeds" if one.over == "seeds" else ""
    notes = ", ".join(text for text in (f"95 % {ends}" if ends != MISSING else "", better) if text)
    return (
        f"{one.variant}{over}: {one.score} of {one.model} minus {one.baseline} "
        f"{number(one.difference, 3, signed=True)} ({notes}): {one.verdict}."
    )


def _row(one: PairedDifference, published: str) -> list[Cell]:
    over = ", over seeds" if one.over == "seeds" else ""
    return [
        head_cell(one.variant),
        Cell(text=f"{one.model} − {one.baseline}{over}", note=one.score),
        word_cell(one.verdict),
        number_cell(number(one.difference, 3, signed=True)),
        number_cell(span(one.low, one.high, 3)),
        number_cell(number(one.p_holm, 3)),
        number_cell(f"{count(one.n)} seeds" if one.over == "seeds" else count(one.n)),
        number_cell(_both(one.value, one.baseline_value)),
        number_cell(_both(one.chance, one.guess_ceiling)),
        word_cell(published),
    ]


def _both(first: float | None, second: float | None) -> str:
    values = (first, second)
    return MISSING if values == (None, None) else " / ".join(number(x, 3) for x in values)


def part_text(where: Mapping[str, Any]) -> str:
    """``"length 4,096"``; ``"all"`` where nothing is told apart."""
    return ", ".join(f"{key} {value}" for key, value in where.items()) or "all"


def parts_table(differences: Sequence[PairedDifference]) -> Table | None:
    """Differences of the primary score part by part; ``None`` if there is one part only."""
    parts = [one for one in differences if one.where and one.over == "items"]
    if not parts:
        return None
    rows = [
        [
            head_cell(part_text(one.where)),
            word_cell(f"{one.model} − {one.baseline}"),
            number_cell(number(one.value, 3)),
            number_cell(number(one.baseline_value, 3)),
            number_cell(number(one.difference, 3, signed=True)),
            number_cell(span(one.low, one.high, 3)),
            number_cell(number(one.p_value, 3)),
            number_cell(count(one.n)),
            number_cell(number(one.guess_ceiling, 3)),
        ]
        for one in parts
    ]
    headers = (
        "Part", "Models", "Model", "Baseline", "Difference", "95 % interval", "p", "n",
        "Best guess",
    )  # fmt: skip
    caption = (
        f"{parts[0].score}, part by part. p-values as they are: with {len(parts)} rows, "
        f"{len(parts) / 20:.1f} below 0.05 are expected where nothing differs."
    )
    return table(caption, headers, rows)
