"""What copying from a context scores, against the copying itself."""

import re

import pytest
from test_ruler_words import MADE_UP

from diffattn.lab.evaluation.long_context.ruler.samples import (
    Material,
    Sample,
    found_share,
    streams_of,
)
from diffattn.lab.evaluation.long_context.ruler.tasks import TASKS, guesses
from diffattn.lab.evaluation.metrics import NAMED


class ByLetter:
    """A tokenizer with a token per six letters, however they are spaced."""

    def encode(self, text):
        return re.findall(r"\S{1,6}", text)

    def decode(self, tokens):
        return " ".join(tokens)


def built(name, units, index):
    streams = streams_of(f"{name}-{index}")
    return TASKS[name].build(units, 4_096, index, streams, Material(words=MADE_UP))


@pytest.mark.parametrize(
    ("name", "units", "entries", "least"),
    [
        ("cwe", 187, r"\d+\. ([a-z]+)", 0.9),  # 120 tokens hold 120 of 187 words; by share .64
        ("fwe", 1_000, r"\b[a-z]{6}\b", 0.9),
    ],
)
def test_copying_a_list_is_scored_as_it_stands(name, units, entries, least):
    found = []
    for index in range(10):
        sample = built(name, units, index)
        marks = {"cwe": ("ones that appear most often.\n", "\nQuestion"),
                 "fwe": ("coded words. ", "\nQuestion")}[name]  # fmt: skip
        text = sample.question.rpartition(marks[0])[2].partition(marks[1])[0]
        words = list(dict.fromkeys(re.findall(entries, text)))
        asked, fitting = len(sample.references), TASKS[name].max_new_tokens
        # The last words of the list, some of them twice, and others: counted, not compared.
        output = f"unheard of: {', '.join([*words[-fitting:], words[-1]])}"
        one = guesses(ByLetter(), TASKS[name], sample, output)
        assert one == {
            "guess": found_share(" ".join(words[:asked]), sample.references),
            NAMED: found_share(" ".join(words[:fitting]), sample.references),
        }
        assert guesses(ByLetter(), TASKS[name], sample, "nothing of it")[NAMED] == 0.0
        found.append(one)
    assert sum(one["guess"] for one in found) / 10 > 0.2  # ten of 187 words drawn: .05
    assert sum(one[NAMED] for one in found) / 10 > least


def test_copying_documents_is_the_share_of_stretches_with_an_answer():
    # 96 tokens: three stretches of 32, of which the second holds an answer.
    words = ["word"] * 96
    words[40] = "Paris"
    sample = Sample(
        question="", answer_prefix="", references=("Rome", "paris"), answer="Rome",
        documents=" ".join(words),
    )  # fmt: skip
    found = guesses(ByLetter(), TASKS["qa_1"], sample, "word " * 32)
    assert found == {"guess": pytest.approx(1 / 3), NAMED: pytest.approx(1 / 3)}
    # An answer of six words is one of 16 stretches, no answer none.
    assert guesses(ByLetter(), TASKS["qa_1"], sample, "word " * 6)[NAMED] == pytest.approx(1 / 16)
    assert guesses(ByLetter(), TASKS["qa_1"], sample, "")[NAMED] == 0.0


def test_values_are_named_at_random():
    values = tuple(str(number) for number in range(123456, 123856))
    sample = Sample(
        question="", answer_prefix="", references=values[:1], answer=values[0], candidates=values
    )
    output = f"{values[7]}, {values[9]} or {values[7]}"
    found = guesses(ByLetter(), TASKS["niah_multikey_2"], sample, output)
    assert found == {"guess": 1 / 400, NAMED: 2 / 400}
