"""Paired differences as tables, and the verdicts on the primary scores."""

from collections.abc import Mapping, Sequence

from diffattn.lab.records.evaluations import PairedDifference
from diffattn.lab.report.evaluation.tables import place_text
from diffattn.lab.report.page.elements import Bullets, Element, Fold, Section, Terms, Text
from diffattn.lab.report.page.tables import Table, table
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
    """The primary scores and their limits, if any. ``published``: protocol -> papers' results."""
    primary = [pair for pair in differences if pair.primary and pair.variant in protocols]
    primary.sort(key=lambda pair: pair.over != "seeds")
    if not primary:
        return []
    by_seed = {pair.variant for pair in primary if pair.over == "seeds"}
    first = [pair for pair in primary if pair.over == "seeds" or pair.variant not in by_seed]
    is_informative = any(pair.verdict in ("higher", "lower") for pair in first)
    variants = dict.fromkeys(pair.variant for pair in primary)
    printed = {variant: published.get(protocols[variant], "") for variant in variants}
    guesses = [f"{pair.variant}: the best guess is {pair.guess}." for pair in primary if pair.guess]
    terms = _MEANINGS | ({"guessing": " ".join(dict.fromkeys(guesses))} if guesses else {})
    columns = ["Protocol", "Score", "Models", "Verdict", "Difference", "95 % interval", "p, Holm"]
    columns += ["n", "Model / baseline", "Chance / best guess"]
    content: list[Element] = [
        Bullets(
            list(map(_sentence, first)),
            role="verdict" if is_informative else "verdict uninformative",
        ),
        Text(_SEVERAL_SEEDS if by_seed else _ONE_SEED),
        _difference_table(_CAPTION, columns, primary),
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


def difference_tables(differences: Sequence[PairedDifference]) -> list[Table]:
    """Show the primary score part by part, and all scores over all items; empty without them."""
    parts = [pair for pair in differences if pair.where and pair.over == "items"]
    whole = [pair for pair in differences if not pair.where]
    shared = ["Models", "Difference", "95 % interval", "p", "Test", "n"]
    tables = []
    if parts:
        caption = (
            f"{parts[0].score}, part by part. p-values are not adjusted: with {len(parts)} rows, "
            f"{len(parts) / 20:.1f} below 0.05 are expected where nothing differs."
        )
        columns = ["Part", *shared, "Model / baseline", "Best guess"]
        tables.append(_difference_table(caption, columns, parts))
    if whole:
        columns = ["Score", *shared, "Not paired"]
        tables.append(_difference_table("Model minus baseline, item by item.", columns, whole))
    return tables


def _difference_table(
    caption: str, columns: Sequence[str], differences: Sequence[PairedDifference]
) -> Table:
    cells = map(_cells, differences)
    return table(caption, columns, ([row[column] for column in columns] for row in cells))


def _cells(pair: PairedDifference) -> dict[str, str]:
    is_over_seeds = pair.over == "seeds"
    return {
        "Protocol": pair.variant,
        "Score": pair.score,
        "Part": place_text(pair.where),
        "Models": f"{pair.model} − {pair.baseline}" + (", over seeds" if is_over_seeds else ""),
        "Verdict": pair.verdict,
        "Difference": number(pair.difference, signed=True),
        "95 % interval": span(pair.low, pair.high),
        "p": p_value(pair.p_value),
        "p, Holm": p_value(pair.p_holm),
        "Test": pair.test,
        "n": f"{count(pair.n)} seeds" if is_over_seeds else count(pair.n),
        "Model / baseline": _pair_text(pair.value, pair.baseline_value),
        "Chance / best guess": _pair_text(pair.chance, pair.guess_ceiling),
        "Best guess": number(pair.guess_ceiling, 3),
        "Not paired": count(pair.num_unpaired + pair.num_other_text),
    }


def _pair_text(first: float | None, second: float | None) -> str:
    values = (first, second)
    return MISSING if values == (None, None) else " / ".join(number(x, 3) for x in values)
