"""Texts are read the same way on every system, with normal line ends."""

import codecs
import os

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.data import files
from diffattn.lab.data.corpora import load_corpus


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a\r\nb\rc\nd\n\re\r", "a\nb\nc\nd\n\ne\n"),
        (codecs.BOM_UTF8 + b"a", "a"),
        ("a\ufeffb\u2028c\u2029d\x85e\x0bf\x0cg".encode(), "a\ufeffb\u2028c\u2029d\x85e\x0bf\x0cg"),
        (b"\xff", None),
        (b"a\0", None),
    ],
    ids=ascii,
)
def test_text_of_a_file(tmp_path, content, expected):
    path = tmp_path / "a"
    path.write_bytes(content)
    assert files.read_text(path) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"good\nb\xe9d\n", r"a:2: must be UTF-8 text, got b'b\\xe9d\\n'"),
        (b"good\n\xf0\x9f", r"a:2: must be UTF-8 text, got b'\\xf0\\x9f'"),
        (b"good\n\n\0\n", r"a:3: must be UTF-8 text, got b'\\x00\\n'"),
    ],
    ids=["latin-1", "cut", "zero byte"],
)
def test_a_bad_line_is_named(tmp_path, content, message):
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        list(files.read_lines(path))


def test_a_text_may_be_too_large_and_a_corpus_not(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_TEXT_BYTES", 64)
    (tmp_path / "a.txt").write_text("a" * 65)
    with pytest.raises(ConfigError, match=r"a\.txt: one text must have at most 64 bytes, got 65"):
        files.read_text(tmp_path / "a.txt")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 9)
    assert len(list(load_corpus(str(tmp_path / "a.jsonl")))) == 9


def test_texts_within_json_are_normalised():
    value = files.parse_json(r'{"a\r": ["b\r\n", {"c": "d\re"}, 1, null, "\u2028"]}')
    assert value == {"a\r": ["b\n", {"c": "d\ne"}, 1, None, "\u2028"]}


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '"\n"'], ids=["empty", "cut", "deep", "line"]
)
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        files.parse_json(text)


def test_paths_that_lead_nowhere(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match=r"loop: must be readable, got: Too many levels"):
        files.require_path(tmp_path / "loop")
    with pytest.raises(ConfigError, match="must be readable, got: File name too long"):
        files.require_path(tmp_path / ("a" * 300))
    for name in ("a" * 300, "a\0b", str(tmp_path / "loop")):
        with pytest.raises(ConfigError, match="data source: must be a file or folder that"):
            load_corpus(name)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match=r"fifo: must be a file or folder, got a pipe\.$"):
        files.require_path(tmp_path / "fifo")
    with pytest.raises(ConfigError, match=r": must be a regular file, got a folder\.$"):
        files.require_regular(tmp_path)
