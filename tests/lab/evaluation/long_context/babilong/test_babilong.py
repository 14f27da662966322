"""BABILong on models: facts in order between sentences, exact length, what is refused."""

import random
import re
from pathlib import Path
from random import Random

import pytest

from diffattn.lab.evaluation.long_context.babilong.babilong import BabiLong, is_right, question_text
from diffattn.lab.evaluation.long_context.babilong.stories import LABELS, PLACES, STORIES, mentioned
from diffattn.lab.evaluation.metrics import guessing
from evaluation_folders import evaluated
from scripted_model import completing


def test_facts_stand_in_order_and_the_text_fills_the_length(long_model, haystack):
    protocol = BabiLong(lengths=(0, 2000, 3000), samples=3, haystack=haystack)
    book = Path(haystack).read_text()
    for batch in protocol.batches(long_model):
        for item in batch:
            length, task, index, longest = item.payload
            story, text, depths, _ = protocol._sample(long_model, length, task, index, longest)
            context = text.split("<context>\n")[1].split("\n</context>")[0]
            if length == 0:
                assert context == " ".join(story.facts)
                continue
            rest, at = context, 0
            for fact in story.facts:
                at = context.index(fact, at) + len(fact)
                rest = rest.replace(fact, "", 1)
            assert all(word in book for word in rest.split())
            assert depths == sorted(depths)
            tokens = len(long_model.encode_prompt(text)) + protocol.max_new_tokens
            assert length - 12 < tokens <= length  # within a word of this small vocabulary


def test_places_are_uniform(long_model, haystack):
    protocol = BabiLong(lengths=(2500,), tasks=("qa4",), samples=40, haystack=haystack)
    depths = [
        depth
        for index in range(40)
        for depth in protocol._sample(long_model, 2500, "qa4", index, 2500)[2]
    ]
    # The mean of 80 uniform depths has a standard error of 100 / sqrt(12 * 80) = 3.23.
    assert abs(sum(depths) / len(depths) - 50) < 3 * 3.23
    assert min(depths) < 5
    assert max(depths) > 95


def test_one_story_at_several_lengths_is_one_cluster(long_model, haystack):
    protocol = BabiLong(haystack=haystack, lengths=(0, 1000), tasks=("qa1", "qa4"), samples=2)
    items = [item for batch in protocol.batches(long_model) for item in batch]
    assert len({item.id for item in items}) == 8
    asked = {(item.cluster, protocol._sample(long_model, *item.payload)[0]) for item in items}
    assert len(asked) == len({cluster for cluster, _ in asked}) == 4


def test_right_and_wrong_answers_are_counted(long_model, haystack, tmp_path):
    model = completing(long_model, lambda *_: " kitchen. garden")
    protocol = BabiLong(lengths=(0, 1500), tasks=("qa1", "qa2"), samples=6, haystack=haystack)
    result, rows = evaluated(model, protocol, tmp_path / "out")
    for length in (0, 1500):
        own = [row["expected"] == "kitchen" for row in rows if row["length"] == length]
        mean = next(m for m in result.headline() if m.where == {"length": length})
        assert (mean.name, mean.value) == ("mean_of_2_tasks", pytest.approx(sum(own) / len(own)))
    assert result.headline()[-1].value == 0.0
    assert result.tables["threshold"] == 0.85


def test_default_lengths_hold_the_prompt_and_fit_the_model(build, haystack):
    model = build("softmax", max_length=2500)
    protocol = BabiLong(tasks=("qa5",), samples=2, haystack=haystack)
    lengths = {item.payload[0] for batch in protocol.batches(model) for item in batch}
    assert {0, 2048} <= lengths <= {0, 1024, 2048}


def test_labels_named_without_following_the_story(long_model, haystack, tmp_path):
    """A model that writes the last label scores what the rows say, far above 1 in 6."""
    asked = iter(
        (task, STORIES[task](Random(f"42-{task}-{i}"))) for task in STORIES for i in range(40)
    )
    model = completing(long_model, lambda *_: f" {mentioned(*next(asked))[-1]}")
    protocol = BabiLong(lengths=(0,), samples=40, haystack=haystack)
    result, rows = evaluated(model, protocol, tmp_path / "out")
    for row in rows:
        assert row["guess_of_all_that_fit"] == row["scores"]["accuracy"]
        assert 0 < row["guess"] <= 1
    guess = guessing("babilong", rows, "accuracy")
    mean = next(m.value for m in result.headline() if m.name == "mean_of_5_tasks")
    assert guess.ceiling == pytest.approx(mean)
    assert guess.ceiling > 0.4
    assert guess.chance > 0.25


MOVE = re.compile(r"(\w+) (?:moved|went|went back|journeyed|travelled) to the (\w+)\.")
TAKE = re.compile(r"(\w+) (?:grabbed|got|picked up|took) the (\w+)\.")
DROP = re.compile(r"(\w+) (?:discarded|dropped|left|put down) the (\w+)\.")
GIVE = re.compile(r"(\w+) (?:gave|handed|passed) the (\w+) to (\w+)\.")
SIDE = re.compile(r"The (\w+) is (\w+) of the (\w+)\.")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}


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
    gifts = [match.groups() for fact in story.facts if (match := GIVE.fullmatch(fact))]
    (answer,) = filter(None, (gift_answer(words, *gift) for gift in gifts))
    return answer


def side_answer(story):
    """Each fact says where both of its places lie: exactly one lies where the question says."""
    sides = [SIDE.fullmatch(fact).groups() for fact in story.facts]
    sides += [(b, OPPOSITE[side], a) for a, side, b in sides]
    if match := re.fullmatch(r"What is (\w+) of the (\w+)\?", story.question):
        (answer,) = [a for a, *rest in sides if tuple(rest) == match.groups()]
    else:
        match = re.fullmatch(r"What is the (\w+) (\w+) of\?", story.question)
        (answer,) = [b for *rest, b in sides if tuple(rest) == match.groups()]
    return answer


def gift_answer(words, giver, what, receiver):
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
