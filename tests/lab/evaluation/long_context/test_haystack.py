"""Haystacks: exact lengths, needles whole and once, and depths off by less than a sentence."""

import hashlib
import json
import random
from itertools import pairwise

import pytest
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.haystack import (
    corpus_text,
    insert_sentences,
    insert_tokens,
    read_haystack_tokens,
    read_haystack_words,
    sentence_ends,
)
from diffattn.lab.evaluation.long_context.needle import CITIES, Needle, needle, question
from diffattn.lab.inference.language_model import LanguageModel


@pytest.fixture(scope="session")
def corpus(text, tmp_path_factory):
    """Two files of prose and one of code; about 6,000 tokens."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.txt").write_text(text)
    (folder / "b.txt").write_bytes(b'One "line."\r\nAnother is 3.14 (so!) \xe2\x80\x94 yes?\r\n')
    (folder / "c.txt").write_text("import os\nx = os.path\n\nif x: y()\n" * 5)
    return str(folder)


@pytest.fixture(scope="session")
def model(models):
    return models["softmax"]


def build_prompts(model, corpus, at=None, *, depths=(0, 25, 50, 75, 100), seed=1, **changes):
    values = {"length": 700, "num_needles": 3, "num_asked": 2, "sample": 0, "room": 40} | changes
    protocol = Needle(haystack=corpus, depths=depths, seed=seed)
    return protocol.build_prompts(model, at or depths, **values)


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.scheduled)])
def test_random_haystacks(model, corpus, count):
    """Every needle is there once, where it should be, and the length is exact."""
    generator = random.Random(0)
    before_text = corpus_text(corpus)
    for case in range(count):
        needles = generator.randint(1, 6)
        depths = tuple(sorted(generator.sample(range(101), generator.randint(1, 3))))
        length = generator.randint(660, 1024)
        asked, room = generator.randint(1, needles), generator.randint(0, 40)
        template = generator.choice(["completion", "lwm"])
        (prompt,) = build_prompts(
            model, corpus, [generator.choice(depths)], length=length, num_needles=needles,
            num_asked=asked, sample=case, room=room, depths=depths, template=template,
        )  # fmt: skip
        assert len(prompt.ids) == length - room
        text = model.decode(prompt.ids)
        assert len(set(prompt.cities)) == len(set(prompt.numbers)) == needles
        assert question(prompt.cities[:asked]) in text  # whose numbers are scored
        for city, number, (start, end) in zip(
            prompt.cities, prompt.numbers, prompt.spans, strict=True
        ):
            assert number not in before_text
            assert text.count(number) == 1
            assert text.count(needle(city, number)) == 1
            assert model.decode(prompt.ids[start:end]) == needle(city, number)
        # Without needles and frame the stretch is left, and the place is its last sentence end.
        inside = set().union(*(range(a, b) for a, b in prompt.spans))
        hay = [prompt.ids[i] for i in range(*prompt.context) if i not in inside]
        assert len(hay) == len(prompt.haystack.ids)
        assert_less_than_a_sentence_off(model, prompt, hay)
        assert len({start for start, _ in prompt.spans}) == needles


def assert_less_than_a_sentence_off(model, prompt, hay):
    slot = round(prompt.realised[0] * len(hay) / 100)
    wanted = int(prompt.depth * len(hay) / 100)
    if prompt.depth in (0, 100):
        assert slot == wanted
        return
    assert slot <= wanted
    sentence = model.decode(hay[slot:wanted])
    inner = sentence.rstrip().rstrip(".")  # an end right at the place counts for what follows
    assert not any(mark in inner for mark in (". ", ".\n"))
    if slot:
        assert model.decode(hay[max(0, slot - 5) : slot]).rstrip(" ")[-1] in '.!?\n)"'


def test_prompts_of_one_haystack_share_all_but_the_first_needle(model, corpus):
    prompts = build_prompts(model, corpus, num_needles=4)
    assert len({prompt.haystack for prompt in prompts}) == 1
    assert len({(prompt.cities, prompt.numbers, prompt.realised[1:]) for prompt in prompts}) == 1
    for a, b in pairwise(prompts):
        assert a.spans[0] < b.spans[0]
        assert a.ids[: a.spans[0][0]] == b.ids[: a.spans[0][0]]
    assert prompts[0].spans[0][0] == 1  # right after BOS
    assert prompts[-1].spans[0][1] == prompts[-1].context[1]  # right before the question
    assert build_prompts(model, corpus, [50], num_needles=4) == [prompts[2]]


def test_prompts_are_what_they_were(models, tmp_path):
    """Of the five standard depths, to the last token: a hash of what version 3 of
    attention_segments read, in bytes, which no training of a tokenizer moves."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=backend)
    in_bytes = LanguageModel(models["softmax"].network, fast)
    sentences = [f"Sentence {i} is {'very ' * (i * i % 7)}long." for i in range(600)]
    (tmp_path / "text.txt").write_text(" ".join(sentences), encoding="utf-8")
    digest = hashlib.sha256()
    for sample in range(4):
        settings = {"length": 3_000, "num_needles": 6, "sample": sample}
        for prompt in build_prompts(in_bytes, str(tmp_path / "text.txt"), **settings):
            digest.update(in_bytes.decode(prompt.ids).encode())
    assert digest.hexdigest()[:16] == "c6e66129b50e2096"


@pytest.mark.parametrize("depth", [0, 25, 50, 100])
def test_a_standard_depth_alone_is_the_same_prompt(model, corpus, depth):
    for sample in range(4):
        many = {"num_needles": 5, "sample": sample}
        (alone,) = build_prompts(model, corpus, depths=(depth,), **many)
        assert [alone] == build_prompts(model, corpus, [depth], **many)


def test_samples_lengths_seeds_and_bos_differ(model, build, corpus):
    changes = ({}, {"sample": 1}, {"length": 701}, {"seed": 2})
    prompts = [build_prompts(model, corpus, **change)[0] for change in changes]
    assert len({prompt.haystack for prompt in prompts}) == 4
    assert len({prompt.cities for prompt in prompts}) == 4
    assert build_prompts(model, corpus) == build_prompts(model, corpus)
    prompt = build_prompts(build("softmax", add_bos=False), corpus)[0]
    assert (prompt.context[0], prompt.spans[0][0]) == (0, 0)
    assert len(prompt.ids) == 660


def test_too_many_needles_for_the_length(model, corpus):
    with pytest.raises(ConfigError, match="must have 8 free sentence ends, got"):
        build_prompts(model, corpus, length=430, num_needles=9, num_asked=1)


def test_a_corpus_goes_on_at_its_beginning_and_is_never_used_twice(model, tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("One two. Three four.")
    tokens = len(model.encode("Three four.\n\nOne two. "))
    with pytest.raises(ConfigError, match=f"must hold {tokens + 1} tokens .* got {tokens}. Name a"):
        read_haystack_tokens(model, str(path), 9, tokens + 1)
    whole = read_haystack_tokens(model, str(path), 9, tokens)
    assert (len(whole.ids), whole.text) == (tokens, "Three four.\n\nOne two. ")


def test_frames_and_line_ends_are_gone(tmp_path):
    body = "*** START OF THE PROJECT GUTENBERG EBOOK A ***\r\nIt was.\r\n*** END OF THE PROJECT"
    (tmp_path / "a.txt").write_bytes(f"{body} GUTENBERG EBOOK A ***".encode())
    (tmp_path / "b.txt").write_text("\nSo it is.\n")
    assert corpus_text(str(tmp_path)) == "It was.\n\nSo it is."


def piece_tokenizer():
    """SentencePiece's manner: words begin with their space, also the first one of a text."""
    backend = Tokenizer(BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    return backend, trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<s>", "<unk>"], show_progress=False
    )


def trimming_tokenizer():
    """White space counts to no token's characters; digits go by threes, marks with line ends."""
    pattern = r" ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    backend = Tokenizer(BPE())
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return backend, trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<s>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip


@pytest.mark.parametrize("make", [piece_tokenizer, trimming_tokenizer])
def test_other_kinds_of_tokenizers(make, models, corpus, text):
    backend, trainer = make()
    words = " ".join([*CITIES, "special magic number is: What are the Question Answer ,?'"])
    backend.train_from_iterator([f"{text}\n{words}\n{' '.join(map(str, range(99)))}"], trainer)
    model = LanguageModel(
        models["softmax"].network,
        PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>"),
    )
    for sample in range(20):
        for prompt in build_prompts(model, corpus, sample=sample):
            decoded = model.decode(prompt.ids)
            for city, number in zip(prompt.cities, prompt.numbers, strict=True):
                assert decoded.count(needle(city, number)) == 1
            assert len(prompt.ids) == 660
            if 0 < prompt.depth < 100:
                before = model.decode(prompt.ids[: prompt.spans[0][0]])
                assert before.rstrip(" ")[-1] in '.!?\n)"' or "\n" in decoded[len(before) :][:1]


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (["A b", ".", " C", "?", "\n", "D"], [2, 4]),
        (["\n", "A", "\n", "\n", "  ", "b.", " ", "c"], [3, 6]),
        (["x", " =", " os", ".", "path", "\n", "y", " 3", ".", "14"], [6]),
        (["He", " said", " “", "no", ".”", " She", "!)", "  ", "Then"], [5, 7]),
        (["a.\n", "b", ". ", "c"], [1, 3]),
        (["end", "."], []),
        (["。", "b", "！", " c"], [3]),
    ],
)
def test_where_sentences_end(tokens, ends):
    spans, at = [], 0
    for token in tokens:
        spans.append((at, at + len(token)))
        at += len(token)
    assert list(sentence_ends("".join(tokens), spans)) == ends


def test_white_space_that_belongs_to_no_token_and_characters_of_several():
    spans = [(0, 2), (3, 4), (5, 6), (7, 8), (7, 8), (9, 10)]
    assert list(sentence_ends("a. b\nc é d", spans)) == [1, 2]


def test_insert_counts_in_the_sequence_without_pieces():
    whole, spans = insert_tokens([0, 1, 2, 3], [(4, [9]), (0, [7, 7]), (2, [8])])
    assert whole == [7, 7, 0, 1, 8, 2, 3, 9]
    assert spans == [(7, 8), (0, 2), (4, 5)]
    assert insert_sentences(["a", "b"], [0, 0, 2], "xyz") == ["x", "y", "a", "b", "z"]
    assert insert_sentences([], [0], ["x"]) == ["x"]


def test_a_tokenizer_without_characters_is_refused(model, corpus, monkeypatch):
    monkeypatch.setattr(type(model.tokenizer), "is_fast", False)
    with pytest.raises(ConfigError, match="a fast one"):
        read_haystack_tokens(model, corpus, 0, 10)


def test_a_haystack_of_json_lines_with_a_key_of_its_own(tmp_path):
    path = tmp_path / "books.jsonl"
    path.write_text(json.dumps({"text": "No.", "body": "A first sentence. A second one."}) + "\n")
    assert corpus_text(str(path), "body") == "A first sentence. A second one."
    assert read_haystack_words(str(path), 10, "body").words[:2] == ("A", "first")


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


def test_passages_of_words(book):
    """Sentences end at stops and after sixty words; a passage goes round the end of the text."""
    assert book.passage(0, 7) == ["One two three.", "Four five?", "“Six seven!”"]
    assert [len(one.split()) for one in book.passage(0, 107)] == [3, 2, 2, 60, 40]
    assert "Gutenberg" not in book.text
    assert "Licence" not in book.text
    for first in range(10):
        for words in (0, 1, 4, 60, 107):
            assert len(" ".join(book.passage(first, words)).split()) == words
    assert book.passage(4, 42) == [" ".join(["word"] * 40), "One two"]
    longer = " ".join(book.passage(1, 90))
    assert all(longer.startswith(" ".join(book.passage(1, n))) for n in range(90))
