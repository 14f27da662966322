"""A packing goes on where it was interrupted, to the same files."""

from functools import partial

import pytest

from diffattn.errors import CheckpointError
from diffattn.lab.data import packing
from diffattn.lab.data.corpora import Document
from diffattn.lab.data.packing import pack
from record_files import contents, read_record

FRACTION = 0.2


class Stop(Exception):
    """In place of a kill: nothing of ours catches it."""


def stopping_at(number):
    """An ``on_progress`` that ends the packing after so many batches."""
    calls = iter(range(1, number + 1))

    def stop(tokens):
        if next(calls) == number:
            raise Stop

    return stop


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch):
    """About 15 batches, a checkpoint after every other."""
    monkeypatch.setattr(packing, "BATCH_CHARS", 400)
    monkeypatch.setattr(packing, "_CHECKPOINT_BATCHES", 2)


@pytest.fixture
def interrupted(documents, tokenizer, tmp_path):
    """Folder of a packing that ended after 5 batches."""
    out = tmp_path / "out"
    with pytest.raises(Stop):
        pack(documents, tokenizer, out, validation_fraction=FRACTION, on_progress=stopping_at(5))
    assert read_record(out / ".packing" / "progress.json")["batches"] == 4
    return out


@pytest.mark.parametrize("stops", [(1,), (3, 1), (14, 1, 1)], ids=str)
def test_what_is_packed_is_not_encoded_again(
    documents, packed, tokenizer, tmp_path, monkeypatch, stops
):
    encoded, real = [], packing._write_batch

    def noted(*parts):
        encoded.append(parts)
        real(*parts)

    monkeypatch.setattr(packing, "_write_batch", noted)
    again = partial(pack, documents, tokenizer, tmp_path, validation_fraction=FRACTION)
    for stop in stops:
        with pytest.raises(Stop):
            again(on_progress=stopping_at(stop))
    again()
    assert contents(tmp_path) == contents(packed)
    assert not (tmp_path / ".packing").exists()
    whole = sum(1 for _ in packing.batches((("", d) for d in documents), packing.hashlib.sha256()))
    assert whole > 12
    assert len(encoded) <= whole + len(stops)  # at most one batch since each checkpoint


def test_long_texts_are_interrupted_between_their_pieces(tokenizer, tmp_path):
    document = [Document(name="a", text="ab cd ef\n" * 1_000)]
    pack(document, tokenizer, tmp_path / "whole")
    with pytest.raises(Stop):
        pack(document, tokenizer, tmp_path / "out", on_progress=stopping_at(7))
    progress = read_record(tmp_path / "out" / ".packing" / "progress.json")
    assert progress["splits"]["train"]["num_documents"] == 0 < progress["batches"]
    pack(document, tokenizer, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_changed_document_is_refused_and_the_right_one_goes_on(
    documents, packed, tokenizer, interrupted
):
    changed = [Document(name=documents[0].name, text="other"), *documents[1:]]
    for corpus in (changed, documents[:3]):
        with pytest.raises(CheckpointError, match=r"got other documents .* Delete .*\.packing to"):
            pack(corpus, tokenizer, interrupted, validation_fraction=FRACTION)
    progress = read_record(interrupted / ".packing" / "progress.json")
    assert progress["batches"] == 4
    pack(documents, tokenizer, interrupted, validation_fraction=FRACTION)
    assert contents(interrupted) == contents(packed)


def test_another_packing_does_not_go_on(documents, tokenizer, interrupted, monkeypatch):
    monkeypatch.setattr(packing, "BATCH_CHARS", 501)
    with pytest.raises(CheckpointError, match="got an interrupted one of another batch_chars"):
        pack(documents, tokenizer, interrupted, validation_fraction=FRACTION)


@pytest.mark.parametrize(
    ("name", "damage"),
    [("train.bin", "missing"), ("validation.idx", "shorter"), ("train.names", "flipped")],
)
def test_damaged_work_is_named(documents, tokenizer, interrupted, name, damage):
    path = interrupted / ".packing" / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:9] if damage == "shorter" else b"~" + content[1:])
    with pytest.raises(CheckpointError, match=rf"{name}: must be as the interrupted packing left"):
        pack(documents, tokenizer, interrupted, validation_fraction=FRACTION)
