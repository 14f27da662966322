"""Scores of answers and summaries, and what of a text stands in its source."""

import sys

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.hallucination import answer_metrics
from diffattn.lab.evaluation.hallucination.answer_metrics import (
    bigram_support,
    entities,
    entity_support,
    number_support,
    rouge,
    span_match,
    word_f1,
)


@pytest.mark.parametrize(
    ("output", "references", "found", "f1"),
    [
        ("It was built by Anna Keller.", ["anna keller"], 1.0, 2 * 2 / (6 + 2)),
        ("anna", ["Anna Keller", "Anna"], 1.0, 1.0),
        ("anna", ["Anna Keller"], 0.0, 2 * 1 / 3),
        ("", ["yes"], 0.0, 0.0),
        ("anything", ["the"], 0.0, 0.0),  # a reference that normalises to nothing
        ("the", ["a"], 1.0, 1.0),
    ],
)
def test_span_match_and_f1(output, references, found, f1):
    assert span_match(output, references) == found
    assert word_f1(output, references) == pytest.approx(f1)


def test_rouge_by_hand():
    pytest.importorskip("rouge_score")
    scores = rouge("the cat sat", ["nothing here", "the cat ran"])
    assert scores["rouge1"] == pytest.approx(2 / 3)  # 2 of 3 words
    assert scores["rouge2"] == pytest.approx(1 / 2)  # 1 of 2 pairs
    assert scores["rougeL"] == pytest.approx(2 / 3)
    assert rouge("", ["the cat"]) == {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}


def test_missing_rouge_is_told(monkeypatch):
    answer_metrics.rouge_scorer.cache_clear()
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(ConfigError, match="needs the package 'rouge_score', got none installed"):
        rouge("a", ["b"])


def test_entities_are_runs_of_capitalised_words():
    text = (
        "Barack Obama met Angela Merkel's team, and I saw New York. The Prime Minister said "
        '"Never again" to NATO.\nPolice came; Then Rue-de-Rivoli burnt.'
    )
    assert list(entities(text)) == [
        "Obama", "Angela Merkel", "New York", "Prime Minister", "NATO", "Rue-de-Rivoli",
    ]  # fmt: skip


def test_support_in_the_source():
    source = "The prime minister met angela merkel's team in 1,204 rooms; 3.5 of New Yorkers left."
    text = "So Angela Merkel met the Prime Minister in New York."
    assert entity_support(text, source) == (pytest.approx(2 / 3), ["New York"])
    numbers = number_support("In 1204 and 1,204 there were 35 and 3.5.", source)
    assert numbers == (pytest.approx(2 / 3), ["35"])
    pairs = bigram_support("the prime minister left", source)
    assert pairs == (pytest.approx(2 / 3), ["minister left"])
    assert entity_support("nothing here", source) == (None, [])
    assert number_support("", source) == (None, [])
