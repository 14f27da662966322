"""Tokens that reach over words and lines: nothing is lost where two texts meet."""

import pytest

from diffattn.lab.evaluation.icl.data import Example, load_icl_data
from diffattn.lab.evaluation.icl.demonstrations import SEPARATOR, IclTask
from diffattn.lab.evaluation.icl.remapped_labels import RemappedLabels
from diffattn.lab.evaluation.long_context.attention_segments import AttentionSegments
from diffattn.lab.evaluation.long_context.needle import answer, forced_number, needle
from language_models import byte_pairs, of_tokenizer

CITY, NUMBER = "Oslo", "1234567"
SEGMENTS = {"samples": 1, "depths": (50.0,), "length": 600, "num_needles": 2}


@pytest.fixture(scope="module")
def superwords(build, text, haystack):
    """A model whose tokens join what stands around the borders of the protocols' prompts."""
    asked = AttentionSegments(**SEGMENTS, haystack=haystack)
    model = build("softmax", max_length=4096)
    (hidden,) = asked.build_prompts(model, asked.depths, **asked.settings(0))
    numbers = [(CITY, NUMBER), *zip(hidden.cities, hidden.numbers, strict=True)]
    lines = [needle(*pair) for pair in numbers] + [f" {answer(city)} {n}" for city, n in numbers]
    data = load_icl_data("trec", "generated")
    lines += [f"{x.text}\nlabel: {i}\n\n" for x in data.test[:4] for i in range(len(data.labels))]
    lines += [f"king{SEPARATOR}Question: what is the\nType: {name}\n" for name in ("A", "B")]
    tokenizer = byte_pairs(text[:3_000] + "".join(lines) * 15, superwords=True, vocab_size=900)
    return of_tokenizer(tokenizer, max_length=4096)


def test_the_number_of_a_needle_is_scored_and_its_tokens_are_known(superwords):
    model = superwords
    asked = forced_number(model, CITY, NUMBER)
    assert model.decode(asked.context).endswith("is:")
    assert model.decode(asked.target) == f" {NUMBER}"


def test_attention_to_the_number_is_measured(superwords, haystack):
    protocol = AttentionSegments(**SEGMENTS, haystack=haystack)
    items = protocol.batches(superwords)[0]
    (row,) = protocol.ask(superwords, items)
    (prompt,) = protocol.build_prompts(superwords, protocol.depths, **protocol.settings(0))
    first, last = row["spans"]["number"]
    assert row["number"] in superwords.decode(prompt.ids[first:last])
    assert row["number"] not in superwords.decode(prompt.ids[first + 1 : last])


def test_demonstrations_and_labels_keep_their_text(superwords):
    model = superwords
    texts = [f"what is the king {i}" for i in range(3)]
    examples = [Example(text, "A") for text in texts]
    task = IclTask(model, RemappedLabels(data="generated"), 4, 0)
    pieces = task.encode(model, examples)
    whole = "".join(model.decode(piece) for piece in pieces)
    assert [text in whole for text in texts] == [True] * 3
    assert whole.count(SEPARATOR) == 3
    for label, path in zip(task.trie.labels, task.trie.paths, strict=True):
        assert model.decode(path) == f" {label}\n"
