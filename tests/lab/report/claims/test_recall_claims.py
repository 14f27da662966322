"""Claims about recall: shares and steps from made-up records, and when they say nothing."""

import pytest

from diffattn.lab.report.claims.from_studies import recall_share, recall_steps
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.stats.proportions import wilson_interval

# What a record would hold; every number is made up.
TYPES = {
    "softmax": {"trials": 4, "solved": 1, "solved_steps": [900, None, None, None]},
    "diff": {"trials": 4, "solved": 4, "solved_steps": [400, 500, 400, 500]},
}
FREE = {"verdict": "differs", "sentence": "Made up.", "pairs": []}


def share_of(side):
    """As the study writes it."""
    share = wilson_interval(side["solved"], side["trials"])
    return {"mean": share.mean, "low": share.low, "high": share.high}


def recall(types=TYPES, first="diff", **message):
    types = {name: of | {"solved_share": share_of(of)} for name, of in types.items()}
    test = {"types": ["softmax", "diff"], "sooner": first}
    tasks = {"noisy_recall": {"types": types, "tests": [test], "num_steps": 1000} | message}
    return {"tasks": tasks}


def test_recall_apart_by_share_and_by_steps():
    records = ClaimRecords(recall=recall(can=FREE, sooner=FREE))
    share = recall_share("noisy_recall", "diff")(records)
    assert (share.effect, share.n, share.uninformative) == (0.75, 4, "")
    assert share.low < 0.75 < share.high
    steps = recall_steps("noisy_recall", "diff")(records)
    assert steps.effect == -1000  # the median of −500 and three that softmax never learned
    assert (steps.low, steps.high) == (None, None)  # of four seeds
    assert (steps.n, steps.uninformative) == (4, "")
    assert recall_steps("mqar", "diff")(records) is None


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({}, "the record holds no control"),
        ({"sooner": {"verdict": "uninformative", "sentence": "It leaks.", "pairs": []}},
         "It leaks."),
        ({"sooner": {"verdict": "differs", "sentence": "", "pairs": [
            {"first": "diff", "later": "softmax", "explained_by": ["softmax_half"]}]}},
         "not shown to do better than controls: Softmax × ½"),
    ],
)  # fmt: skip
def test_recall_that_says_nothing(message, why):
    assert (
        recall_steps("noisy_recall", "diff")(ClaimRecords(recall=recall(**message))).uninformative
        == why
    )


@pytest.mark.parametrize(
    ("solved", "trials", "low", "high"),
    # R. G. Newcombe, Stat. Med. 17 (1998), 873, Table II, method 10.
    [
        ((56, 48), (70, 80), 0.0524, 0.3339),
        ((9, 3), (10, 10), 0.1705, 0.8090),
        ((5, 0), (56, 29), -0.0381, 0.1926),
        ((0, 0), (10, 20), -0.1611, 0.2775),
        ((10, 0), (10, 20), 0.6791, 1.0),
    ],
)
def test_intervals_of_shares_equal_published_values(solved, trials, low, high):
    types = {
        name: {"solved": solved[i], "trials": trials[i]}
        for i, name in enumerate(("diff", "softmax"))
    }
    share = recall_share("noisy_recall", "diff")(ClaimRecords(recall=recall(types, can=FREE)))
    assert share.effect == pytest.approx(solved[0] / trials[0] - solved[1] / trials[1])
    assert (share.low, share.high) == pytest.approx((low, high), abs=5e-5)


def test_a_control_excuses_no_type_that_trails():
    """Whatever pairs a record names: only a lead can be a control's as well."""
    pair = {"first": "diff", "later": "softmax", "explained_by": ["softmax_half"]}
    message = {"sooner": {"verdict": "differs", "sentence": "", "pairs": [pair]}}
    swapped = {"softmax": TYPES["diff"], "diff": TYPES["softmax"]}
    steps = recall_steps("noisy_recall", "diff")
    assert steps(ClaimRecords(recall=recall(**message))).uninformative
    behind = steps(ClaimRecords(recall=recall(swapped, "softmax", **message)))
    assert (behind.effect, behind.uninformative) == (1000, "")


def test_the_side_is_that_of_the_log_rank_test():
    """One of twelve runs never learned: a mean of steps would name the other model."""
    soon = [175, 200, 225, 225, 225, 250, 200, 225, 275, 225, 250, None]
    late = [325, 350, 350, 375, 400, 325, 350, 350, 375, 400, 350, 325]
    types = {
        name: {"trials": 12, "solved": 12 - steps.count(None), "solved_steps": steps}
        for name, steps in (("diff", soon), ("softmax", late))
    }
    steps = recall_steps("noisy_recall", "diff")
    results = steps(ClaimRecords(recall=recall(types, sooner=FREE)))
    assert (results.effect, results.low, results.high) == (-137.5, -150, -100)
    assert results.uninformative == ""
    crossed = steps(ClaimRecords(recall=recall(types, "softmax", sooner=FREE)))
    assert crossed.uninformative == (
        "the median by seed and the log-rank test do not name the same model as sooner"
    )
