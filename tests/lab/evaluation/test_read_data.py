"""No evaluation goes on over other data than it was begun with."""

import copy
import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest

from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.io import read_jsonl
from diffattn.lab.data.ngrams import NgramCounts
from diffattn.lab.evaluation.long_context import haystack
from diffattn.lab.evaluation.long_context.needle import Needle
from diffattn.lab.evaluation.perplexity.ar_hits import ArHits, _Sequence
from diffattn.lab.evaluation.perplexity.perplexities import WordPerplexity
from diffattn.lab.evaluation.protocol import Item, Part, protocol_class
from diffattn.lab.evaluation.quantized_logits import QuantizedLogits
from diffattn.lab.evaluation.runner import evaluate
from diffattn.lab.evaluation.selection import data_digest


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    rewrite(folder, "old words of a book. ")
    return folder


def rewrite(folder, text):
    for name in "abc":
        (folder / f"{name}.txt").write_text(text * 3, encoding="utf-8")


@pytest.fixture
def part(texts):
    """Three documents, one item each."""
    protocol = WordPerplexity(texts=str(texts), window=64, stride=32)
    return Part(variant=protocol.name, protocol=protocol)


def interrupted(part, model, out, monkeypatch, after):
    """Ask ``after`` batches and stop."""
    asked, original = [], WordPerplexity.ask

    def ask(self, *arguments):
        asked.append(1)
        if len(asked) > after:
            raise KeyboardInterrupt
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(WordPerplexity, "ask", ask)
        with pytest.raises(KeyboardInterrupt):
            evaluate(model, part, out)


def test_rewritten_texts_are_refused_and_the_same_go_on(models, texts, part, tmp_path, monkeypatch):
    model, out = models["diff"], tmp_path / "out"
    interrupted(part, model, out, monkeypatch, after=2)
    begun = read_jsonl(out / "items.jsonl")
    rewrite(texts, "another book altogether. ")
    with pytest.raises(CheckpointError, match="continued with the data it was begun with"):
        evaluate(model, part, out)
    assert read_jsonl(out / "items.jsonl") == begun
    rewrite(texts, "old words of a book. ")
    finished = evaluate(model, part, out)
    assert finished.num_items == 3
    rewrite(texts, "another book altogether. ")
    with pytest.raises(CheckpointError, match="continued with the data it was begun with"):
        evaluate(model, part, out)
    rewrite(texts, "old words of a book. ")
    assert evaluate(model, part, out) == finished
    whole = (out / "data.json").read_text("utf-8")
    (out / "data.json").write_text(whole.replace("sha256", "sha255"), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"data\.json: must be as it was written"):
        evaluate(model, part, out)


def test_what_was_begun_and_never_asked_leaves_the_folder_free(
    models, texts, part, tmp_path, monkeypatch
):
    model, out = models["diff"], tmp_path / "out"
    interrupted(part, model, out, monkeypatch, after=0)
    shutil.rmtree(texts)
    with pytest.raises(ConfigError):
        evaluate(model, part, out)
    texts.mkdir()
    rewrite(texts, "another book altogether. ")
    other = replace(part, protocol=replace(part.protocol, window=32, stride=16))
    assert evaluate(model, other, out).num_items == 3


@pytest.mark.parametrize("name", ["needle", "babilong", "ruler"])
def test_haystacks_are_part_of_the_data(models, texts, name):
    """Payloads say which sample it is; the text that it is cut from is read later."""
    protocol = protocol_class(name)(haystack=str(texts))
    items = [Item(id="0", payload=(1_024, "x", 0, 1_024))]
    digests = set()
    for text in ("One book. ", "One book. ", "Another book. "):
        rewrite(texts, text)
        haystack.corpus_text.cache_clear()
        haystack.read_haystack_words.cache_clear()
        digests.add(data_digest(items, protocol.material(models["diff"], items)))
    assert len(digests) == 2


@pytest.mark.parametrize("name", ["many_shot", "remapped_labels"])
def test_examples_are_part_of_the_data(models, name):
    protocol = protocol_class(name)(**protocol_class(name).quick)
    model = copy.copy(models["diff"])
    model.max_length = 2_048
    items = [item for batch in protocol.batches(model) for item in batch]
    material = protocol.material(model, items)
    examples, asked = material if isinstance(material, tuple) else (material.train, material.test)
    changed = [replace(examples[0], text="another text"), *examples[1:]]
    assert data_digest(items, (examples, asked)) != data_digest(items, (changed, asked))


def test_training_counts_are_part_of_the_data(models):
    """Of ``ar_hits``: other training text under the same validation text."""
    chosen, digests = np.arange(5), set()
    for stream in ([0, 1, 2], [0, 1, 2], [0, 1, 1]):
        counts = NgramCounts(chosen, 1, 16)
        counts.add([np.array(stream)])
        payload = _Sequence(tokens=chosen, counts={1: counts}, threshold=1, train_tokens=3)
        items = [Item(id="0", payload=payload)]
        digests.add(data_digest(items, ArHits().material(models["diff"], items)))
    assert len(digests) == 2


def test_a_wrapped_protocol_says_what_it_reads(models, texts):
    settings = dict(protocol_class("needle").quick) | {"haystack": str(texts)}
    wrapping = QuantizedLogits(protocol="needle", settings=settings, text=None)
    item = Item(id="x", payload=(1, 1, 256, 0, 0))
    asked = [replace(item, payload=type("Asked", (), {"item": item})())]
    plain = Needle(**settings).material(models["diff"], [item])
    assert wrapping.material(models["diff"], asked) == plain == haystack.corpus_text(str(texts))


def test_the_digest_sees_every_part_of_a_payload():
    @dataclass(frozen=True)
    class Payload:
        name: str
        ids: tuple
        counts: dict
        array: np.ndarray

    def digest(**changes):
        whole = {"name": "a", "ids": (1, 2), "counts": {"x": 1.5}, "array": np.arange(3)}
        return data_digest([Item(id="0", payload=Payload(**whole | changes))], None)

    same = digest()
    assert same == digest(ids=[1, 2], array=np.arange(3))
    others = [
        digest(name="b"), digest(ids=(1, 3)), digest(ids=("1", "2")), digest(ids=(1, 2, None)),
        digest(counts={"x": 1.25}), digest(counts={"y": 1.5}), digest(array=np.arange(4)),
        digest(array=np.arange(3) * 2), digest(ids=({2}, {1})), digest(name="half: \ud83d"),
    ]  # fmt: skip
    assert len({same, *others}) == 1 + len(others)
    assert digest(ids=({1, 2}, {"b", "a"})) == digest(ids=({2, 1}, {"a", "b"}))
    first, second = Item(id="0", payload=("ab", "c")), Item(id="0", payload=("a", "bc"))
    assert data_digest([first], None) != data_digest([second], None)
