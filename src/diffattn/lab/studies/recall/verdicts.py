"""What the counts of a recall study say: two claims, kept apart, and whether they say anything.

Whether a type *can* recall is its share of solved runs after steps enough; how *soon* it learns to
is the step at which its runs are solved.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from diffattn.lab.catalog.models import (
    ADDED,
    BASELINE,
    NEVER_ATTEND,
    SIDE_EFFECTS,
    UNIFORM,
    WIDE,
    WIDE_NORM,
    WITHOUT_NORM,
    type_name,
)
from diffattn.lab.report.page.wording import listing
from diffattn.lab.stats.multiple import holm
from diffattn.lab.stats.proportions import fisher_exact
from diffattn.lab.stats.survival import log_rank

LEVEL = 0.05
"""Adjusted p-values below it count as shown."""
_ERRORS = 4
"""Standard errors that a model without attention may lie above a guess."""
_LEADERS = {"fisher_exact": "more", "log_rank": "sooner"}
"""Test to the key of the member that it finds ahead."""
_NORMED = ("diff", "shared_diff")
"""Types with head norm, and with half the heads, twice as wide."""
_NORMS_ALONE = ("softmax_norm", WIDE_NORM)
_WHY = {
    **dict.fromkeys((*SIDE_EFFECTS, UNIFORM), "its second map may not be"),
    **dict.fromkeys(_NORMS_ALONE, "the norm may be"),
    WIDE: "the width of its heads may be",
    ADDED: "its difference may not be",
}
"""Control to what may be why, or may not, where a lead is not shown over it."""
_IN_NORMED = (*_NORMS_ALONE, WIDE)
"""Controls with a part of what types with head norm have beside the difference."""
_PARTS = (WITHOUT_NORM, *_IN_NORMED, ADDED, UNIFORM, *SIDE_EFFECTS)
"""Controls with a part of what V1 has."""
Groups = Mapping[str, Mapping[str, Any]]
"""Name of a type or control to its summary."""


def pair_tests(tasks: Mapping[str, tuple[Groups, Groups, int]]) -> dict[str, dict[str, Any]]:
    """Every two types, and every type with every control that can attend, by both tests.

    Holm's adjustment counts all pairs of types of all tasks as one family per test, and those with
    controls as another.

    Args:
        tasks: Name to the summaries of its types, of its controls, and the steps of its runs.

    Returns:
        Task to ``tests`` and ``control_tests``.
    """
    found: dict[str, dict[str, Any]] = {}
    for task, (types, controls, num_steps) in tasks.items():
        seeing = [name for name in controls if name not in NEVER_ATTEND]
        both = {**types, **controls}
        with_controls = [(control, name) for control in seeing for name in types]
        found[task] = {
            key: [_test(pair, both, num_steps) for pair in pairs]
            for key, pairs in (
                ("tests", list(combinations(types, 2))),
                ("control_tests", with_controls),
            )
        }
    for key in ("tests", "control_tests"):
        family = [test for entry in found.values() for test in entry[key]]
        for name in _LEADERS:
            adjusted = holm([test[name] for test in family])
            for test, p in zip(family, adjusted, strict=True):
                test[f"{name}_holm"] = p
    return found


def _test(pair: tuple[str, str], groups: Groups, num_steps: int) -> dict[str, Any]:
    first, second = (groups[name] for name in pair)
    steps = log_rank(first["solved_steps"], second["solved_steps"], num_steps)
    more = first["solved"] * second["trials"] - second["solved"] * first["trials"]
    return {
        "types": list(pair),
        "fisher_exact": fisher_exact(
            first["solved"], first["trials"], second["solved"], second["trials"]
        ),
        "more": _ahead(pair, more),
        "log_rank": steps.p,
        "log_rank_exact": steps.exact,
        "sooner": _ahead(pair, steps.sooner),
    }


def _ahead(pair: tuple[str, str], sign: int) -> str | None:
    """The first for a positive sign, the second for a negative one."""
    return pair[sign < 0] if sign else None


def leak(controls: Groups, ceilings: Mapping[str, float], test_sequences: int) -> dict[str, Any]:
    """Whether a model without attention answers better than a guess of any value may.

    The limit lies four standard errors of a share of ``test_sequences`` above that guess: queries
    of one sequence are not independent, so they do not count for themselves.
    """
    guess = ceilings["values"]
    limit = guess + _ERRORS * (guess * (1 - guess) / test_sequences) ** 0.5
    measured = [
        a for name in NEVER_ATTEND if name in controls for a in controls[name]["test_accuracy"]
    ]
    highest = max(measured, default=None)
    return {
        "limit": limit,
        "highest": highest,
        "leaks": None if highest is None else highest > limit,
    }


def claims(
    types: Groups,
    tests: Mapping[str, Any],
    leaked: Mapping[str, Any],
    at_edge: Iterable[str] = (),
) -> dict[str, dict[str, Any]]:
    """``can`` and ``sooner`` of one task: a verdict, its pairs, reasons, and a sentence for each.

    Verdicts of ``can``: ``"all"``, ``"differs"``, ``"inconclusive"``; of ``sooner``: ``"differs"``
    or ``"inconclusive"``; of both ``"uninformative"`` where the task leaks, where no control says
    that it does not, or where nobody learns it. Reasons are why it is uninformative, and what a
    reader must know besides; the sentence holds them.

    Args:
        types: Name to summary.
        tests: From :func:`pair_tests`, of this task.
        leaked: From :func:`leak`.
        at_edge: Types and controls whose chosen learning rate lies at the edge of their sweep.
    """
    warnings = [
        f"The chosen learning rate of {type_name(name)} lies at the edge of its sweep."
        for name in at_edge
    ]
    why = _uninformative(types, leaked)
    if why:
        said: dict[str, Any] = {
            "verdict": "uninformative",
            "pairs": [],
            "sentence": f"Uninformative: {why}",
        }
        found = {"can": said, "sooner": said}
    else:
        found = {"can": _can(types, tests), "sooner": _sooner(tests)}
    return {
        name: claim
        | {
            "reasons": [*([why] if why else []), *warnings],
            "sentence": " ".join([claim["sentence"], *warnings]),
        }
        for name, claim in found.items()
    }


def _uninformative(types: Groups, leaked: Mapping[str, Any]) -> str:
    if leaked["leaks"] is None:
        return "no model without attention was trained, so the task may give its answers away."
    if leaked["leaks"]:
        return (
            f"a model without attention answers {leaked['highest']:.3f} of the queries, more than "
            f"the {leaked['limit']:.3f} that guessing explains, so the task gives answers away."
        )
    if not any(group["solved"] for group in types.values()):
        return "no run of any type was solved in the steps given."
    return ""


def _can(types: Groups, tests: Mapping[str, Any]) -> dict[str, Any]:
    shares = ", ".join(
        f"{type_name(name)} {group['solved']} of {group['trials']}" for name, group in types.items()
    )
    pairs = _pairs(tests, "fisher_exact", ("more", "less"))
    if all(group["solved"] == group["trials"] for group in types.values()):
        verdict, sentence = "all", f"Every type learned it on every seed ({shares})."
    elif pairs:
        shown = "; ".join(
            f"{type_name(pair['more'])} more often than {type_name(pair['less'])}" for pair in pairs
        )
        said = "".join(_reservation(pair, pair["more"], pair["less"]) for pair in pairs)
        verdict, sentence = (
            "differs",
            f"Shares solved in the steps given: {shares}. Shown: {shown}.{said}",
        )
    else:
        verdict = "inconclusive"
        sentence = f"Shares solved in the steps given: {shares}; no difference is shown."
    sentence += _beaten(tests, "fisher_exact", "More often")
    return {"verdict": verdict, "pairs": pairs, "sentence": sentence}


def _sooner(tests: Mapping[str, Any]) -> dict[str, Any]:
    pairs = _pairs(tests, "log_rank", ("first", "later"))
    beaten = _beaten(tests, "log_rank", "Sooner")
    if not pairs:
        sentence = f"No type is shown to learn it sooner than another.{beaten}"
        return {"verdict": "inconclusive", "pairs": [], "sentence": sentence}
    controls = tests["control_tests"]
    shown = "; ".join(
        f"{type_name(pair['first'])} sooner than {type_name(pair['later'])}" for pair in pairs
    )
    said = []
    for pair in pairs:
        said.append(_reservation(pair, pair["first"], pair["later"]))
        if pair["later"] == BASELINE:
            pair["takes_both"] = not pair["explained_by"] and _takes_both(pair["first"], controls)
            if pair["takes_both"]:
                tried = [part for part in _PARTS if _test_of(part, BASELINE, controls)]
                said.append(
                    " No part alone is shown to be sooner than softmax attention "
                    f"({'; '.join(map(type_name, tried))}): the whole lead takes the difference "
                    "and the norm."
                )
    return {"verdict": "differs", "pairs": pairs, "sentence": f"{shown}.{''.join(said)}{beaten}"}


def _pairs(
    tests: Mapping[str, Any], by: str, ahead_and_behind: tuple[str, str]
) -> list[dict[str, Any]]:
    """The differences that a test shows between types, and what may explain a type's lead, or its
    lag behind softmax."""
    pairs, controls = [], tests["control_tests"]
    for test in tests["tests"]:
        ahead = test[_LEADERS[by]]
        if test[f"{by}_holm"] < LEVEL and ahead:
            behind = next(name for name in test["types"] if name != ahead)
            pair = dict(zip(ahead_and_behind, (ahead, behind), strict=True))
            pair["p_holm"] = test[f"{by}_holm"]
            if ahead == BASELINE:
                pair["shared_by"] = _shared(behind, by, controls)
            else:
                pair["explained_by"] = _explained(ahead, behind, by, controls)
            pairs.append(pair)
    return pairs


def _beaten(tests: Mapping[str, Any], by: str, how: str) -> str:
    """Controls with softmax attention's single map, a second that learns nothing, or one that is
    added, that are shown to be ahead of softmax attention."""
    ahead = [
        type_name(control)
        for control in (*SIDE_EFFECTS, *_IN_NORMED, UNIFORM)
        if _shown(control, BASELINE, by, tests["control_tests"])
    ]
    said = ""
    if ahead:
        said = f" {how} than {type_name(BASELINE)} without a second map that learns: "
        said += f"{listing(ahead)}."
    if _shown(ADDED, BASELINE, by, tests["control_tests"]):
        said += f" {how} than {type_name(BASELINE)} without a difference: {type_name(ADDED)}."
    return said


def _reservation(pair: Mapping[str, Any], ahead: str, behind: str) -> str:
    """Why a lead may come from something else than the second map, or a lag."""
    explained_by: Sequence[str] = pair.get("explained_by", ())
    lead = f"the lead of {type_name(ahead)} over {type_name(behind)}"
    text = ""
    if shared := [type_name(control) for control in pair.get("shared_by", ())]:
        text += f" But {lead} is not shown for {listing(shared)}: the second map may not be why."
    for why in dict.fromkeys(_WHY.values()):
        alike = [type_name(control) for control in explained_by if _WHY.get(control) == why]
        if alike:
            text += f" But {lead} is not shown over {listing(alike)}: {why} why."
    if WITHOUT_NORM in explained_by:
        text += f" But {lead} is not shown for {type_name(WITHOUT_NORM)}: the norm may be why."
    return text


def _shared(name: str, by: str, control_tests: Sequence[Mapping[str, Any]]) -> list[str]:
    """The imitations not shown to be ahead of a type that is behind softmax: they may lag alike."""
    return [
        control
        for control in SIDE_EFFECTS
        if _test_of(control, name, control_tests) and not _shown(control, name, by, control_tests)
    ]


def _explained(
    name: str, behind: str, by: str, control_tests: Sequence[Mapping[str, Any]]
) -> list[str]:
    """The controls by which a lead over softmax or another type may be explained.

    An imitation, for types with head norm the norm alone or their width of heads, or for V1 itself
    with its second map added or uniform, explains it unless the type is shown to be ahead. Where
    the norm alone was not tried, V1 without it explains V1's lead over softmax unless it is itself
    shown to be ahead of that.
    """
    found = [
        control
        for control in (
            *SIDE_EFFECTS,
            *(_IN_NORMED if name in _NORMED else ()),
            *((ADDED, UNIFORM) if name == "diff" else ()),
        )
        if _test_of(control, name, control_tests) and not _shown(name, control, by, control_tests)
    ]
    if (
        behind == BASELINE
        and not _norms_alone(name, control_tests)
        and _lacks_lead(name, by, control_tests)
    ):
        found.append(WITHOUT_NORM)
    return found


def _takes_both(name: str, control_tests: Sequence[Mapping[str, Any]]) -> bool:
    """Whether V1's lead is shown over the norm alone, and no control with a part of what V1 has is
    shown to be ahead of softmax attention: neither its norm alone nor V1 without it."""
    norms = _norms_alone(name, control_tests)
    return (
        bool(norms)
        and _lacks_lead(name, "log_rank", control_tests)
        and all(_shown(name, norm, "log_rank", control_tests) for norm in norms)
        and not any(_shown(part, BASELINE, "log_rank", control_tests) for part in _PARTS)
    )


def _norms_alone(name: str, control_tests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Softmax attention with head norm, at the widths that were compared with a type."""
    return [norm for norm in _NORMS_ALONE if _test_of(norm, name, control_tests)]


def _lacks_lead(name: str, by: str, control_tests: Sequence[Mapping[str, Any]]) -> bool:
    """Whether V1 without head norm was tried and is not shown to be ahead of softmax."""
    tried = name == "diff" and _test_of(WITHOUT_NORM, BASELINE, control_tests) is not None
    return tried and not _shown(WITHOUT_NORM, BASELINE, by, control_tests)


def _shown(ahead: str, behind: str, by: str, control_tests: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of a control and a type is shown to be ahead of the other."""
    test = _test_of(ahead, behind, control_tests) or _test_of(behind, ahead, control_tests)
    return test is not None and test[f"{by}_holm"] < LEVEL and test[_LEADERS[by]] == ahead


def _test_of(
    control: str, name: str, control_tests: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    return next((test for test in control_tests if test["types"] == [control, name]), None)
