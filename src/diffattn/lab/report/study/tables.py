"""Tables of a study of models on text, for its page."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from diffattn.lab.catalog.models import FLOOR
from diffattn.lab.report.page.runs import BASELINE, StudyRun, finite_numbers
from diffattn.lab.report.page.tables import (
    Cell,
    Table,
    head_cell,
    number_cell,
    per_run,
    run_cell,
    table,
    type_cell,
    word_cell,
)
from diffattn.lab.report.page.wording import (
    MISSING,
    brief_names,
    count,
    ends,
    listing,
    number,
    plural,
    ratio,
    span,
    type_name,
)
from diffattn.lab.report.study.files import TextStudy
from diffattn.lab.report.study.names import AT, rate_name
from diffattn.lab.report.study.summary import (
    COMPARED,
    Difference,
    Group,
    Variant,
    baseline_of,
    bits_per_byte,
    difference,
    differences,
    group_at,
    in_words,
    rows_of,
    variants_of,
)

_OTHER_ROLES = {
    "control": "Controls: what a difference must not be explained by.",
    "ablation": "Ablations: one part changed at a time.",
    "match": "The same types, matched in another way.",
}
_SHORT = {BASELINE: "Transformer", FLOOR: "no attention"}
_NO_PAIR = "no finished pair"
_MATCHED_BY = {"": "parameters", "_heads": "heads", "_flops": "training FLOPs"}


def results_table(study: TextStudy) -> Table:
    """The baseline and the types, at the rates chosen and at the common one."""
    every = variants_of(study)
    shown = [variant for variant in every.values() if variant.role in COMPARED]
    ats, others = rates_shown(every), _compared_with(every)
    rows = []
    for at in ats:
        for variant in shown:
            group = group_at(variant, at)
            rows.append(
                [
                    type_cell(variant.name),
                    size_cell(variant, every),
                    _rate_cell(group, AT[at] if len(ats) > 1 else ""),
                    loss_cell(group),
                    *(difference_cell(study, variant, other, at) for other in others),
                ]
            )
    headers = ["Model", "Parameters, FLOPs per token", "Learning rate", "Loss"]
    headers += [f"Minus {_SHORT[other]}" for other in others]
    caption = (
        f"Validation loss in nats per token, mean over {seeds_in_words(shown)}. Lower is better; "
        f"below each mean its {level_of(study)} interval. FLOPs relative to the Transformer."
    )
    common = ((study.results or {}).get("rates") or {}).get("common")
    if len(ats) > 1 and common is not None:
        caption += f" The common rate is {rate_name(common)}; there every model is compared at it."
    return table(caption, headers, rows)


def verdict_table(study: TextStudy) -> Table:
    """What each difference shows, in words."""
    every = variants_of(study)
    others, with_rate = _compared_with(every), len(rates_shown(every)) > 1
    rows = []
    for variant in every.values():
        if variant.role not in COMPARED or variant.name == BASELINE:
            continue
        for at in ["best", "common"] if variant.common is not None else ["best"]:
            entries = (difference(study, variant.name, other, at) for other in others)
            words = (_in_words(study, entry) for entry in entries)
            rate = [word_cell(AT[at])] * with_rate
            rows.append([type_cell(variant.name), *rate, *map(word_cell, words)])
    headers = ["Model", *["Rate"] * with_rate, *(f"Minus {_SHORT[other]}" for other in others)]
    verdict_of = (study.results or {}).get("verdict") or {}
    warning = (
        ""
        if verdict_of.get("informative", True)
        else " Uninformative about attention: see the top."
    )
    return table(f"What the differences show.{warning}", headers, rows)


def pairs_table(study: TextStudy) -> Table:
    """Single pairs behind every difference in validation loss."""
    rows = [
        [
            head_cell(f"{type_name(entry.variant)} − {type_name(entry.baseline)}"),
            word_cell(AT[entry.at]),
            per_run(
                (f"{a} − {b}", number(value, signed=True))
                for (a, b), value in zip(entry.runs, entry.values, strict=True)
            ),
        ]
        for entry in differences(study)
    ]
    return table("Every pair behind a difference.", ["Difference", "Rate", "Each pair"], rows)


def other_tables(study: TextStudy) -> list[Table]:
    """Controls, ablations and other matches, each against the model it stands beside."""
    in_rows = {row["variant"] for row in rows_of(study)}
    left = [variant for variant in variants_of(study).values() if variant.name not in in_rows]
    roles = dict.fromkeys(variant.role for variant in left)
    ordered = [role for role in _OTHER_ROLES if role in roles]
    ordered += [role for role in roles if role not in (*COMPARED, *_OTHER_ROLES)]
    return [_role_table(study, role, [v for v in left if v.role == role]) for role in ordered]


def matching_table(study: TextStudy) -> Table | None:
    """Every type matched by parameters, heads and FLOPs; ``None`` if there is one way only."""
    every = variants_of(study)
    rows, several = [], False
    for name, variant in every.items():
        if variant.role != "type":
            continue
        ways = [(way, every[name + end]) for end, way in _MATCHED_BY.items() if name + end in every]
        several = several or len(ways) > 1
        for way, matched in ways:
            shape = _shape(study, matched.name)
            rows.append(
                [
                    type_cell(name),
                    word_cell(way),
                    *(number_cell(count(shape.get(key))) for key in ("num_heads", "head_dim")),
                    number_cell(count(shape.get("intermediate_size"))),
                    size_cell(matched, every),
                    _rate_cell(matched.best),
                    loss_cell(matched.best),
                    _against_cell(study, matched, BASELINE),
                    run_cell(brief_names(matched.best.loss.runs) if matched.best else ()),
                ]
            )
    if not several:
        return None
    headers = ["Model", "Equal", "Heads", "Head width", "FFN width"]
    headers += ["Parameters, FLOPs per token", "Rate", "Loss", "Difference", "Runs"]
    caption = (
        "Each type at equal parameters, heads and training FLOPs, at the rate chosen for the type. "
        "Where equal parameters or heads give equal FLOPs too, no other model was trained."
    )
    return table(caption, headers, rows)


def runs_table(study: TextStudy) -> Table:
    """Every run behind the means: its rate, loss and bits per byte."""
    by_name = {run.name: run for run in study.all_runs}
    rows = []
    for name, variant in variants_of(study).items():
        for group in (variant.best, variant.common):
            if group is None:
                continue
            for run, value in zip(group.loss.runs, group.loss.values, strict=True):
                whole = bits_per_byte(by_name[run]) if run in by_name else None
                cells = [rate_name(group.learning_rate), number(value), number(whole)]
                rows.append([type_cell(name), word_cell(run), *map(number_cell, cells)])
    headers = ["Model", "Run", "Learning rate", "Validation loss", "Bits per byte"]
    return table("Every run that counts.", headers, rows)


def side_by_side_table(study: TextStudy, published: TextStudy) -> Table:
    """Differences of two studies of one protocol version, next to each other."""
    both = [
        (source, entry, where)
        for source, where in ((study, "this study"), (published, "published"))
        for entry in differences(source)
        if (entry.baseline, entry.at) == (BASELINE, "best")
        and entry.variant in variants_of(source)
        and variants_of(source)[entry.variant].role in COMPARED
    ]
    order = list(dict.fromkeys(study.types + published.types))
    both.sort(key=lambda one: order.index(one[1].variant))
    rows = [
        [type_cell(entry.variant), word_cell(where), *_difference_cells(source, entry)]
        for source, entry, where in both
    ]
    level = interval_header(entry.interval.level for _, entry, _ in both)
    headers = ["Model", "Study", "Difference", level, "Verdict", "Each pair"]
    caption = "Difference in validation loss to the Transformer, in both studies."
    return table(caption, headers, rows)


def lambda_table(study: TextStudy) -> Table | None:
    """λ of every layer at the end of training; ``None`` if no run recorded any."""
    columns = {}
    for name in study.variants:
        runs = [run for run in study.runs_of(name) if _lam(run)]
        if runs:
            columns[name] = runs
    if not columns:
        return None
    layers = max(len(_lam(run)) for runs in columns.values() for run in runs)
    rows = []
    for layer in range(layers):
        row = [head_cell(f"layer {layer}")]
        for runs in columns.values():
            values = [_lam(run)[layer] for run in runs if layer < len(_lam(run))]
            text, spread = number(fmean(values), 3) if values else MISSING, ""
            if len(values) > 1:
                spread = span(min(values), max(values), 3)
            row.append(number_cell(text, [run.name for run in runs], note=spread))
        rows.append(row)
    used = [run_cell(brief_names(run.name for run in runs)) for runs in columns.values()]
    rows.append([head_cell("runs"), *used])
    caption = "λ at the end of training: mean over seeds, and the range of single runs."
    if any(runs[0].attention_type == "diff_v2" for runs in columns.values()):
        caption += f" For {type_name('diff_v2')} the mean of σ(λ) over tokens and heads."
    return table(caption, ["", *map(type_name, columns)], rows)


def rates_shown(every: dict[str, Variant]) -> list[str]:
    """``"best"``, and ``"common"`` where the rates differ."""
    return ["best", "common"] if any(v.common is not None for v in every.values()) else ["best"]


def seeds_in_words(shown: Iterable[Variant]) -> str:
    """How many runs each mean is of."""
    sizes = {len(variant.best.loss.runs) for variant in shown if variant.best is not None}
    if len(sizes) == 1:
        return plural(sizes.pop(), "seed")
    return f"{min(sizes)} to {max(sizes)} seeds" if sizes else "seeds"


def level_of(study: TextStudy) -> str:
    """Coverage of the intervals."""
    levels = {
        group.loss.interval.level
        for variant in variants_of(study).values()
        for group in (variant.best, variant.common)
        if group is not None
    }
    return listing(f"{100 * level:g} %" for level in sorted(levels)) or "95 %"


def interval_header(levels: Iterable[float]) -> str:
    """Header of an interval column."""
    return f"{listing(f'{100 * level:g} %' for level in sorted(set(levels))) or '95 %'} interval"


def _role_table(study: TextStudy, role: str, shown: Sequence[Variant]) -> Table:
    every = variants_of(study)
    ats = rates_shown({variant.name: variant for variant in shown})
    rows = []
    for variant in shown:
        baseline = baseline_of(study, variant.name)
        entry = None if baseline is None else difference(study, variant.name, baseline)
        rows.append(
            [
                type_cell(variant.name, variant.what),
                size_cell(variant, every),
                _rate_cell(variant.best),
                number_cell(count(variant.best.loss.interval.n if variant.best else 0)),
                loss_cell(variant.best),
                word_cell(type_name(baseline) if baseline else MISSING),
                *(difference_cell(study, variant, baseline, at) for at in ats),
                word_cell(_in_words(study, entry)),
            ]
        )
    headers = ["Model", "Parameters, FLOPs per token", "Rate", "Seeds", "Loss"]
    headers += ["Compared with", *(_header("difference", at, ats) for at in ats), "Verdict"]
    return table(_OTHER_ROLES.get(role, f"{role.capitalize()}."), headers, rows)


def _in_words(study: TextStudy, entry: Difference | None) -> str:
    if entry is None:
        return _NO_PAIR
    return in_words(study, entry).removeprefix("interval includes 0: ")


def _compared_with(every: dict[str, Variant]) -> list[str]:
    """What the types are compared with."""
    return [BASELINE, *(name for name in (FLOOR,) if name in every)]


def _header(text: str, at: str, ats: Sequence[str]) -> str:
    """With the learning rate in front where there are two."""
    text = f"{AT[at]} rate: {text}" if len(ats) > 1 else text
    return text[:1].upper() + text[1:]


def size_cell(variant: Variant, every: dict[str, Variant]) -> Cell:
    """Parameters, and below them FLOPs per token as a factor of the baseline's."""
    base = every.get(BASELINE)
    flops = ratio(variant.train_flops_per_token, base.train_flops_per_token if base else None)
    return number_cell(count(variant.parameters), note=flops)


def _rate_cell(group: Group | None, note: str = "") -> Cell:
    return number_cell(rate_name(group.learning_rate if group else None), note=note)


def loss_cell(group: Group | None) -> Cell:
    """A mean loss with its interval."""
    if group is None:
        return number_cell(MISSING, note="no finished run")
    interval = group.loss.interval
    return number_cell(number(interval.mean), group.loss.runs, note=ends(interval))


def difference_cell(study: TextStudy, variant: Variant, other: str | None, at: str) -> Cell:
    """A mean difference with its interval."""
    entry = None if other is None else difference(study, variant.name, other, at)
    if entry is None:
        return number_cell(MISSING)
    names = [run for pair in entry.runs for run in pair]
    text = number(entry.interval.mean, signed=True)
    return number_cell(text, names, note=ends(entry.interval, signed=True))


def _against_cell(study: TextStudy, variant: Variant, preferred: str) -> Cell:
    """The difference to ``preferred`` or, where that is not recorded, to what is."""
    for other in (preferred, baseline_of(study, variant.name)):
        entry = None if other is None else difference(study, variant.name, other)
        if other is not None and entry is not None:
            text = f"{number(entry.interval.mean, signed=True)} to {type_name(other)}"
            return number_cell(text, note=ends(entry.interval, signed=True))
    return number_cell(MISSING)


def _difference_cells(study: TextStudy, entry: Difference) -> list[Cell]:
    names = [run for pair in entry.runs for run in pair]
    pairs = zip(entry.runs, entry.values, strict=True)
    return [
        number_cell(number(entry.interval.mean, signed=True), names),
        number_cell(ends(entry.interval, signed=True), names),
        word_cell(in_words(study, entry)),
        per_run((f"{a} − {b}", number(value, signed=True)) for (a, b), value in pairs),
    ]


def _shape(study: TextStudy, name: str) -> dict[str, object]:
    runs = study.runs_of(name)
    return runs[0].record.config["model"] if runs else {}


def _lam(run: StudyRun) -> Sequence[float]:
    return finite_numbers(run.result("lam"))
