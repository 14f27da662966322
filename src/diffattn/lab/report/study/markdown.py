"""Results of a study of models on text in Markdown, for a README."""

from pathlib import Path

from diffattn.lab.report.page.runs import BASELINE
from diffattn.lab.report.page.wording import (
    MISSING,
    brief_names,
    count,
    ends,
    markdown_table,
    number,
    one_line,
    p_value,
    type_name,
)
from diffattn.lab.report.study.fields import Test
from diffattn.lab.report.study.files import TextStudy, read_study
from diffattn.lab.report.study.names import AT, rate_name
from diffattn.lab.report.study.summary import (
    COMPARED,
    NO_ATTENTION,
    NOT_COMPARED,
    Group,
    Variant,
    baseline_of,
    difference,
    group_at,
    in_words,
    tests_of,
    variants_of,
    why_apart,
)
from diffattn.lab.report.study.tables import level_of, rates_shown


def study_markdown(folder: Path) -> str:
    """The verdict, and the results as Markdown tables that name their runs.

    Args:
        folder: Study folder.

    Returns:
        One row per model, the types first, then controls and the rest, and the types again at the
        common learning rate where it is not the best of all; last, every difference that is tested,
        where there are seeds enough. Ends in a newline.

    Raises:
        CheckpointError: A file of the study is damaged or foreign.
    """
    study = read_study(folder)
    every = variants_of(study)
    shown = [variant for variant in every.values() if variant.role in COMPARED]
    others = [variant for variant in every.values() if variant.role not in COMPARED]
    tables = [
        _types(study, [variant for variant in shown if variant.role in COMPARED], at)
        for at in rates_shown(every)
    ]
    if others:
        tables.insert(1, _others(study, others))
    tests = tests_of(study)
    if any(test["p_holm"] is not None for test in tests):  # of one seed there is no test
        tables.append(_tests(study, tests))
    verdict = (study.results or {}).get("verdict")
    head = [one_line(verdict["sentence"])] if verdict else []
    if verdict and verdict.get("details"):
        head.append("\n".join(f"- {one_line(said)}" for said in verdict["details"]))
    return "\n\n".join([*head, *tables]) + "\n"


def _types(study: TextStudy, shown: list[Variant], at: str) -> str:
    level = f"{level_of(study)} interval"
    with_rate = any(variant.common is not None for variant in shown)
    with_none = NO_ATTENTION in study.variants
    headers = ["Model", "Parameters", "Validation loss", level, "To the Transformer", level]
    if with_none:
        headers += ["To no attention", level]
    headers += [f"{AT[at].capitalize()} rate"] * with_rate + ["Verdict", "Runs"]
    rows = []
    for variant in shown:
        group = group_at(variant, at)
        cells = [type_name(variant.name), count(variant.parameters), *_loss(group)]
        cells += _change(study, variant.name, BASELINE, at)
        if with_none:
            cells += _change(study, variant.name, NO_ATTENTION, at)
        cells += [rate_name(group.learning_rate if group else None)] * with_rate
        cells += [_verdict(study, variant.name, BASELINE, at), _runs(group)]
        rows.append(cells)
    return markdown_table(headers, rows, numeric=range(1, len(headers) - 2))


def _others(study: TextStudy, shown: list[Variant]) -> str:
    level = f"{level_of(study)} interval"
    headers = ["Control, ablation or match", "Parameters", "Validation loss", level]
    headers += ["Compared with", "Difference", level, "Verdict", "Runs"]
    rows = []
    for variant in shown:
        for baseline in _beside(study, variant):
            cells = [type_name(variant.name), count(variant.parameters), *_loss(variant.best)]
            cells.append(MISSING if baseline is None else type_name(baseline))
            cells += _change(study, variant.name, baseline, "best")
            cells += [_verdict(study, variant.name, baseline, "best"), _runs(variant.best)]
            rows.append(cells)
    return markdown_table(headers, rows, numeric=(1, 2, 3, 5, 6))


def _tests(study: TextStudy, tests: list[Test]) -> str:
    """The differences that the verdict rests on, adjusted together."""
    headers = ["Tested", "Rate", "Difference", f"{level_of(study)} interval", "p", "p after Holm"]
    rows = [
        [
            f"{type_name(test['variant'])} − {type_name(test['baseline'])}",
            AT[test["at"]],
            *_change(study, test["variant"], test["baseline"], test["at"]),
            p_value(test["p"]),
            _adjusted(study, test),
        ]
        for test in tests
    ]
    return markdown_table(headers, rows, numeric=(2, 3, 4, 5))


def _adjusted(study: TextStudy, test: Test) -> str:
    """Adjusted p-value; what is not compared counts with 1, which says nothing of it."""
    entry = difference(study, test["variant"], test["baseline"], test["at"])
    apart = entry is None or why_apart(study, entry)
    return NOT_COMPARED if apart else p_value(test["p_holm"])


def _beside(study: TextStudy, variant: Variant) -> list[str | None]:
    """What a variant is compared with; of a control or match the Transformer too."""
    first = baseline_of(study, variant.name)
    again = first != BASELINE and variant.role in ("control", "match")
    again = again and difference(study, variant.name, BASELINE) is not None
    return [first, BASELINE] if again else [first]


def _loss(group: Group | None) -> list[str]:
    if group is None:
        return [MISSING, MISSING]
    return [number(group.loss.interval.mean), ends(group.loss.interval)]


def _change(study: TextStudy, name: str, baseline: str | None, at: str) -> list[str]:
    entry = None if baseline is None else difference(study, name, baseline, at)
    if entry is None:
        return [MISSING, MISSING]
    return [number(entry.interval.mean, signed=True), ends(entry.interval, signed=True)]


def _verdict(study: TextStudy, name: str, baseline: str | None, at: str) -> str:
    if name == BASELINE:
        return "baseline"
    entry = None if baseline is None else difference(study, name, baseline, at)
    return MISSING if entry is None else in_words(study, entry)


def _runs(group: Group | None) -> str:
    return ", ".join(brief_names(group.loss.runs)) if group else "no finished run"
