"""Stories in the manner of bAbI: an independent reader finds the answer in the facts."""

import random
import re

import pytest

from diffattn.lab.evaluation.long_context.babilong.babilong import is_right, question_text
from diffattn.lab.evaluation.long_context.babilong.stories import LABELS, PLACES, STORIES

MOVE = re.compile(r"(\w+) (?:moved|went|went back|journeyed|travelled) to the (\w+)\.")
TAKE = re.compile(r"(\w+) (?:grabbed|got|picked up|took) the (\w+)\.")
DROP = re.compile(r"(\w+) (?:discarded|dropped|left|put down) the (\w+)\.")
GIVE = re.compile(r"(\w+) (?:gave|handed|passed) the (\w+) to (\w+)\.")
SIDE = re.compile(r"The (\w+) is (\w+) of the (\w+)\.")
STEP = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}


def follow(facts):
    """Where people are, and every place each object has been at."""
    place, carrier, track = {}, {}, {}
    for fact in facts:
        if match := MOVE.fullmatch(fact):
            who, where = match.groups()
            assert place.get(who) != where
            place[who] = where
            for what in [one for one, by in carrier.items() if by == who]:
                track[what].append(where)
        elif match := TAKE.fullmatch(fact):
            who, what = match.groups()
            assert what not in carrier
            assert track.get(what, [place[who]])[-1] == place[who]  # it lies where the taker is
            carrier[what] = who
            if what not in track:
                track[what] = [place[who]]
        else:
            who, what = DROP.fullmatch(fact).groups()
            assert carrier.pop(what) == who
    return place, track


def answer_of(task, story):
    """The answer as a reader of the facts alone would find it."""
    words = re.findall(r"\w+", story.question)
    if task == "qa1":
        return follow(story.facts)[0][words[-1]]
    if task == "qa2":
        return follow(story.facts)[1][words[-1]][-1]
    if task == "qa3":
        track = follow(story.facts)[1][words[3]]
        assert track.count(words[-1]) == 1
        return track[track.index(words[-1]) - 1]
    if task == "qa4":
        return side_answer(story)
    gifts = [GIVE.fullmatch(fact).groups() for fact in story.facts if GIVE.fullmatch(fact)]
    found = [gift_answer(words, gift) for gift in gifts]
    found = [one for one in found if one]
    assert len(found) == 1
    return found[0]


def side_answer(story):
    """Places on a grid: exactly one lies where the question says."""
    (a, d, b), (a2, d2, b2) = (SIDE.fullmatch(fact).groups() for fact in story.facts)
    grid = {b: (0, 0), a: STEP[d]}
    x, y = STEP[d2]
    if b2 in grid:
        grid[a2] = (grid[b2][0] + x, grid[b2][1] + y)
    else:
        grid[b2] = (grid[a2][0] - x, grid[a2][1] - y)
    match = re.fullmatch(r"What is (\w+) of the (\w+)\?", story.question)
    if match:
        side, other = match.groups()
        wanted = (grid[other][0] + STEP[side][0], grid[other][1] + STEP[side][1])
    else:
        other, side = re.fullmatch(r"What is the (\w+) (\w+) of\?", story.question).groups()
        wanted = (grid[other][0] - STEP[side][0], grid[other][1] - STEP[side][1])
    (found,) = [place for place, at in grid.items() if at == wanted]
    return found


def gift_answer(words, gift):
    giver, what, receiver = gift
    patterns = {
        ("What", "did", giver, "give", "to", receiver): what,
        ("Who", "gave", "the", what, "to", receiver): giver,
        ("Who", "did", giver, "give", "the", what, "to"): receiver,
        ("Who", "gave", "the", what): giver,
        ("Who", "received", "the", what): receiver,
    }
    return patterns.get(tuple(words))


@pytest.mark.parametrize("task", STORIES)
def test_the_answer_follows_from_the_facts_and_is_a_label(task):
    answers = set()
    for seed in range(400):
        story = STORIES[task](random.Random(seed))
        assert answer_of(task, story) == story.answer
        assert story.answer in LABELS[task]
        assert story.answer not in story.question
        assert 2 <= len(story.facts) <= 42
        answers.add(story.answer)
    assert answers == set(LABELS[task])


@pytest.mark.parametrize("task", STORIES)
def test_the_examples_are_right_and_share_no_label_with_the_task(task):
    text = question_text(task, "CONTEXT", "QUESTION?")
    assert text.endswith("<context>\nCONTEXT\n</context>\nQuestion: QUESTION?")
    shown = re.findall(r"<example>\n(.*)\nQuestion: (.*)\nAnswer: (.*)\n</example>", text)
    assert len(shown) == 2
    for facts, question, answer in shown:
        words = re.findall(r"\w+", f"{facts} {question} {answer}")
        assert not {word.lower() for word in words} & {label.lower() for label in LABELS[task]}
        assert answer in facts


@pytest.mark.parametrize(
    ("output", "right"),
    [
        (" kitchen", 1.0),
        (" The milk is in the Kitchen. Not in the garden.", 1.0),
        ("\nkitchen\nQuestion: Where is the office?", 1.0),
        (" kitchen Question: the garden?", 1.0),
        (" kitchen<example> garden", 1.0),
        (" kitchen or garden", 0.0),
        (" garden", 0.0),
        (" kitchenette", 0.0),
        ("", 0.0),
        (". kitchen", 0.0),
        (" the hallway and the kitchen", 1.0),  # named in the question, so it does not count
    ],
)
def test_the_first_sentence_must_name_one_label(output, right):
    question = "Where was the milk before the hallway?"
    assert is_right(output, "kitchen", question, PLACES) == right
