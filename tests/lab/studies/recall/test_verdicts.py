"""What is claimed: ``can`` and ``sooner`` apart, adjusted, and only where controls allow it."""

import pytest

from diffattn.lab.catalog.models import type_name
from diffattn.lab.stats.multiple import holm
from diffattn.lab.stats.survival import log_rank
from diffattn.lab.studies.recall.verdicts import claims, leak, pair_tests

STEPS = 1000
NOT_LEAKING = {"limit": 0.1, "highest": 0.07, "leaks": False}


def group(*solved_steps, accuracy=0.5):
    """A summary, as far as verdicts read it."""
    solved = sum(step is not None for step in solved_steps)
    return {
        "solved": solved,
        "trials": len(solved_steps),
        "solved_steps": list(solved_steps),
        "test_accuracy": [accuracy] * len(solved_steps),
    }


EARLIEST = group(*range(10, 90, 10))
EARLY = group(*range(100, 180, 10))
SOON = group(*range(300, 380, 10))
LATE = group(*range(500, 580, 10))
LATEST = group(*range(800, 880, 10))
NEVER = group(*[None] * 8)


def verdicts(types, controls=None, leaked=NOT_LEAKING):
    tests = pair_tests({"task": (types, controls or {}, STEPS)})["task"]
    return claims(types, tests, leaked), tests


def test_sooner_is_not_can():
    """All learn it, one of them first."""
    results, tests = verdicts({"softmax": LATE, "diff": EARLY, "diff_v2": LATE})
    assert results["can"] == {
        "verdict": "all",
        "pairs": [],
        "reasons": [],
        "sentence": "Every type learned it on every seed (Transformer (softmax) 8 of 8, "
        "DIFF V1 8 of 8, DIFF V2 8 of 8).",
    }
    assert results["sooner"]["verdict"] == "differs"
    pairs = [(pair["first"], pair["later"]) for pair in results["sooner"]["pairs"]]
    assert pairs == [("diff", "softmax"), ("diff", "diff_v2")]
    sentence = "DIFF V1 learns it sooner than the Transformer and DIFF V2."
    assert results["sooner"]["sentence"] == sentence
    assert [test["sooner"] for test in tests["tests"]] == ["diff", None, "diff"]


def test_can_is_a_difference_of_shares():
    results, _ = verdicts({"softmax": NEVER, "diff": EARLY})
    assert results["can"]["verdict"] == "differs"
    assert results["can"]["pairs"][0]["more"] == "diff"
    assert "DIFF V1 is solved more often than the Transformer" in results["can"]["sentence"]
    some = group(*range(100, 170, 10), None)
    results, _ = verdicts({"softmax": some, "diff": EARLY})
    assert results["can"]["verdict"] == "inconclusive"
    assert "7 of 8" in results["can"]["sentence"]


def test_who_never_learns_it_is_not_sooner():
    results, tests = verdicts({"softmax": NEVER, "diff": LATE})
    assert tests["tests"][0]["sooner"] == "diff"
    (pair,) = results["sooner"]["pairs"]
    assert (pair["first"], pair["later"]) == ("diff", "softmax")


def test_one_run_that_never_learned_does_not_turn_who_is_sooner():
    """Nor who is not: V1 without norm, sooner but for a run, is shown to have a lead."""
    most = group(*[100] * 6, *[120] * 5, None)
    slow = group(*[160] * 6, *[170] * 6)  # a mean of 165 steps where that of the others is 183
    results, tests = verdicts({"softmax": slow, "diff": most})
    assert tests["tests"][0]["sooner"] == "diff"
    assert results["sooner"]["pairs"][0]["first"] == "diff"
    early = group(*[20] * 12)
    results, _ = verdicts({"softmax": slow, "diff": early}, {"diff_no_norm": most})
    assert results["sooner"]["pairs"][0]["explained_by"] == []


@pytest.mark.parametrize(("p", "shown"), [(0.049, True), (0.05, False), (0.06, False)])
def test_the_level_is_five_percent(p, shown):
    adjusted = {"fisher_exact_holm": p, "log_rank_holm": p, "more": "diff", "sooner": "diff"}
    tests = {
        "tests": [{"types": ["softmax", "diff"], **adjusted}],
        "control_tests": [{"types": ["softmax_half", "diff"], **adjusted}],
    }
    results = claims({"softmax": group(500, None), "diff": group(100, 110)}, tests, NOT_LEAKING)
    word = "differs" if shown else "inconclusive"
    assert (results["can"]["verdict"], results["sooner"]["verdict"]) == (word, word)
    certain = tests | {"tests": [tests["tests"][0] | {"log_rank_holm": 0.001}]}
    (pair,) = claims({"softmax": LATE, "diff": EARLY}, certain, NOT_LEAKING)["sooner"]["pairs"]
    assert pair["explained_by"] == ([] if shown else ["softmax_half"])


def test_nothing_shown():
    results, _ = verdicts({"softmax": LATE, "diff": LATE})
    assert results["sooner"] == {
        "verdict": "inconclusive",
        "pairs": [],
        "reasons": [],
        "sentence": "No type learns it reliably sooner than another.",
    }


def test_all_pairs_of_all_tasks_are_one_family_per_test():
    slower = group(*range(120, 200, 10))
    tasks = {
        "a": ({"softmax": slower, "diff": EARLY, "diff_v2": LATE}, {}, STEPS),
        "b": ({"softmax": EARLY, "diff": slower}, {"softmax_half": LATE}, STEPS),
    }
    results = pair_tests(tasks)
    family = [test for entry in results.values() for test in entry["tests"]]
    assert len(family) == 3 + 1
    raw = [test["log_rank"] for test in family]
    assert raw[0] == log_rank(slower["solved_steps"], EARLY["solved_steps"], STEPS).p
    assert [test["log_rank_holm"] for test in family] == holm(raw)
    assert {test["log_rank_exact"] for test in family} == {True}
    assert [test["fisher_exact_holm"] for test in family] == [1.0] * 4
    assert [test["types"] for test in results["b"]["control_tests"]] == [
        ["softmax_half", "softmax"],
        ["softmax_half", "diff"],
    ]


def test_blind_controls_are_in_no_test():
    _, tests = verdicts({"softmax": LATE, "diff": EARLY}, {"none": NEVER})
    assert tests["control_tests"] == []


@pytest.mark.parametrize(
    ("controls", "explained"),
    [
        ({"softmax_half": LATE, "softmax_minus_mean": LATE, "diff_no_norm": EARLY}, []),
        ({"softmax_half": EARLY}, ["softmax_half"]),
        ({"softmax_half": LATE, "softmax_minus_mean": EARLY}, ["softmax_minus_mean"]),
        # Shown, and the other way round: a control before the type, V1 without norm after softmax.
        ({"softmax_half": EARLIEST}, ["softmax_half"]),
        ({"diff_no_norm": LATEST}, ["diff_no_norm"]),
        ({"diff_no_norm": LATE}, ["diff_no_norm"]),
        ({"softmax_norm": LATE}, []),
        ({"softmax_norm": EARLY}, ["softmax_norm"]),
        ({"softmax_norm": LATE, "softmax_wide_norm": EARLY}, ["softmax_wide_norm"]),
        ({"softmax_wide": EARLY, "softmax_wide_norm": LATE}, ["softmax_wide"]),
        ({"softmax_wide_norm": LATE, "diff_no_norm": LATE}, []),
        ({"diff_uniform": LATE}, []),
        ({"diff_uniform": EARLY}, ["diff_uniform"]),
        ({"diff_added": LATE}, []),
        ({"diff_added": SOON}, []),
        ({"diff_added": EARLY}, ["diff_added"]),
    ],
)
def test_a_lead_that_a_control_explains_is_said_to_be(controls, explained):
    results, _ = verdicts({"softmax": LATE, "diff": EARLY}, controls)
    (pair,) = results["sooner"]["pairs"]
    assert pair["explained_by"] == explained
    assert ("no reliable lead" in results["sooner"]["sentence"]) == bool(explained)


NAMES = {
    "softmax_norm": "Softmax with head norm",
    "softmax_wide": "Softmax, half the heads",
    "softmax_wide_norm": "Softmax, half the heads, head norm",
}


@pytest.mark.parametrize(
    ("norm_alone", "end"),
    [
        ({}, "DIFF V1 has no reliable lead without head norm: the norm may be the cause."),
        (
            {"softmax_norm": LATE},
            " No part alone has a reliable lead over the Transformer (DIFF V1 without head norm; "
            "Softmax with head norm): the lead takes the difference and the norm.",
        ),
        (
            {"softmax_norm": LATE, "softmax_wide_norm": LATE},
            "norm; Softmax with head norm; Softmax, half the heads, head norm): the lead takes "
            "the difference and the norm.",
        ),
        ({"softmax_norm": EARLY}, "over Softmax with head norm: the norm may be the cause."),
        (
            {"softmax_wide": EARLY},
            "half the heads: the width of its heads may be the cause. DIFF V1 has no reliable "
            "lead without head norm: the norm may be the cause.",
        ),
        (  # what explains the lead leaves nothing for the norm to be needed for
            {"softmax_norm": LATE, "softmax_wide_norm": LATE, "softmax_wide": EARLY},
            "half the heads: the width of its heads may be the cause.",
        ),
        # The norm alone has a lead of its own, though V1's is larger.
        ({"softmax_norm": SOON}, "DIFF V1 learns it sooner than the Transformer."),
        (
            {"softmax_norm": LATE, "softmax_wide_norm": SOON},
            "DIFF V1 learns it sooner than the Transformer.",
        ),
    ],
)
def test_a_lead_that_takes_the_norm(norm_alone, end):
    controls = {"diff_no_norm": LATE, **norm_alone}
    results, _ = verdicts({"softmax": LATE, "diff": EARLY}, controls)
    message, beaten, by = results["sooner"]["sentence"].partition(" Ahead of the Transformer ")
    assert message.endswith(end)
    ahead = [name for name in NAMES if norm_alone.get(name) in (EARLY, SOON)]
    expected = [f"without a second map that learns: {NAMES[name]}." for name in ahead]
    assert [by] * bool(beaten) == expected


def test_a_lead_is_held_against_the_maps_without_their_difference():
    """If the sum of V1's maps is as soon, the difference is not why; if it is sooner than softmax
    but later than V1, part of the lead is none of the difference, and it is not said to take it."""
    controls = {"diff_no_norm": LATE, "softmax_norm": LATE}
    for added, ends in (
        (
            LATE,
            "; Softmax with head norm; DIFF V1, maps added): the lead takes the difference and "
            "the norm.",
        ),
        (
            EARLY,
            "no reliable lead over DIFF V1, maps added: its difference may not be the cause. "
            "Ahead of the Transformer without a difference: DIFF V1, maps added.",
        ),
        (
            SOON,
            "DIFF V1 learns it sooner than the Transformer. Ahead of the Transformer without a "
            "difference: DIFF V1, maps added.",
        ),
    ):
        results, _ = verdicts({"softmax": LATE, "diff": EARLY}, controls | {"diff_added": added})
        assert results["sooner"]["sentence"].endswith(ends)
        assert results["sooner"]["pairs"][0]["takes_both"] == (added is LATE)
    results, _ = verdicts({"softmax": LATE, "diff_v2": EARLY}, {"diff_added": EARLY})
    assert results["sooner"]["pairs"][0]["explained_by"] == []


@pytest.mark.parametrize("part", ["softmax_wide", "softmax_minus_mean", "diff_uniform"])
def test_a_part_that_is_sooner_than_softmax_alone_leaves_no_whole_lead(part):
    controls = {"diff_no_norm": LATE, "softmax_norm": LATE, part: SOON}
    results, _ = verdicts({"softmax": LATE, "diff": EARLY}, controls)
    assert "No part alone" not in results["sooner"]["sentence"]
    assert results["sooner"]["sentence"].endswith(
        f"without a second map that learns: {type_name(part)}."
    )
    results, _ = verdicts({"softmax": LATE, "diff": EARLY}, controls | {part: LATE})
    assert f"; {type_name(part)})" in results["sooner"]["sentence"]


def test_a_lag_behind_softmax_that_an_imitation_shares_is_said_to_be():
    types = {"softmax": EARLY, "diff_v2": LATE}
    for half, shared in ((EARLY, []), (LATE, ["softmax_half"])):
        results, _ = verdicts(types, {"softmax_half": half, "softmax_minus_mean": EARLY})
        (pair,) = results["sooner"]["pairs"]
        assert (pair["first"], pair["shared_by"]) == ("softmax", shared)
        reservation = (
            " We found no reliable lead of Softmax × ½ over DIFF V2: the second map may not be the "
            "cause."
        )
        lead = "The Transformer learns it sooner than DIFF V2."
        assert results["sooner"]["sentence"] == lead + (reservation if shared else "")


def test_controls_that_beat_softmax_are_named_whatever_types_do():
    results, _ = verdicts({"softmax": LATE, "diff": LATE}, {"softmax_minus_mean": EARLY})
    assert results["sooner"]["sentence"] == (
        "No type learns it reliably sooner than another. Ahead of the Transformer without a "
        "second map that learns: Softmax − 0.7 mean value."
    )


def test_more_often_is_held_against_controls_too():
    """By the test of shares: a control that learns it as often explains that V1 does."""
    rarely = group(50, 60, *[None] * 6)
    types = {"softmax": rarely, "diff": LATE, "diff_v2": rarely}
    results, tests = verdicts(types, {"softmax_half": LATEST, "softmax_norm": rarely})
    pairs = {(pair["more"], pair["less"]): pair for pair in results["can"]["pairs"]}
    assert pairs["diff", "softmax"]["explained_by"] == ["softmax_half"]
    assert pairs["diff", "diff_v2"]["explained_by"] == ["softmax_half"]
    message, _, by = results["can"]["sentence"].partition(" Ahead of the Transformer ")
    assert message.endswith("over Softmax × ½: its second map may not be the cause.")
    assert by == "without a second map that learns: Softmax × ½."
    assert tests["control_tests"][2]["more"] == "softmax_half"
    clear, _ = verdicts(types, {"softmax_half": NEVER})
    assert clear["can"]["pairs"][0]["explained_by"] == []
    assert "We found no" not in clear["can"]["sentence"]


@pytest.mark.parametrize("late", [LATE, NEVER])
def test_a_rate_at_the_edge_of_its_sweep_is_warned_of(late):
    types = {"softmax": late, "diff": EARLY if late is LATE else NEVER}
    tests = pair_tests({"task": (types, {}, STEPS)})["task"]
    results = claims(types, tests, NOT_LEAKING, ["diff", "softmax_norm"])
    plain = claims(types, tests, NOT_LEAKING)
    warnings = [
        f"The chosen learning rate of {name} lies at the edge of its sweep."
        for name in ("DIFF V1", "Softmax with head norm")
    ]
    for name, claim in results.items():
        assert claim["reasons"] == [*plain[name]["reasons"], *warnings]
        assert claim["sentence"] == " ".join([plain[name]["sentence"], *warnings])
        assert claim["verdict"] == plain[name]["verdict"]


def test_the_norm_is_no_reservation_about_others():
    controls = {"diff_no_norm": LATE, "softmax_norm": EARLY, "softmax_wide": EARLY}
    results, _ = verdicts({"softmax": LATE, "diff_v2": EARLY}, controls)
    assert results["sooner"]["pairs"][0]["explained_by"] == []


@pytest.mark.parametrize(
    ("types", "leaked", "why"),
    [
        (
            {"softmax": LATE, "diff": EARLY},
            {"limit": 0.1, "highest": 0.4, "leaks": True},
            "answers 0.400 of the queries, more than the 0.100",
        ),
        (
            {"softmax": LATE, "diff": EARLY},
            {"limit": 0.1, "highest": None, "leaks": None},
            "no model without attention",
        ),
        ({"softmax": NEVER, "diff": NEVER}, NOT_LEAKING, "no run of any type was solved"),
    ],
)
def test_uninformative(types, leaked, why):
    results, _ = verdicts(types, leaked=leaked)
    for claim in results.values():
        assert claim["verdict"] == "uninformative"
        assert why in claim["sentence"]
        assert claim["sentence"] == f"Uninformative: {claim['reasons'][0]}"


def test_a_model_without_attention_must_stay_at_a_guess_of_any_value():
    """Not at one of the context's values: it cannot know them."""
    ceilings = {"values": 1 / 16, "pairs": 1 / 4}
    at_guess = {"none": group(None, accuracy=0.07), "none_ffn": group(None)}
    at_guess["none_ffn"]["test_accuracy"] = [0.1]
    results = leak(at_guess, ceilings, 512)
    assert results == {"limit": pytest.approx(0.10529, abs=1e-5), "highest": 0.1, "leaks": False}
    knowing = {"none": group(None, accuracy=0.25)}
    assert leak(knowing, ceilings, 512)["leaks"] is True
    assert leak({}, ceilings, 512) == {"limit": results["limit"], "highest": None, "leaks": None}
