"""Corpora: what is read, in which order, under which names, and how bad sources are refused."""

import json
import sys

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.data import corpora
from diffattn.lab.data.corpora import Document, corpus_hash, load_corpus, pin


def names(documents):
    return [document.name for document in documents]


@pytest.fixture
def folder(tmp_path):
    """Texts in two folders, and everything that is no text."""
    root = tmp_path / "texts"
    for name, content in {
        "b.txt": "second\r\n",
        "a/z.md": "first é",
        "a.py": "print(1)\n",
        "README": "no suffix",
        "a/empty.txt": " \n",
        ".git/config": "hidden",
        ".hidden.txt": "hidden",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode())
    return root


def test_standard_library_is_sorted_large_and_without_tests_tables_and_build_products():
    stdlib = list(load_corpus("stdlib"))
    assert names(stdlib) == sorted(names(stdlib))
    assert len(set(names(stdlib))) == len(stdlib)
    assert {"argparse.py", "json/decoder.py"} <= set(names(stdlib))
    assert sum(len(document.text) for document in stdlib) > 5_000_000
    parts = {part for name in names(stdlib) for part in name.split("/")}
    unwanted = {"test", "tests", "idle_test", "encodings", "pydoc_data", "site-packages"}
    assert not parts & unwanted
    assert not [part for part in parts if part.startswith(("_sysconfigdata", "config-"))]


def test_packages_are_python_files_each_text_once(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora.sysconfig, "get_path", lambda name: str(tmp_path))
    texts = {"b/x.py": "x = 1\n", "a/x.py": "x = 1\n", "a/y.py": " \n", "a/z.txt": "no code"}
    texts |= {".hidden/x.py": "y = 1\n", "c.py": "z = 1\n"}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert names(load_corpus("packages")) == ["a/x.py", "c.py"]
    assert set(pin("packages")["files"]) == {"a/x.py", "a/y.py", "b/x.py", "c.py"}


def test_folder_is_read_recursively_in_order_and_exactly(folder):
    documents = list(load_corpus(str(folder)))
    assert names(documents) == ["README", "a.py", "a/z.md", "b.txt"]
    assert documents[2].text == "first é"
    assert documents[3].text == "second\n"  # it ends with \r\n in the file


def test_folder_warns_once_of_files_that_are_no_text(folder):
    (folder / "image.png").write_bytes(b"\x89PNG\0")
    (folder / "latin.txt").write_bytes("é".encode("latin-1"))
    with pytest.warns(UserWarning, match=r"skipped 2 files .* first is 'image\.png'"):
        documents = list(load_corpus(str(folder)))
    assert "latin.txt" not in names(documents)


@pytest.mark.parametrize("name", ["rows.jsonl", "ROWS.JSONL"])
def test_json_lines_are_read_in_a_folder_or_alone(tmp_path, name):
    rows = '\ufeff{"body": "é"}\n\n{"body": ""}\n{"body": "b"}\n'
    (tmp_path / name).write_text(rows, encoding="utf-8")
    for source in (tmp_path, tmp_path / name):
        documents = load_corpus(str(source), text_field="body")
        assert [(d.name, d.text) for d in documents] == [(f"{name}:1", "é"), (f"{name}:4", "b")]
    kept = load_corpus(str(tmp_path / name), text_field="body", keep_empty=True)
    assert [d.text for d in kept] == ["é", "", "b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": ', r"rows\.jsonl:2: must be a JSON object, got '\{\"text\": '"),
        ('{"texts": "a"}', r"must have field 'text', got \['texts'\]\. Did you mean 'texts'\?"),
        ('{"text": 3}', r"rows\.jsonl:2: field 'text' must be a string, got int"),
        (r'{"text": "a\ud800"}', r"rows\.jsonl:2.: must be valid Unicode, got a lone surrogate"),
    ],
)
def test_bad_jsonl_line_is_named(tmp_path, line, message):
    (tmp_path / "rows.jsonl").write_text('{"text": "fine"}\n' + line, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        list(load_corpus(str(tmp_path / "rows.jsonl")))


def test_missing_source_is_reported_at_once_with_a_near_miss(folder):
    with pytest.raises(ConfigError, match=r"got 'stdlb'\. Did you mean 'stdlib'\?"):
        load_corpus("stdlb")
    with pytest.raises(ConfigError, match=r"got '.*b\.tx'\. Did you mean '.*b\.txt'\?"):
        load_corpus(str(folder / "b.tx"))
    with pytest.raises(ConfigError, match=r"nowhere/at/all'\.$"):
        load_corpus(str(folder / "nowhere/at/all"))
    with pytest.raises(ConfigError, match="got ''"):
        load_corpus("")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b" \n", "must hold UTF-8 text, got none in '.*"),
        ("é".encode("latin-1"), "must be UTF-8 text, got (binary data or another enc|b'\\\\xe9')"),
    ],
    ids=["blank", "latin-1"],
)
def test_files_without_text_are_refused_at_once(tmp_path, content, message):
    with pytest.raises(ConfigError, match="must hold UTF-8 text, got none"):
        load_corpus(str(tmp_path))
    for name in ("a.txt", "a.jsonl"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            load_corpus(str(tmp_path / name))


def test_hub_dataset_streams_a_local_dataset_folder(tmp_path):
    pytest.importorskip("datasets", reason="the extra 'data' is not installed")
    rows = [{"text": "a"}, {"text": ""}, {"text": "c"}]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    documents = list(load_corpus(f"hub:{tmp_path}"))
    assert [document.text for document in documents] == ["a", "c"]
    assert names(documents) == [f"{tmp_path}:train:0", f"{tmp_path}:train:2"]
    with pytest.raises(ConfigError, match=r"must be a dataset that can be opened, got: Bad split"):
        load_corpus(f"hub:{tmp_path}", split="tests")
    with pytest.raises(ConfigError, match=r"can be opened, got: BuilderConfig 'nope' not found"):
        load_corpus(f"hub:{tmp_path}:nope")
    with pytest.raises(ConfigError, match=r"must have field 'body', got \['text'\]"):
        load_corpus(f"hub:{tmp_path}", text_field="body")


def test_hub_dataset_names_the_extra_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'diffattn\[data\]'"):
        load_corpus("hub:owner/name")


def test_corpus_hash_sees_names_texts_borders_and_order():
    def hash_of(*pairs):
        return corpus_hash(Document(name=name, text=text) for name, text in pairs)

    first, second = ("a", "xy"), ("b", "z")
    variants = {hash_of(first, second), hash_of(second, first), hash_of(first), hash_of()}
    variants |= {hash_of(("a", "x"), ("b", "yz")), hash_of(("ax", "y"), second)}
    variants.add(hash_of(first, ("c", "z")))
    assert len(variants) == 7
    assert hash_of(("a", "é")) == hash_of(("a", "é"))
