"""What guessing scores, the verdicts that rest on it, and intervals of perplexities."""

import math
import random

import pytest

from diffattn.lab.evaluation.compare import compare_answers
from diffattn.lab.evaluation.metrics import NAMED, guess_shares, guessing, perplexity_metric
from diffattn.lab.stats.intervals import Interval
from evaluation_folders import answers

NEITHER = "uninformative: neither is above guessing where one can guess"
ASKED = {(1, 1): 1.0, (2, 2): 0.85, (4, 2): 0.62, (6, 2): 0.55}
"""Table 2 of arXiv:2410.05258v2: recall of the Transformer, by numbers hidden and asked for."""
DIFF = {(1, 1): 1.0, (2, 2): 0.92, (4, 2): 0.84, (6, 2): 0.85}


def whole(sides, protocol="needle", over="items"):
    """The comparison of the last model by the primary score; ``sides`` by label."""
    of = {label: answers(label, rows, protocol=protocol) for label, rows in sides.items()}
    found = compare_answers({"part": of}, list(of), ["part"], {}).differences
    return [one for one in found if one.primary and one.over == over][-1]


def told(of, score, protocol="key_values"):
    """What guessing scores of rows, all of which have the score."""
    rows = [{"scores": {score: 1.0}} | row for row in of]
    guess = guessing(protocol, rows, score)
    return guess and (guess.chance, guess.ceiling)


def needle_rows(recalls, seed, named=None):
    """Rows of ``needle``: a model that names what it recalls, or ``named`` numbers at random."""
    draw, rows = random.Random(f"rows-{seed}"), []
    for (hidden, asked), recall in recalls.items():
        for sample in range(40):
            for depth in (0, 100):
                if named is None:
                    right = sum(draw.random() < recall for _ in range(asked))
                    said = right
                else:
                    said = min(named, hidden)
                    right = sum(i < asked for i in draw.sample(range(hidden), said))
                rows.append(
                    {
                        "id": f"{hidden}-{asked}/{sample}/{depth}", "cluster": str(sample),
                        "needles": hidden, "asked": asked, "depth": depth,
                        **guess_shares(asked, hidden, said), "scores": {"recall": right / asked},
                    }
                )  # fmt: skip
    return rows


def test_recalls_of_the_paper_are_told_apart():
    sides = {
        f"{kind}-seed{seed}": needle_rows(recalls, f"{kind}{seed}")
        for kind, recalls in (("softmax", ASKED), ("diff", DIFF))
        for seed in range(3)
    }
    one = whole(sides)
    assert (one.verdict, whole(sides, over="seeds").verdict) == ("higher", "higher")
    # Where all that is hidden is asked for, whoever names a number has found it: no floor.
    assert [floor.where for floor in one.floors] == [
        {}, {"needles": 4, "asked": 2}, {"needles": 6, "asked": 2},
    ]  # fmt: skip
    four = one.floors[1]
    assert four.guess == pytest.approx(four.value / 2)  # names what it recalls of two of four
    assert four.baseline_guess == pytest.approx(four.baseline_value / 2)
    assert one.guess_ceiling == max(one.floors[0].guess, one.floors[0].baseline_guess)


def test_naming_whatever_is_there_is_no_skill():
    """All numbers of the text, two of them at random, and none."""
    recalls = {key: 0.0 for key in ASKED if key[0] > key[1]}
    everything = needle_rows(recalls, 1, named=6)
    assert all(row["scores"]["recall"] == row[NAMED] == 1.0 for row in everything)
    for named in (0, 2, 6):
        one = whole({"a": needle_rows(recalls, 2, named=named), "b": everything})
        assert {floor.value for floor in one.floors} == {1.0}
        assert one.verdict == (
            "uninformative: both have everything right" * (named == 6) or NEITHER
        )


def test_one_task_above_its_floor_is_enough():
    """Ten tasks at a floor of .5, or below it, and one that is read: the mean says nothing."""

    def rows(read):
        return [
            {
                "id": f"{task}-{i}", "task": f"t{task}", "guess": 0.2, NAMED: 0.5 if task else 0.1,
                "scores": {"score": float(i < read if task == 0 else i % 4 == 0)},
            }
            for task in range(11) for i in range(40)
        ]  # fmt: skip

    one = whole({"a": rows(30), "b": rows(29)}, "ruler")
    assert one.value < one.floors[0].guess
    assert (len(one.floors), one.verdict) == (12, "inconclusive")
    assert whole({"a": rows(4), "b": rows(3)}, "ruler").verdict == NEITHER


def test_models_have_floors_of_their_own():
    """The second names everything; the first one number of four, always the right one."""
    rows = [{"id": str(i), "scores": {"recall": 1.0 - (i > 45)}} for i in range(50)]
    reader = [row | guess_shares(1, 4, 1) for row in rows]
    lister = [row | guess_shares(1, 4, 4) for row in rows]
    one = whole({"a": reader, "b": lister}, "key_values")
    assert (one.floors[0].guess, one.floors[0].baseline_guess) == (1.0, 0.25)
    assert (one.verdict, one.guess_ceiling) == ("inconclusive", 1.0)
    # A list of everything has more right than a model that reads, and says nothing.
    half = [row | {"scores": {"recall": float(int(row["id"]) % 3 > 0)}} for row in reader]
    for sides, better in (({"a": half, "b": lister}, 1), ({"a": lister, "b": half}, -1)):
        one = whole(sides, "key_values")
        assert (one.p_holm < 0.05, one.difference * better > 0.2) == (True, True)
        assert (
            one.verdict == "uninformative: the higher one is not above guessing where one can guess"
        )
    assert whole({"a": lister, "b": lister}, "key_values").verdict == NEITHER


def test_names_of_a_text_are_copied():
    """The only name of a text is no floor but the most frequent answer's; one of two is."""
    alone = [{"expected": str(i % 12), "names_in_text": ["x"]} for i in range(24)]
    assert told(alone, "contains", "hidden_needle") == pytest.approx((1 / 12, 1 / 12))
    two = [row | guess_shares(1, 2, i % 2) for i, row in enumerate(alone)]
    assert told(two, "contains", "hidden_needle") == (0.5, 0.25)
    some = [row | {"id": str(i)} for i, row in enumerate([*alone * 8, two[1]])]

    def side(right):
        scores = ({"contains": float(i % 20 < right)} for i in range(len(some)))
        return [row | {"scores": score} for row, score in zip(some, scores, strict=True)]

    one = whole({"a": side(16), "b": side(19)}, "hidden_needle")  # one text of many names two
    assert one.floors[0].n == len(some)
    assert one.guess_ceiling == pytest.approx(1 / 12, abs=0.01)
    assert one.verdict == "higher"


def test_copying_a_name_of_each_text_is_not_above_guessing():
    """Half of the texts name the answer alone, where the copy is right."""
    texts = [{"id": str(i), "expected": str(i % 12)} for i in range(96)]
    told = [row | (guess_shares(1, 3, 1) if i % 2 else {}) for i, row in enumerate(texts)]
    copier = [
        row | {"scores": {"contains": float(i % 2 == 0 or i % 6 == 1)}}
        for i, row in enumerate(told)
    ]
    mute = [row | {"scores": {"contains": 0.0}} for row in told]
    one = whole({"a": mute, "b": copier}, "hidden_needle")
    assert one.value > 0.6
    assert one.verdict == NEITHER


def test_copying_the_lead_is_the_floor_of_support():
    rows = [
        {"id": str(i), "scores": {"entities_found": float(i % 4 > 0)}, "lead": lead}
        for i, lead in enumerate([{"entities_found": 0.5}, {"entities_found": 1.0}, {}] * 20)
    ]
    guess = guessing("hallucination", rows, "entities_found")
    assert (guess.ceiling, len(guess.rows)) == (0.75, 40)
    assert guess.how == "the first sentences of the document, copied"
    one = whole({"a": rows, "b": rows}, "hallucination")
    assert one.verdict == NEITHER
    assert guessing("hallucination", [{"scores": {"span_match": 1.0}}], "span_match") is None


def test_what_guessing_scores():
    closed = [{"task": t, "expected": a} for t, a in [("x", "1")] * 3 + [("x", "2"), ("y", "3")]]
    assert told(closed, "contains", "hidden_needle") == pytest.approx(
        ((0.5 + 1) / 2, (0.75 + 1) / 2)
    )
    intents = [{"expected": str(i), "labels": 150} for i in range(10)]
    for protocol in ("many_shot", "order_robustness"):  # ten items show ten labels of 150
        assert told(intents, "accuracy_forced", protocol)[0] == pytest.approx(1 / 150)
    choices = [{"task": "x", "gold": g, "logprobs": [0.0] * 4} for g in (0, 0, 1)]
    assert told(choices, "average", "lm_tasks") == (0.25, pytest.approx(2 / 3))
    said = [{"guess": 0.16, "guess_of_all_that_fit": 0.42}, {"guess": 0.1}]
    assert told(said, "score", "ruler") == pytest.approx((0.13, 0.26))
    assert told([{}], "nll", "nll_by_position") is None
    for copied in ("babilong", "needle", "key_values", "remapped_labels"):
        # Never 0 where rows do not say.
        assert told([{"expected": "1", "pairs": 8}], "recall", copied) is None


def test_a_perplexity_is_the_exponential_of_all_three():
    result = perplexity_metric("perplexity", Interval(2.0, 1.0, 3.0, 0.9, 7, "by hand"))
    assert [math.log(x) for x in (result.value, result.low, result.high)] == pytest.approx(
        [2, 1, 3]
    )
    assert (result.level, result.n) == (0.9, 7)
    assert result.method == "exp of the loss's: by hand"
    assert result.higher_is_better is False
    unknown = perplexity_metric("perplexity", Interval(800.0, None, None, 0.95, 1, "none"))
    assert (unknown.value, unknown.low, unknown.high) == (math.exp(700), None, None)
