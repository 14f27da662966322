"""What a study tests together, as tables; of ablations every row against what it changes."""

from typing import Any

from diffattn.lab.report.page.charts import Chart
from diffattn.lab.report.page.phase import lost
from diffattn.lab.report.page.tables import (
    Cell,
    Table,
    number_cell,
    table,
    type_cell,
    word_cell,
)
from diffattn.lab.report.page.wording import MISSING, count, number, p_value, ratio, type_name
from diffattn.lab.report.paper import table_6
from diffattn.lab.report.study.charts import difference_bars
from diffattn.lab.report.study.files import TextStudy
from diffattn.lab.report.study.names import AT
from diffattn.lab.report.study.summary import (
    NOT_COMPARED,
    Variant,
    difference,
    group_at,
    in_words,
    rows_of,
    tests_of,
    variants_of,
)
from diffattn.lab.report.study.tables import difference_cell, level_of, loss_cell, size_cell

_V1 = "diff"


def rows_table(study: TextStudy) -> Table | None:
    """Every row with its difference, the test and what the paper prints; ``None`` without rows."""
    rows = rows_of(study)
    if not rows:
        return None
    every, diverged = variants_of(study), (study.results or {}).get("diverged") or {}
    printed = any(_printed(row["variant"], row["baseline"]) is not None for row in rows)
    printed = printed and study.info.get("kind") == "ablations"
    cells = []
    for row in rows:
        variant = every.get(row["variant"]) or Variant(row["variant"], "ablation")
        entry = difference(study, variant.name, row["baseline"], row["at"])
        made = [
            type_cell(variant.name, variant.what),
            size_cell(variant, every),
            _attention_cell(variant, every.get(_V1)),
            loss_cell(group_at(variant, row["at"])),
            word_cell(_against(row)),
            difference_cell(study, variant, row["baseline"], row["at"]),
            number_cell(p_value(row["p_holm"]), note=f"{p_value(row['p'])} alone"),
        ]
        if printed:
            of_paper = _printed(variant.name, row["baseline"])
            made.append(number_cell(number(of_paper, 3, signed=True)))
        said = lost(diverged, variant.name, row["baseline"])
        said = f"{NOT_COMPARED}: {said}" if said else MISSING
        cells.append([*made, word_cell(said if entry is None else in_words(study, entry))])
    headers = ["Row", "Parameters, FLOPs per token", "Attention's parameters"]
    headers += ["Loss", "Compared with", "Difference", "p after Holm"]
    headers += [*["Table 6"] * printed, "Verdict"]
    caption = (
        f"Validation loss in nats per token, minus that of what each row changes, seed by seed; "
        f"below each mean its {level_of(study)} interval, which is not adjusted. p-values are of "
        f"paired t tests, adjusted by Holm over these {len(rows)} rows; one that is not compared "
        "counts with p = 1."
    )
    if printed:
        caption += (
            " Table 6: the same difference of the losses that arXiv:2410.05258v2 prints, of 1.4B "
            "parameters and 10B tokens with one seed."
        )
    return table(caption, headers, cells)


def adjusted_table(study: TextStudy) -> Table | None:
    """Every difference that the verdict of a comparison of types rests on; ``None`` without."""
    tests = [] if rows_of(study) else tests_of(study)
    if not tests:
        return None
    every, cells = variants_of(study), []
    for test in tests:
        variant = every.get(test["variant"]) or Variant(test["variant"], "type")
        entry = difference(study, variant.name, test["baseline"], test["at"])
        what = f"{type_name(test['variant'])} − {type_name(test['baseline'])}"
        cells.append(
            [
                word_cell(what),
                word_cell(AT[test["at"]]),
                difference_cell(study, variant, test["baseline"], test["at"]),
                number_cell(p_value(test["p_holm"]), note=f"{p_value(test['p'])} alone"),
                word_cell(MISSING if entry is None else in_words(study, entry)),
            ]
        )
    caption = (
        f"What the verdict rests on: differences in validation loss, seed by seed; below each mean "
        f"its {level_of(study)} interval, which is not adjusted. p-values are of paired t tests, "
        f"adjusted by Holm over these {len(tests)}; a pair that is not compared counts with p = 1."
    )
    return table(caption, ["Difference", "Rate", "Mean", "p after Holm", "Verdict"], cells)


def rows_chart(study: TextStudy, element_id: str) -> Chart | None:
    """The differences of the table around zero; ``None`` if there are none."""
    found = [
        (entry, f"{type_name(entry.variant)} − {_against(row)}")
        for row in rows_of(study)
        if (entry := difference(study, row["variant"], row["baseline"], row["at"])) is not None
    ]
    return difference_bars(
        [entry for entry, _ in found],
        [label for _, label in found],
        "Validation loss minus that of what a row changes. Diamond and bar: mean and interval. "
        "Circles: single pairs.",
        element_id,
    )


def _against(row: dict[str, Any]) -> str:
    """What a row is compared with, and at which rate where that is not the chosen one."""
    where = f", {AT['common']} rate" if row["at"] == "common" else ""
    return f"{type_name(row['baseline'])}{where}"


def _printed(variant: str, baseline: str) -> float | None:
    """The difference of two losses of Table 6."""
    losses = table_6()
    return losses[variant] - losses[baseline] if {variant, baseline} <= losses.keys() else None


def _attention_cell(variant: Variant, v1: Variant | None) -> Cell:
    """Attention's share of the parameters, beside DIFF V1's, and whether it is more."""
    own, other = variant.attention_parameters, v1.attention_parameters if v1 else None
    note = f"{ratio(own, other)} V1's"
    if variant.name.startswith("shared_diff") and own is not None and other is not None:
        note += ": above break-even" if own > other else ""
    return number_cell(count(own), note=note)
