"""The claims of a recall study: two per task, and whether they say anything.

A type *can* recall if its runs are solved within the steps given. It learns to recall *sooner* if
its runs are solved at earlier steps.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

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
from diffattn.lab.records.study_results import Leak, RecallClaim, RecallPair, RecallTest
from diffattn.lab.report.page.wording import listing
from diffattn.lab.stats.multiple import holm
from diffattn.lab.stats.proportions import fisher_exact
from diffattn.lab.stats.survival import log_rank

LEVEL = 0.05
"""Adjusted p-values below it are significant."""
_ERRORS = 4
"""Standard errors that a model without attention may lie above a guess."""
Test = Literal["fisher_exact", "log_rank"]
_LEADERS: dict[Test, Literal["more", "sooner"]] = {"fisher_exact": "more", "log_rank": "sooner"}
"""Test to the key of the member that it finds ahead."""
_NORMED = ("diff", "shared_diff")
"""Types with head norm, and with half the heads, twice as wide."""
_NORMS_ALONE = ("softmax_norm", WIDE_NORM)
_CAUSES = {
    **dict.fromkeys((*SIDE_EFFECTS, UNIFORM), "its second map may not be"),
    **dict.fromkeys(_NORMS_ALONE, "the norm may be"),
    WIDE: "the width of its heads may be",
    ADDED: "its difference may not be",
}
"""Control to the possible cause of a lead that is not significant over this control."""
_PARTS_OF_NORMED = (*_NORMS_ALONE, WIDE)
"""Controls with one feature of the types with head norm, without the difference."""
_PARTS = (WITHOUT_NORM, *_PARTS_OF_NORMED, ADDED, UNIFORM, *SIDE_EFFECTS)
"""Controls with a part of V1."""
Groups = Mapping[str, Mapping[str, Any]]
"""Name of a type or control to its summary."""


def pair_tests(
    tasks: Mapping[str, tuple[Groups, Groups, int]],
) -> dict[str, dict[str, list[RecallTest]]]:
    """Test every two types, and every type against every control that can attend.

    Holm's adjustment counts all pairs of types of all tasks as one family per test, and those with
    controls as another.

    Args:
        tasks: Name to the summaries of its types, of its controls, and the steps of its runs.

    Returns:
        Task to ``tests`` and ``control_tests``.
    """
    tested: dict[str, dict[str, Any]] = {}
    for task, (types, controls, num_steps) in tasks.items():
        members = {**types, **controls}
        attending = [name for name in controls if name not in NEVER_ATTEND]
        pairs = {
            "tests": list(combinations(types, 2)),
            "control_tests": [(control, name) for control in attending for name in types],
        }
        tested[task] = {
            key: [_test(pair, members, num_steps) for pair in of_key]
            for key, of_key in pairs.items()
        }
    for key in ("tests", "control_tests"):
        family = [test for task in tested.values() for test in task[key]]
        for name in _LEADERS:
            adjusted = holm([test[name] for test in family])
            for test, p in zip(family, adjusted, strict=True):
                test[f"{name}_holm"] = p
    return tested


def _test(pair: tuple[str, str], groups: Groups, num_steps: int) -> dict[str, Any]:
    first, second = (groups[name] for name in pair)
    counts = (first["solved"], first["trials"], second["solved"], second["trials"])
    steps = log_rank(first["solved_steps"], second["solved_steps"], num_steps)
    more = counts[0] * counts[3] - counts[2] * counts[1]
    return {
        "types": list(pair),
        "fisher_exact": fisher_exact(*counts),
        "more": pair[more < 0] if more else None,
        "log_rank": steps.p,
        "log_rank_exact": steps.exact,
        "sooner": pair[steps.sooner < 0] if steps.sooner else None,
    }


def leak(controls: Groups, ceilings: Mapping[str, float], test_sequences: int) -> Leak:
    """Whether a model without attention answers better than a guess of any value may.

    The limit lies four standard errors of a share of ``test_sequences`` above that guess: queries
    of one sequence are not independent, so they do not count for themselves.
    """
    guess = ceilings["values"]
    limit = guess + _ERRORS * (guess * (1 - guess) / test_sequences) ** 0.5
    blind = [controls[name]["test_accuracy"] for name in NEVER_ATTEND if name in controls]
    highest = max((accuracy for of_runs in blind for accuracy in of_runs), default=None)
    leaks = None if highest is None else highest > limit
    return {"limit": limit, "highest": highest, "leaks": leaks}


def claims(
    types: Groups,
    tests: Mapping[str, Any],
    leaked: Leak,
    at_edge: Iterable[str] = (),
) -> dict[str, RecallClaim]:
    """``can`` and ``sooner`` of one task: a verdict, its pairs, reasons, and a sentence for each.

    Both are uninformative where the task leaks, where no control tells whether it leaks, or where
    no type learns it. The reasons are why a claim is uninformative, and warnings.

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
        claim = _claim("uninformative", [], f"Uninformative: {why}")
        both = {"can": claim, "sooner": claim}
    else:
        family = _Tests(tests["tests"], tests["control_tests"])
        both = {"can": _can(types, family), "sooner": _sooner(family)}
    reasons = [*([why] if why else []), *warnings]
    return {
        name: claim | {"reasons": reasons, "sentence": " ".join([claim["sentence"], *warnings])}
        for name, claim in both.items()
    }


def _claim(verdict: Any, pairs: list[RecallPair], sentence: str) -> RecallClaim:
    return {"verdict": verdict, "pairs": pairs, "sentence": sentence, "reasons": []}


def _uninformative(types: Groups, leaked: Leak) -> str:
    """The reason why a task says nothing about types; empty if it does."""
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


@dataclass(frozen=True, slots=True)
class _Tests:
    """The tests of one task."""

    types: Sequence[RecallTest]
    controls: Sequence[RecallTest]

    def has(self, control: str, name: str) -> bool:
        """Whether a control was tested against a type."""
        return any(test["types"] == [control, name] for test in self.controls)

    def leads(self, ahead: str, behind: str, by: Test) -> bool:
        """Whether a control is significantly ahead of a type, or a type of a control."""
        for test in self.controls:
            if test["types"] in ([ahead, behind], [behind, ahead]):
                return _is_significant(test, by) and test[_LEADERS[by]] == ahead
        return False

    def norms_alone(self, name: str) -> list[str]:
        """Softmax attention with head norm, at the widths that were compared with a type."""
        return [norm for norm in _NORMS_ALONE if self.has(norm, name)]

    def needs_norm(self, name: str, by: Test) -> bool:
        """Whether V1 without head norm was tried and is not significantly ahead of softmax."""
        tried = name == "diff" and self.has(WITHOUT_NORM, BASELINE)
        return tried and not self.leads(WITHOUT_NORM, BASELINE, by)

    def pairs(self, by: Test, keys: tuple[str, str]) -> list[RecallPair]:
        """Significant differences between types, and the controls that may explain them.

        Args:
            by: The test.
            keys: Names of the type ahead and of the one behind.
        """
        pairs = []
        for test in self.types:
            ahead = test[_LEADERS[by]]
            if not ahead or not _is_significant(test, by):
                continue
            (behind,) = (name for name in test["types"] if name != ahead)
            pair: Any = dict(zip(keys, (ahead, behind), strict=True))
            pair["p_holm"] = _p_holm(test, by)
            if ahead == BASELINE:
                pair["shared_by"] = self._unbeaten(SIDE_EFFECTS, behind, by, control_leads=True)
            else:
                pair["explained_by"] = self._explanations(ahead, behind, by)
            pairs.append(pair)
        return pairs

    def _unbeaten(
        self, controls: Iterable[str], name: str, by: Test, *, control_leads: bool = False
    ) -> list[str]:
        """Controls that were tested and do not differ as stated from a type."""
        return [
            control
            for control in controls
            if self.has(control, name)
            and not self.leads(*((control, name) if control_leads else (name, control)), by)
        ]

    def _explanations(self, name: str, behind: str, by: Test) -> list[str]:
        """The controls by which a lead over softmax or another type may be explained.

        These are the controls that the type is not significantly ahead of: imitations; for types
        with head norm the norm alone and their width of heads; for V1 itself with its second map
        added or uniform. Where the norm alone was not tried, V1 without it explains V1's lead over
        softmax, unless it is significantly ahead of softmax as well.
        """
        normed = _PARTS_OF_NORMED if name in _NORMED else ()
        maps = (ADDED, UNIFORM) if name == "diff" else ()
        explanations = self._unbeaten((*SIDE_EFFECTS, *normed, *maps), name, by)
        if behind == BASELINE and not self.norms_alone(name) and self.needs_norm(name, by):
            explanations.append(WITHOUT_NORM)
        return explanations

    def takes_both(self, name: str) -> bool:
        """Whether V1's lead takes the difference and the norm.

        It is ahead of the norm alone, and no control with a part of V1 is ahead of softmax.
        """
        norms = self.norms_alone(name)
        return (
            bool(norms)
            and self.needs_norm(name, "log_rank")
            and all(self.leads(name, norm, "log_rank") for norm in norms)
            and not any(self.leads(part, BASELINE, "log_rank") for part in _PARTS)
        )


def _p_holm(test: RecallTest, by: Test) -> float:
    return test["fisher_exact_holm"] if by == "fisher_exact" else test["log_rank_holm"]


def _is_significant(test: RecallTest, by: Test) -> bool:
    return _p_holm(test, by) < LEVEL


def _can(types: Groups, tests: _Tests) -> RecallClaim:
    shares = ", ".join(
        f"{type_name(name)} {group['solved']} of {group['trials']}" for name, group in types.items()
    )
    pairs = tests.pairs("fisher_exact", ("more", "less"))
    if all(group["solved"] == group["trials"] for group in types.values()):
        verdict, sentence = "all", f"Every type learned it on every seed ({shares})."
    elif pairs:
        verdict = "differs"
        leads = _leads(pairs, ("more", "less"), "is solved more often than")
        sentence = f"Shares solved in the steps given: {shares}. {leads}"
    else:
        verdict = "inconclusive"
        sentence = f"Shares solved in the steps given: {shares}. No difference is reliable."
    return _claim(verdict, pairs, sentence + _leading_controls(tests, "fisher_exact"))


def _sooner(tests: _Tests) -> RecallClaim:
    pairs = tests.pairs("log_rank", ("first", "later"))
    controls = _leading_controls(tests, "log_rank")
    if not pairs:
        sentence = f"No type learns it reliably sooner than another.{controls}"
        return _claim("inconclusive", [], sentence)
    sentence = _leads(pairs, ("first", "later"), "learns it sooner than")
    for pair in pairs:
        if pair["later"] == BASELINE:
            pair["takes_both"] = not pair["explained_by"] and tests.takes_both(pair["first"])
            if pair["takes_both"]:
                parts = [type_name(part) for part in _PARTS if tests.has(part, BASELINE)]
                sentence += (
                    f" No part alone has a reliable lead over {_name(BASELINE)} "
                    f"({'; '.join(parts)}): the lead takes the difference and the norm."
                )
    return _claim("differs", pairs, sentence + controls)


def _leads(pairs: Sequence[Any], keys: tuple[str, str], verb: str) -> str:
    """Which type is ahead of which, and by which controls a lead or a lag may be explained."""
    by_leader: dict[str, list[Any]] = {}
    for pair in pairs:
        by_leader.setdefault(pair[keys[0]], []).append(pair)
    sentences: dict[str, None] = {}
    for ahead, group in by_leader.items():
        behind = listing(_name(pair[keys[1]]) for pair in group)
        sentences[f"{_name(ahead, first=True)} {verb} {behind}."] = None
        for pair in group:
            sentences |= dict.fromkeys(_reservations(pair, ahead, pair[keys[1]]))
    return " ".join(sentences)


def _name(variant: str, *, first: bool = False) -> str:
    """A model within a sentence, or as its first words."""
    if variant != BASELINE:
        return type_name(variant)
    return "The Transformer" if first else "the Transformer"


def _leading_controls(tests: _Tests, by: Test) -> str:
    """Name the controls that are significantly ahead of softmax attention."""
    controls = (*SIDE_EFFECTS, *_PARTS_OF_NORMED, UNIFORM)
    ahead = [type_name(name) for name in controls if tests.leads(name, BASELINE, by)]
    text = ""
    if ahead:
        text += f" Ahead of the Transformer without a second map that learns: {listing(ahead)}."
    if tests.leads(ADDED, BASELINE, by):
        text += f" Ahead of the Transformer without a difference: {type_name(ADDED)}."
    return text


def _reservations(pair: RecallPair, ahead: str, behind: str) -> Iterator[str]:
    """The controls by which a lead or a lag may be explained, one sentence per cause."""
    explanations = pair.get("explained_by", [])
    if shared := [type_name(control) for control in pair.get("shared_by", [])]:
        yield (
            f"We found no reliable lead of {listing(shared)} over {_name(behind)}: the second map "
            "may not be the cause."
        )
    for cause in dict.fromkeys(_CAUSES.values()):
        alike = [type_name(name) for name in explanations if _CAUSES.get(name) == cause]
        if alike:
            yield f"We found no reliable lead over {listing(alike)}: {cause} the cause."
    if WITHOUT_NORM in explanations:
        yield f"{_name(ahead)} has no reliable lead without head norm: the norm may be the cause."
