"""What copying from a context scores, against the copying itself."""

import re

import pytest
from test_ruler_words import MADE_UP

from diffattn.lab.evaluation.long_context.ruler.ruler import TASKS
from diffattn.lab.evaluation.long_context.ruler.samples import (
    Material,
    Sample,
    found_share,
)
from diffattn.lab.evaluation.metrics import NAMED


class ByLetter:
    """A tokenizer with a token per six letters, however they are spaced."""

    def encode(self, text):
        return re.findall(r"\S{1,6}", text)

    def decode(self, tokens):
        return " ".join(tokens)


def built(name, units, index):
    return TASKS[name].build(units, 4_096, index, f"{name}-{index}", Material(words=MADE_UP))


@pytest.mark.parametrize(
    ("name", "units", "entries"),
    [("cwe", 187, r"\d+\. ([a-z]+)"), ("fwe", 1_000, r"\b[a-z]{6}\b")],
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
            "guess": found_share(" ".join(words[:asked]), sample.references),
            NAMED: found_share(" ".join(words[:fitting]), sample.references),
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


def test_values_are_named_at_random():
    values = tuple(str(number) for number in range(123456, 123856))
    sample = Sample(
        question="", answer_prefix="", references=values[:1], answer=values[0], candidates=values
    )
    output = f"{values[7]}, {values[9]} or {values[7]}"
    found = TASKS["niah_multikey_2"].guesses(ByLetter(), sample, output)
    assert found == {"guess": 1 / 400, NAMED: 2 / 400}
