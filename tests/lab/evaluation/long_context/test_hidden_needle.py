"""Needles found by meaning: no shared words, places, names, score, effective length."""

import re

import pytest

from diffattn.lab.evaluation.long_context.haystack import read_haystack_words
from diffattn.lab.evaluation.long_context.hidden_needle import (
    KINDS,
    NAMES,
    NEEDLES,
    HiddenNeedleSearch,
    names,
)
from diffattn.lab.evaluation.metrics import NAMED
from evaluation_folders import evaluated
from scripted_model import completing

# Words without content, which any two sentences may share.
FUNCTION_WORDS = frozenset(
    """a an and as at be beside better by can could did do does for from had has have in is it
    neither no nor not of on or past second that the three to two up was were what who whom whose
    with would""".split()  # noqa: SIM905
) - {"beside", "past", "second", "three", "two"}


def overlap(a, b):
    """Words that two sentences share, cut to their stems' first five letters."""
    first, second = (
        {word[:5] for word in re.findall(r"[a-z]+", one.lower()) if word not in FUNCTION_WORDS}
        for one in (a, b)
    )
    return first & second


@pytest.mark.parametrize("needle", NEEDLES, ids=lambda needle: needle["one_hop"])
def test_a_question_by_meaning_shares_no_word_and_the_control_does(needle):
    text = needle["text"].format(name="")
    assert not overlap(text, needle["one_hop"])
    assert not overlap(text, needle["two_hop"])
    assert len(overlap(text, needle["literal"])) >= 2
    assert needle["text"].count("{name}") == 1
    assert all(not names(needle[kind], name) for kind in KINDS for name in NAMES)
    asked = [entry[kind] for entry in NEEDLES for kind in KINDS]
    assert all(asked.count(needle[kind]) == 1 for kind in KINDS)


def test_a_needle_stands_once_at_its_depth_in_a_text_of_its_length(build, haystack):
    model = build("diff", max_length=4096)
    protocol = HiddenNeedleSearch(lengths=(500, 2000), depths=5, needles=2, haystack=haystack)
    background = read_haystack_words(haystack, 2000)
    for length in (500, 2000):
        for number in range(2):
            for step in range(5):
                text, name, tokens, place = protocol._text(model, background, length, number, step)
                needle = NEEDLES[number]["text"].format(name=name)
                assert text.count(needle) == 1
                assert text.count(name) == 1
                assert length - 12 < tokens == len(model.encode(text)) <= length
                before = len(text.split(needle)[0].split())
                words = len(text.replace(needle, "").split())
                assert abs(place - 100 * before / words) < 0.1
                # Sentences have up to 12 words; the nearest end is half of that away at most.
                assert abs(place - 25 * step) <= 100 * 6.5 / words
                assert text.startswith(needle) == (step == 0)
                assert text.endswith(needle) == (step == 4)


def test_a_name_of_the_text_is_not_the_answer(build, tmp_path):
    (tmp_path / "book.txt").write_text(" ".join(f"{name} came." for name in NAMES[1:]) * 60)
    protocol = HiddenNeedleSearch(haystack=str(tmp_path / "book.txt"))
    background = read_haystack_words(protocol.haystack, 500)
    found = {protocol._text(build(), background, 500, 0, step)[1] for step in range(5)}
    assert found == {NAMES[0]}


def test_names_of_a_text_are_counted(build, tmp_path):
    """Two of the twelve stand in the text, the answer a third: naming one is right by a third."""
    (tmp_path / "book.txt").write_text("Agnes came. Bruno went, as did others. " * 120)
    protocol = HiddenNeedleSearch(
        haystack=str(tmp_path / "book.txt"), lengths=(250,), depths=2, needles=1
    )
    written = iter([" Agnes", " Agnes, Bruno and Agnes", "\n"] * 2)
    model = completing(build(), lambda *_: next(written))
    _, rows = evaluated(model, protocol, tmp_path / "out")
    for row in rows:
        assert set(row["names_in_text"]) == {"Agnes", "Bruno", row["expected"]}
        assert row["guess"] == 1 / 3
    assert [row[NAMED] for row in rows] == [1 / 3, 2 / 3, 0.0] * 2


def finding(model, knows):
    """A model that writes the name where ``knows(tokens of the prompt, question)``."""

    def write(text, *_):
        (name,) = [one for one in NAMES if one in text]
        known = knows(len(model.encode(text)), text.split("Question: ")[1])
        return f" {name}." if known else "\nno one"

    return completing(model, write)


def test_the_effective_length_keeps_its_share_of_the_base(build, haystack, tmp_path):
    protocol = HiddenNeedleSearch(
        lengths=(250, 500, 1000, 2000), depths=3, needles=1, haystack=haystack
    )
    model = finding(
        build("diff", max_length=4096), lambda tokens, question: tokens < 1500 or "walk" in question
    )
    result, rows = evaluated(model, protocol, tmp_path / "out")
    found = {(m.name, *m.where.items()): m.value for m in result.metrics}
    assert found["base_score",] == 1.0
    assert found["effective_length",] == 1000.0
    assert found["contains", ("length", 2000)] == 0.0
    assert found["contains", ("length", 2000), ("kind", "literal")] == 1.0
    assert {row["expected"] in row["needle"] for row in rows} == {True}
    assert {row["cluster"] for row in rows} == {"0"}  # a fact is known in all texts or in none


def test_a_model_that_finds_nothing_has_no_effective_length(build, haystack, tmp_path):
    model = finding(build(), lambda tokens, question: False)
    protocol = HiddenNeedleSearch(lengths=(250, 500), depths=2, needles=1, haystack=haystack)
    result, _ = evaluated(model, protocol, tmp_path / "out")
    base, effective = result.headline()[-2:]
    assert (base.value, effective.value) == (0.0, 0.0)
    assert base.where == effective.where == {"over": "[250, 500]"}  # 1,000 is not among them


@pytest.mark.parametrize(
    ("output", "found"),
    [(" Agnes", 1.0), ("\nIt is Agnes.\nBruno", 1.0), ("Bruno\nAgnes", 0.0), ("Agneska", 0.0)],
)
def test_the_first_line_must_have_the_name(output, found):
    assert names(output, "Agnes") == found
