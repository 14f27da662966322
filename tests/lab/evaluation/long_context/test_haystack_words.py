"""The text between which things are hidden."""

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.haystack import (
    HaystackWords,
    insert_sentences,
    read_haystack_words,
)
from diffattn.lab.evaluation.long_context.ruler.ruler import Ruler


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(
        "The Project Gutenberg EBook of Nothing\n\n"
        "*** START OF THIS PROJECT GUTENBERG EBOOK NOTHING ***\n\n"
        "One two three.\n  Four five? “Six seven!”\n\n" + "word " * 100 + "\n\n"
        "*** END OF THIS PROJECT GUTENBERG EBOOK NOTHING ***\nLicence.\n"
    )
    return read_haystack_words(str(path), 16)


def test_sentences_end_at_stops_and_after_sixty_words(book):
    assert book.passage(0, 7) == ["One two three.", "Four five?", "“Six seven!”"]
    assert [len(one.split()) for one in book.passage(0, 107)] == [3, 2, 2, 60, 40]
    assert "Gutenberg" not in book.text
    assert "Licence" not in book.text


def test_a_passage_has_the_words_asked_for_and_goes_round_the_end(book):
    for first in range(10):
        for words in (0, 1, 4, 60, 107):
            assert len(" ".join(book.passage(first, words)).split()) == words
    assert book.passage(4, 42) == [" ".join(["word"] * 40), "One two"]


def test_a_longer_passage_begins_with_the_shorter_one(book):
    longer = " ".join(book.passage(1, 90))
    assert all(longer.startswith(" ".join(book.passage(1, n))) for n in range(90))


def test_too_little_text_is_one_clear_line(book, models):
    with pytest.raises(ConfigError, match=r"must hold 108 words for a passage, got 107"):
        book.passage(0, 108)
    with pytest.raises(ConfigError, match=r"^ruler: the haystack '.*book.txt' must hold 5000 tok"):
        Ruler(haystack=book.source).require_words(models["softmax"], 5000)
    Ruler(haystack=book.source).require_words(models["softmax"], 20)


def test_equal_text_has_equal_facts(book):
    again = HaystackWords(book.source, book.words, book.starts)
    assert again == book
    assert again.sha256 != HaystackWords(book.source, book.words[1:], book.starts).sha256


def test_insert_keeps_the_order_of_what_shares_a_place():
    assert insert_sentences(["a", "b"], [(0, "x"), (0, "y"), (2, "z")]) == ["x", "y", "a", "b", "z"]
    assert insert_sentences([], [(0, "x")]) == ["x"]
