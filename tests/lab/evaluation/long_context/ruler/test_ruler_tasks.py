"""RULER's samples: what is asked for stands in the context, and nothing contradicts it."""

import itertools
import json
import random
import re
from collections import Counter
from dataclasses import replace

import pytest

from diffattn.lab.evaluation.long_context.haystack import HaystackWords
from diffattn.lab.evaluation.long_context.ruler.ruler import TASKS, THIN_TASKS, Ruler
from diffattn.lab.evaluation.long_context.ruler.samples import (
    DEPTHS,
    Material,
    Sample,
    WordList,
    read_questions,
    word_list,
)
from diffattn.lab.evaluation.metrics import NAMED

SYLLABLES = [consonant + vowel for consonant in "bdfghjklmnprstvz" for vowel in "aeiou"]
MADE_UP = WordList("a file", tuple(map("".join, itertools.islice(
    itertools.product(SYLLABLES, repeat=3), 0, None, 37
))), goes_on=True)  # fmt: skip
"""Words of one length, so that none lies within another."""


def test_words_of_this_python_lie_apart_and_pairs_follow_where_they_are_spent():
    known = word_list("python")
    assert len(known.words) > 500
    assert {"between", "result", "number"} & set(known.words)
    assert all(re.fullmatch(r"[a-z]{5,9}", word) for word in known.words)
    drawn = known.draw(400, random.Random(0))
    text = " ".join(drawn)
    assert all(text.count(word) == 1 for word in drawn)
    count = len(known.words)
    drawn = known.draw(count + 300, random.Random(0))
    assert len(set(drawn)) == count + 300
    assert drawn[:50] == known.draw(50, random.Random(0))
    assert all(re.fullmatch(r"[a-z]+-[a-z]+", pair) for pair in drawn[count:])
    assert not any(word in pair for word in known.words for pair in drawn[count:])


NEEDLES = [name for name in TASKS if name.startswith("niah")]
NEEDLE = re.compile(r"One of the special magic (?:numbers|uuids) for (\S+) is: (\S+)\.")


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    squad, hotpot = folder / "squad.json", folder / "hotpot.json"
    squad.write_text(json.dumps(squad_value(30)))
    hotpot.write_text(json.dumps(hotpot_value(30)))
    words = [f"w{i}" + ("." if i % 7 == 6 else "") for i in range(3_000)]
    background = HaystackWords("text", tuple(words), tuple(range(0, 3_000, 7)))
    return Material(
        background=background,
        words=MADE_UP,
        questions={
            "qa_1": read_questions(str(squad), "SQuAD"),
            "qa_2": read_questions(str(hotpot), "HotpotQA"),
        },
    )


def squad_value(articles):
    """Three paragraphs per article, each with an answerable and an impossible question."""

    def paragraph(a, p):
        asked = {"question": f"Which name has {a}-{p}?", "answers": [{"text": f"N{a}x{p}"}] * 2}
        impossible = {"question": "What?", "answers": [], "is_impossible": True}
        return {
            "context": f"Paragraph {p} of article {a} says that the name is N{a}x{p}.",
            "qas": [asked | {"is_impossible": False}, impossible],
        }

    return {"data": [{"paragraphs": [paragraph(a, p) for p in range(3)]} for a in range(articles)]}


def hotpot_value(entries):
    return [
        {
            "question": f"Who is {i}?",
            "answer": f"Person {i}",
            "context": [[f"Title {i}-{d}", [f"Person {i} is here. ", "Yes."]] for d in range(4)],
        }
        for i in range(entries)
    ]


def build(name, units, material, *, length=4096, index=0, seed=0):
    return TASKS[name].build(units, length, index, f"{seed}-{name}-{index}", material)


@pytest.mark.parametrize("name", NEEDLES)
def test_every_needle_stands_once_and_the_asked_ones_are_the_references(name, material):
    task = TASKS[name]
    for seed in range(100):
        units = random.Random(seed).randint(task.units(material, 0, 4096)[0], 400)
        sample = build(name, units, material, seed=seed)
        found = NEEDLE.findall(sample.question)
        asked = [key for key, value in found if value in sample.references]
        own = max(task.num_keys, task.num_queries) * task.num_values
        assert len(found) == own + (units if task.haystack == "needle" else 0)
        assert len(sample.references) == len(set(sample.references)) == len(asked)
        assert len(asked) == task.num_queries * task.num_values
        values = Counter(value for _, value in found)
        assert all(values[value] == 1 for value in sample.references)
        assert set(sample.candidates) == set(values)
        # No other needle has an asked key.
        assert sum(key in set(asked) for key, _ in found) == len(asked)
        query = sample.notes["query"]
        assert all(key in query and key in sample.answer_prefix for key in asked)
        assert len(sample.notes["depths"]) == len(asked)
        assert all(0 <= depth <= 100 for depth in sample.notes["depths"])


def test_one_needle_is_asked_for_in_the_singular(material):
    one, many = build("niah_single_2", 50, material), build("niah_multiquery", 50, material)
    assert one.question.startswith("A special magic number is hidden within")
    assert one.answer_prefix.endswith("mentioned in the provided text is")
    assert many.question.startswith("Some special magic numbers are hidden within")
    assert many.answer_prefix.endswith("mentioned in the provided text are")
    assert re.search(r"for \S+, \S+, \S+, and \S+ mentioned in", many.question)


def test_keys_and_values(material):
    """Of their kind; no number of the haystack is a value; keys can be the user's."""
    assert re.fullmatch(r"[1-9]\d{6}", build("niah_single_1", 9, material).references[0])
    uuid = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    sample = build("niah_multikey_3", 9, material)
    assert re.fullmatch(uuid, sample.references[0])
    assert re.fullmatch(uuid, sample.notes["query"])
    first = build("niah_single_2", 20, material).references[0]
    barred = Material(background=material.background, numbers=frozenset({first}))
    assert build("niah_single_2", 20, barred).references[0] != first
    own = replace(material, keys=tuple(f"key{i}" for i in range(12)))
    sample = build("niah_multikey_2", 30, own)
    assert {re.sub(r"\d+", "", key) for key, _ in NEEDLE.findall(sample.question)} == {"key"}


@pytest.mark.parametrize("name", ["niah_single_2", "niah_multiquery"])
def test_a_needle_in_text_lies_at_its_depth(name, material):
    for seed in range(50):
        sample = build(name, 700, material, seed=seed)
        context = sample.question.split("\n")[1]
        for depth, needle in zip(sample.notes["depths"], NEEDLE.finditer(context), strict=False):
            assert depth in DEPTHS
            before = len(NEEDLE.sub("", context[: needle.start()]).split())
            assert abs(before / 700 - depth / 100) <= 7 / 700  # one sentence
            if len(sample.references) > 1:
                break  # needles that are not asked for lie between


def test_variables_follow_from_the_value(material):
    for seed in range(100):
        sample = build("vt", random.Random(seed).randint(5, 200), material, seed=seed)
        example, _, asked = sample.question.rpartition("Memorize and track")
        value = re.search(r"assigned the value (\d{5}) in", asked)[1]
        holds = {}
        for name, source in re.findall(r"VAR ([A-Z]{5}) = (?:VAR )?(\w+)", asked):
            holds[name] = holds.get(source, source)  # a source is always set before
        assert set(sample.references) == {name for name, held in holds.items() if held == value}
        assert len(sample.references) == 5
        assert set(sample.candidates) == set(holds)
        shown = re.search(r"assigned the value (\d{5}) in", example)[1]
        assert shown != value
        assert re.search(r"they are: [A-Z]{3}( [A-Z]{3}){4}\n\n$", example)
        assert sample.answer_prefix.endswith(
            f"5 variables are assgined the value {value}, they are:"
        )


@pytest.mark.parametrize(
    ("task", "common", "others"), [(THIN_TASKS["cwe"], 6, 1), (TASKS["cwe"], 30, 3)]
)
def test_the_common_words_are_the_most_frequent(material, task, common, others):
    for seed in range(30):
        units = random.Random(seed).randint(11, 300)
        sample = task.build(units, 4096, 0, str(seed), material)
        asked = sample.question.rpartition("Below is a numbered list")[2]
        counts = Counter(re.findall(r"\d+\. (\w+)", asked))
        assert {word for word, n in counts.items() if n == common} == set(sample.references)
        assert {n for word, n in counts.items() if word not in sample.references} == {others}
        assert len(counts) == units
        assert len(sample.references) == 10
        assert Counter(sample.listed) == counts


def test_the_frequent_words_have_rank_two_to_four_behind_the_dots(material):
    for seed in range(50):
        units = random.Random(seed).randint(53, 4000)
        sample = build("fwe", units, material, seed=seed)
        text = sample.question.split("coded words. ")[1].split("\nQuestion:")[0]
        ranked = Counter(text.split()).most_common()
        assert list(sample.listed) == [word for word in text.split() if word != "..."]
        assert ranked[0][0] == "..."
        assert tuple(word for word, _ in ranked[1:4]) == sample.references
        assert len(ranked) == 4 or ranked[3][1] > ranked[4][1]


@pytest.mark.parametrize("name", ["qa_1", "qa_2"])
def test_questions_bring_their_documents_first(name, material):
    for index in range(20):
        least, _ = TASKS[name].units(material, index, 4096)
        for units in (least, least + 1, 40):
            sample = build(name, units, material, index=index)
            documents = re.findall(r"Document \d+:\n", sample.question)
            assert len(documents) == units
            assert any(one in sample.question for one in sample.references)
            assert sample.question.endswith(f"Question: {sample.notes['query']}")
        assert least == {"qa_1": 1, "qa_2": 4}[name]


def test_squad_adds_paragraphs_of_the_same_article_first(material):
    sample = build("qa_1", 3, material, index=5)
    assert re.findall(r"article (\d+)", sample.question) == ["1"] * 3
    assert sample.references == ("N1x2",)
    assert sample.notes == {"query": "Which name has 1-2?", "documents": 3}
    assert len(material.questions["qa_1"].questions) == 90  # the impossible ones are left out


def test_a_sample_is_the_same_every_time_and_differs_by_index(material):
    for name in TASKS:
        units = TASKS[name].units(material, 0, 4096)[0] + 20
        first, again, other = (build(name, units, material, seed=seed) for seed in (0, 0, 1))
        assert first == again
        assert first.question != other.question


def test_questions_are_drawn_from_the_whole_file(material):
    file = material.questions["qa_1"]
    drawn = Ruler(tasks=("qa_1",), squad=file.path)._material(4096).questions["qa_1"].questions
    assert sorted(q.text for q in drawn) == sorted(q.text for q in file.questions)
    # The first ten of 90 in file order would all be of the first four articles.
    assert len({q.text.split("-")[0] for q in drawn[:10]}) > 4


def test_passages_begin_where_they_are_asked_to(material):
    def first_words(material):
        sentences = [
            NEEDLE.sub("", build("niah_single_2", 70, material, seed=seed).question.split("\n")[1])
            for seed in range(8)
        ]
        return {text.split()[0] for text in sentences}

    assert len(first_words(material)) > 4
    assert first_words(replace(material, from_beginning=True)) == {"w0"}


def test_scores_are_substrings_without_case():
    assert TASKS["vt"].score("the Values are 123, ABC.", ["123", "abc", "xyz", "9"]) == 0.5
    assert TASKS["qa_1"].score("in Paris, France", ["paris", "London"]) == 1.0
    assert TASKS["qa_1"].score("nowhere", ["Paris"]) == 0.0


class ByLetter:
    """A tokenizer with a token per six letters, however they are spaced."""

    def encode(self, text):
        return re.findall(r"\S{1,6}", text)

    def decode(self, tokens):
        return " ".join(tokens)


def built(name, units, index):
    return TASKS[name].build(units, 4_096, index, f"{name}-{index}", Material(words=MADE_UP))


@pytest.mark.parametrize(
    ("name", "units", "entries"), [("cwe", 187, r"\d+\. ([a-z]+)"), ("fwe", 1_000, r"\b[a-z]{6}\b")]
)
def test_copying_a_list_is_scored_as_it_stands(name, units, entries):
    for index in range(10):
        sample = built(name, units, index)
        marks = {"cwe": ("ones that appear most often.\n", "\nQuestion"),
                 "fwe": ("coded words. ", "\nQuestion")}[name]  # fmt: skip
        text = sample.question.rpartition(marks[0])[2].partition(marks[1])[0]
        words = list(dict.fromkeys(re.findall(entries, text)))
        asked, fitting = len(sample.references), TASKS[name].max_new_tokens
        # The last words of the list, some of them twice, and others: counted, not compared.
        output = f"unheard of: {', '.join([*words[-fitting:], words[-1]])}"
        one = TASKS[name].guesses(ByLetter(), sample, output)
        assert one == {
            "guess": TASKS[name].score(" ".join(words[:asked]), sample.references),
            NAMED: TASKS[name].score(" ".join(words[:fitting]), sample.references),
        }
        assert TASKS[name].guesses(ByLetter(), sample, "nothing of it")[NAMED] == 0.0


def test_copying_documents_is_the_share_of_stretches_with_an_answer():
    # 96 tokens: three stretches of 32, of which the second holds an answer.
    words = ["word"] * 96
    words[40] = "Paris"
    sample = Sample(
        question="", answer_prefix="", references=("Rome", "paris"), answer="Rome",
        documents=" ".join(words),
    )  # fmt: skip
    found = TASKS["qa_1"].guesses(ByLetter(), sample, "word " * 32)
    assert found == {"guess": pytest.approx(1 / 3), NAMED: pytest.approx(1 / 3)}
    # An answer of six words is one of 16 stretches, no answer none.
    assert TASKS["qa_1"].guesses(ByLetter(), sample, "word " * 6)[NAMED] == pytest.approx(1 / 16)
    assert TASKS["qa_1"].guesses(ByLetter(), sample, "")[NAMED] == 0.0
