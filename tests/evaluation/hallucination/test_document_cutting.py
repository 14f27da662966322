"""Documents are cut to fit, at the place and to the length that the sources say."""

import random

import pytest

from diffattn.evaluation.hallucination.tasks import TASKS
from diffattn.evaluation.hallucination.truncation import cut
from diffattn.inference.network_reader import ItemError


@pytest.fixture(scope="module")
def counting(build):
    return build("softmax", max_length=10_000)


def word_by_word(model, document, render, limit):
    """The definition: drop the last word until the prompt fits."""
    while len(model.encode_prompt(render(document))) > limit:
        document = document.rpartition(" ")[0]
    return document


@pytest.mark.parametrize("seed", range(30))
def test_bisection_equals_dropping_word_by_word(counting, text, seed):
    generator = random.Random(seed)
    document = text[: generator.randrange(50, 900)].replace(". ", generator.choice([". ", ".\n"]))

    def render(part):
        return TASKS["xsum"].prompt(part, "")

    bare = len(counting.encode_prompt(render("")))
    limit = bare + generator.randrange(0, 200)
    head, tail = cut(counting, document, render, limit=limit, where="end")
    assert tail == 0
    assert document[:head] == word_by_word(counting, document, render, limit)


@pytest.mark.parametrize("room", [0, 1, 7, 50, 199])
def test_the_middle_goes_and_the_ends_stay(counting, text, room):
    def render(part):
        return TASKS["hotpotqa"].prompt(part, "what is the value?")

    limit = len(counting.encode_prompt(render(""))) + room
    head, tail = cut(counting, text, render, limit=limit, where="middle")
    kept = text[:head] + text[len(text) - tail :]
    assert len(counting.encode_prompt(render(kept))) <= limit
    sizes = [len(counting.encode(part)) for part in (text[:head], text[len(text) - tail :])]
    longest_word = max(len(counting.encode(word)) for word in text.split(" ")) + 1
    assert sizes[0] <= room // 2
    assert sizes[0] >= room // 2 - longest_word
    assert sum(sizes) >= room - 3 * longest_word


def test_a_document_that_fits_is_whole(counting):
    for where in ("end", "middle"):
        assert cut(counting, "one two", str, limit=50, where=where) == (7, 0)


def test_a_prompt_that_fits_no_document(counting):
    with pytest.raises(ItemError, match="must fit 3 tokens"):
        cut(counting, "one two three", lambda text: f"a long question {text}", limit=3, where="end")
