"""What the counts of a recall study say: two claims, kept apart, and whether they say anything.

Whether a type *can* recall is its share of solved runs after steps enough; how *soon* it learns to
is the step at which its runs are solved.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from diffattn.report.page.wording import BLIND, IMITATIONS, listing, type_name
from diffattn.stats.multiple import holm
from diffattn.stats.proportions import fisher_exact
from diffattn.stats.survival import log_rank
from diffattn.studies.variants import BASELINE, NORM_ALONE, WITHOUT_NORM

LEVEL = 0.05
"""Adjusted p-values below it count as shown."""
_ERRORS = 4
"""Standard errors that a model without attention may lie above a guess."""
_TESTS = ("fisher_exact", "log_rank")
_NORMED = ("diff", "shared_diff")
"""Types with head norm."""
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
        seeing = [name for name in controls if name not in BLIND]
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
        for name in _TESTS:
            adjusted = holm([test[name] for test in family])
            for test, p in zip(family, adjusted, strict=True):
                test[f"{name}_holm"] = p
    return found


def _test(pair: tuple[str, str], groups: Groups, num_steps: int) -> dict[str, Any]:
    first, second = (groups[name] for name in pair)
    spent = [_spent(groups[name], num_steps) for name in pair]
    return {
        "types": list(pair),
        "fisher_exact": fisher_exact(
            first["solved"], first["trials"], second["solved"], second["trials"]
        ),
        "log_rank": log_rank(first["solved_steps"], second["solved_steps"], num_steps),
        "sooner": None if spent[0] == spent[1] else pair[spent[1] < spent[0]],
    }


def _spent(group: Mapping[str, Any], num_steps: int) -> float:
    """Mean steps until solved; a run that was not counts all of them."""
    steps = [num_steps if step is None else step for step in group["solved_steps"]]
    return sum(steps) / len(steps)


def leak(controls: Groups, ceilings: Mapping[str, float], test_sequences: int) -> dict[str, Any]:
    """Whether a model without attention answers better than a guess of any value may.

    The limit lies four standard errors of a share of ``test_sequences`` above that guess: queries
    of one sequence are not independent, so they do not count for themselves.
    """
    guess = ceilings["values"]
    limit = guess + _ERRORS * (guess * (1 - guess) / test_sequences) ** 0.5
    measured = [a for name in BLIND if name in controls for a in controls[name]["test_accuracy"]]
    highest = max(measured, default=None)
    return {
        "limit": limit,
        "highest": highest,
        "leaks": None if highest is None else highest > limit,
    }


def claims(
    types: Groups, tests: Mapping[str, Any], leaked: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """``can`` and ``sooner`` of one task: a verdict, its pairs, and a sentence for each.

    Verdicts of ``can``: ``"all"``, ``"differs"``, ``"inconclusive"``; of ``sooner``: ``"differs"``
    or ``"inconclusive"``; of both ``"uninformative"`` where the task leaks, where no control says
    that it does not, or where nobody learns it.
    """
    why = _uninformative(types, leaked)
    if why:
        sentence = f"Uninformative: {why}"
        return {
            name: {"verdict": "uninformative", "pairs": [], "sentence": sentence}
            for name in ("can", "sooner")
        }
    return {"can": _can(types, tests["tests"]), "sooner": _sooner(types, tests)}


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


def _can(types: Groups, tests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    shares = ", ".join(
        f"{type_name(name)} {group['solved']} of {group['trials']}" for name, group in types.items()
    )
    pairs: list[dict[str, Any]] = []
    for test in tests:
        if test["fisher_exact_holm"] < LEVEL:
            more, less = _by_share(test, types)
            pairs.append({"more": more, "less": less, "p_holm": test["fisher_exact_holm"]})
    if all(group["solved"] == group["trials"] for group in types.values()):
        verdict, sentence = "all", f"Every type learned it on every seed ({shares})."
    elif pairs:
        shown = "; ".join(
            f"{type_name(pair['more'])} more often than {type_name(pair['less'])}" for pair in pairs
        )
        verdict, sentence = (
            "differs",
            f"Shares solved in the steps given: {shares}. Shown: {shown}.",
        )
    else:
        verdict = "inconclusive"
        sentence = f"Shares solved in the steps given: {shares}; no difference is shown."
    return {"verdict": verdict, "pairs": pairs, "sentence": sentence}


def _by_share(test: Mapping[str, Any], types: Groups) -> list[str]:
    """Both types, the one with more runs solved first."""
    shares = {name: types[name]["solved"] / types[name]["trials"] for name in test["types"]}
    return sorted(shares, key=shares.__getitem__, reverse=True)


def _sooner(types: Groups, tests: Mapping[str, Any]) -> dict[str, Any]:
    pairs = []
    for test in tests["tests"]:
        if test["log_rank_holm"] < LEVEL and test["sooner"]:
            first = test["sooner"]
            later = next(name for name in test["types"] if name != first)
            pair = {"first": first, "later": later, "p_holm": test["log_rank_holm"]}
            if later == BASELINE:
                pair["explained_by"] = _explained(first, tests["control_tests"])
                pair["takes_norm"] = _takes_norm(first, tests["control_tests"])
            pairs.append(pair)
    if not pairs:
        sentence = "No type is shown to learn it sooner than another."
        return {"verdict": "inconclusive", "pairs": [], "sentence": sentence}
    shown = "; ".join(
        f"{type_name(pair['first'])} sooner than {type_name(pair['later'])}" for pair in pairs
    )
    said = [_reservation(pair) for pair in pairs if pair.get("explained_by")]
    said += [
        f" {type_name(WITHOUT_NORM)} has no such lead, nor has the norm alone: it takes both."
        for pair in pairs
        if pair.get("takes_norm")
    ]
    sentence = f"{shown}.{''.join(said)}"
    return {"verdict": "differs", "pairs": pairs, "sentence": sentence}


def _reservation(pair: Mapping[str, Any]) -> str:
    """Why a lead over softmax may come from something else than the second map."""
    lead = f"the lead of {type_name(pair['first'])} over {type_name(pair['later'])}"
    norm = (NORM_ALONE, WITHOUT_NORM)
    alike = [type_name(name) for name in pair["explained_by"] if name not in norm]
    text = ""
    if alike:
        text += f" But {lead} is not shown over {listing(alike)}: its second map may not be why."
    if NORM_ALONE in pair["explained_by"]:
        text += f" But {lead} is not shown over {type_name(NORM_ALONE)}: the norm may be why."
    if WITHOUT_NORM in pair["explained_by"]:
        text += f" But {lead} is not shown for {type_name(WITHOUT_NORM)}: the norm may be why."
    return text


def _explained(name: str, control_tests: Sequence[Mapping[str, Any]]) -> list[str]:
    """The controls by which a lead over softmax may be explained.

    An imitation, or for types with head norm the norm alone, explains it unless the type is shown
    to be sooner. Where the norm alone was not tried, V1 without it explains V1's lead unless it is
    itself shown to be sooner than softmax.
    """
    imitations = (*IMITATIONS, NORM_ALONE) if name in _NORMED else IMITATIONS
    found = [
        control
        for control in imitations
        if _test_of(control, name, control_tests) and not _shown(name, control, control_tests)
    ]
    if not _test_of(NORM_ALONE, name, control_tests) and _lacks_lead(name, control_tests):
        found.append(WITHOUT_NORM)
    return found


def _takes_norm(name: str, control_tests: Sequence[Mapping[str, Any]]) -> bool:
    """Whether V1's lead is shown over the norm alone, and not shown without the norm."""
    return _shown(name, NORM_ALONE, control_tests) and _lacks_lead(name, control_tests)


def _lacks_lead(name: str, control_tests: Sequence[Mapping[str, Any]]) -> bool:
    """Whether V1 without head norm was tried and is not shown to be sooner than softmax."""
    tried = name == "diff" and _test_of(WITHOUT_NORM, BASELINE, control_tests) is not None
    return tried and not _shown(WITHOUT_NORM, BASELINE, control_tests)


def _shown(first: str, later: str, control_tests: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of a control and a type is shown to be sooner than the other."""
    test = _test_of(first, later, control_tests) or _test_of(later, first, control_tests)
    return test is not None and test["log_rank_holm"] < LEVEL and test["sooner"] == first


def _test_of(
    control: str, name: str, control_tests: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    return next((test for test in control_tests if test["types"] == [control, name]), None)
