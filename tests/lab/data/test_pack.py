"""Packing: what is in the files, and that nothing half-written or foreign passes for them."""

import hashlib

import pytest

from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.io import read_json
from diffattn.lab.data import packing
from diffattn.lab.data.corpora import Document, corpus_hash
from diffattn.lab.data.packing import pack
from diffattn.lab.data.tokenizer import tokenizer_hash, train_tokenizer
from diffattn.lab.data.tokens import PackedTokens
from record_files import contents, entries, snapshot

FILES = {f"{s}.{kind}" for s in ("train", "validation") for kind in ("bin", "idx", "names", "json")}


def test_every_document_comes_back_followed_by_the_end_token(documents, packed, tokenizer):
    texts = {document.name: document.text for document in documents}
    seen = []
    for split in ("train", "validation"):
        part = PackedTokens(packed, split)
        offsets = part.document_offsets
        assert offsets[0] == 0
        assert offsets[-1] == part.num_tokens == len(part.tokens)
        for i, name in enumerate(part.document_names()):
            ids = part.tokens[offsets[i] : offsets[i + 1]].tolist()
            assert ids[-1] == tokenizer.eos_token_id
            assert tokenizer.eos_token_id not in ids[:-1]
            assert tokenizer.decode(ids[:-1]) == texts[name]
            seen.append(name)
    assert sorted(seen) == sorted(texts)


def test_sidecars_describe_the_files(documents, packed, tokenizer):
    num_bytes = 0
    for split in ("train", "validation"):
        part = PackedTokens(packed, split)
        hashes = {
            key: hashlib.sha256((packed / f"{split}.{kind}").read_bytes()).hexdigest()
            for kind, key in (("bin", "token_hash"), ("idx", "index_hash"), ("names", "names_hash"))
        }
        hashes |= {"corpus_hash": corpus_hash(documents)}
        hashes |= {"tokenizer_hash": tokenizer_hash(tokenizer)}
        sizes = {"vocab_size": len(tokenizer), "num_documents": len(list(part.document_names()))}
        layout = {"schema": 3, "split": split, "dtype": str(part.tokens.dtype)}
        assert part.metadata.items() >= (hashes | sizes | layout).items()
        assert part.tokens.dtype == "uint16"
        num_bytes += part.num_bytes
    assert num_bytes == sum(len(document.text.encode()) for document in documents)


def test_packing_is_deterministic_whatever_the_batches(
    documents, packed, tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setattr(packing, "BATCH_CHARS", 300)  # above the longest text: no pieces
    counts = []
    options = {"validation_fraction": 0.2, "on_progress": counts.append}
    result = pack(iter(documents), tokenizer, tmp_path, **options)
    assert contents(tmp_path) == contents(packed)
    assert result == {s: read_json(packed / f"{s}.json") for s in result}
    assert len(counts) > 3
    assert counts == sorted(counts)
    assert counts[-1] == result["train"]["num_tokens"] + result["validation"]["num_tokens"]


@pytest.mark.parametrize("num_chars", [1, 7, 64])
def test_long_texts_are_encoded_in_pieces_and_come_back_exactly(
    tokenizer, tmp_path, monkeypatch, num_chars
):
    monkeypatch.setattr(packing, "BATCH_CHARS", num_chars)
    document = Document(name="a", text="ab é🏳️‍🌈\n\n" * 20 + "no line end " * 20)
    pack([document], tokenizer, tmp_path, validation_fraction=0.3)
    parts = [PackedTokens(tmp_path, split).tokens.tolist() for split in ("train", "validation")]
    assert "".join(tokenizer.decode(ids[:-1]) for ids in parts) == document.text


def test_only_document_gives_its_tail_to_validation(tokenizer, tmp_path):
    text = "".join(f"line {i}\n" for i in range(1_000))
    document = Document(name="book.txt", text=text)
    result = pack([document], tokenizer, tmp_path, validation_fraction=0.1)
    tail = tokenizer.decode(PackedTokens(tmp_path, "validation").tokens[:-1])
    assert text.endswith(tail)
    assert tail.startswith("line ")
    assert len(tail) == pytest.approx(0.1 * len(text), abs=20)
    assert result["train"]["num_bytes"] + result["validation"]["num_bytes"] == len(text)
    for split in ("train", "validation"):
        assert list(PackedTokens(tmp_path, split).document_names()) == ["book.txt"]
    assert result["train"]["corpus_hash"] == corpus_hash([document])


def test_impossible_packings_are_refused_and_leave_no_file(documents, tokenizer, tmp_path):
    with pytest.raises(ConfigError, match="at least 2 characters, got 1"):
        pack([Document(name="a", text="a")], tokenizer, tmp_path)
    endless = train_tokenizer(documents, vocab_size=257)
    endless.eos_token = None
    with pytest.raises(ConfigError, match="must have an end token"):
        pack(documents, endless, tmp_path)
    assert entries(tmp_path) == []


def test_ids_are_as_wide_as_the_vocabulary_needs(documents, tmp_path):
    tokenizer = train_tokenizer(documents, vocab_size=257)
    tokenizer.add_tokens([f"Z{i}Z" for i in range(65_534 - len(tokenizer))])
    for num_ids, dtype in ((65_535, "uint16"), (65_536, "uint32")):
        tokenizer.add_tokens([f"Y{num_ids}Y"])
        wide = [Document(name=str(i), text=f"Y{num_ids}Y") for i in range(5)]
        result = pack(wide, tokenizer, tmp_path / dtype)
        part = PackedTokens(tmp_path / dtype, "train")
        assert result["train"]["vocab_size"] == num_ids
        assert result["train"]["dtype"] == dtype == str(part.tokens.dtype)
        assert part.tokens[0] == num_ids - 1


def test_same_packing_is_reused_without_encoding(documents, packed, tokenizer, monkeypatch):
    before = snapshot(packed)
    monkeypatch.setattr("diffattn.lab.data.packing._write", None)  # calling it would fail
    (packed / ".packing").mkdir()  # of a process that was killed at its very end
    result = pack(iter(documents), tokenizer, packed, validation_fraction=0.2)
    assert set(entries(packed)) == FILES
    assert result["train"] == PackedTokens(packed, "train").metadata
    assert snapshot(packed) == before


def test_another_packing_is_not_overwritten(documents, packed, tokenizer):
    before = contents(packed)
    named = r"got one of another validation_fraction and corpus_hash\. Choose"
    with pytest.raises(CheckpointError, match=named):
        pack(documents[:-1], tokenizer, packed, validation_fraction=0.3)
    assert contents(packed) == before


def test_failing_corpus_leaves_nothing(documents, tokenizer, tmp_path):
    def failing():
        yield from documents
        raise ConfigError("rows.jsonl:61: must be a JSON object.")

    with pytest.raises(ConfigError, match="rows"):
        pack(failing(), tokenizer, tmp_path)
    assert entries(tmp_path) == []
