"""Files are whole or absent, whatever happens while they are written."""

import errno
import io
import json
import os
from pathlib import Path

import pytest

from diffattn.errors import CheckpointError
from diffattn.records.io import (
    append_jsonl,
    cut_jsonl,
    is_empty_folder,
    read_json,
    read_jsonl,
    write_json,
    write_jsonl,
)


class FullDisk(io.FileIO):
    """A file that takes ten bytes and then no more."""

    def write(self, data):
        if self.tell() >= 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(bytes(data)[: 10 - self.tell()])


def fill_disk(monkeypatch):
    """Every file opened for writing through pathlib runs full."""
    real = Path.open

    def full(self, mode="r", *args, **kwargs):
        if mode == "r" or mode == "rb":
            return real(self, mode, *args, **kwargs)
        raw = FullDisk(str(self), mode.replace("b", ""))
        return raw if "b" in mode else io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8")

    monkeypatch.setattr(Path, "open", full)


def test_round_trip_makes_the_folder_and_keeps_text(tmp_path):
    value = {"λ": [0.1, -2.5e-30, 3], "none": None, "nested": {"b": True}}
    path = tmp_path / "a" / "b" / "x.json"
    write_json(path, value)
    assert read_json(path) == value
    assert "λ" in path.read_text(encoding="utf-8")
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_full_disk_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_json(path, {"old": 1})
    with monkeypatch.context() as patch:
        fill_disk(patch)
        with pytest.raises(OSError, match="No space left"):
            write_json(path, {"new": "0123456789" * 10})
    assert read_json(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["x.json"]


def test_a_flush_to_disk_that_fails_counts_as_not_written(tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "x.jsonl"
    write_jsonl(path, [{"old": 1}])
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_jsonl(path, [{"new": 1}])
    assert read_jsonl(path) == [{"old": 1}]
    assert os.listdir(tmp_path) == ["x.jsonl"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_json_are_refused_before_anything_is_touched(tmp_path, bad):
    path = tmp_path / "x.json"
    write_json(path, {"old": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"loss": bad})
    rows = tmp_path / "x.jsonl"
    write_jsonl(rows, [{"step": 0}])
    with pytest.raises(ValueError, match="JSON"):
        append_jsonl(rows, {"loss": bad})
    with pytest.raises(ValueError, match="JSON"):
        write_jsonl(rows, [{"step": 1}, {"loss": bad}])
    assert read_json(path) == {"old": 1}
    assert read_jsonl(rows) == [{"step": 0}]


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1', b"\xff\xfe", b"{} {}"])
def test_damaged_json_is_named(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x\.json: must be JSON, got a damaged file"):
        read_json(path)


def test_missing_files_are_named(tmp_path):
    for read in (read_json, read_jsonl):
        with pytest.raises(CheckpointError, match="x: file must exist, got none"):
            read(tmp_path / "x")


@pytest.mark.parametrize("line", ['{"step": ', "[1]", "3", ""])
def test_damaged_rows_are_named_by_their_line(tmp_path, line):
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"step": 0}}\n{line}\n{{"step": 2}}\n', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"x\.jsonl:2: every line must be a JSON object"):
        read_jsonl(path)


def test_rows_that_are_not_text_are_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(CheckpointError, match="must be UTF-8"):
        read_jsonl(path)


def test_appended_rows_follow_one_another(tmp_path):
    path = tmp_path / "x.jsonl"
    for step in range(3):
        append_jsonl(path, {"step": step, "λ": 0.5})
    assert read_jsonl(path) == [{"step": step, "λ": 0.5} for step in range(3)]


def test_a_row_may_hold_any_line_separator(tmp_path):
    row = {"output": "a\u2028b\u2029c\x85d\x0b\x0c\x1c\r\n"}
    append_jsonl(tmp_path / "rows.jsonl", row)
    append_jsonl(tmp_path / "rows.jsonl", row)
    assert read_jsonl(tmp_path / "rows.jsonl") == [row, row]


def test_a_row_that_does_not_fit_on_the_disk_leaves_the_rows_before(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    row = {"loss": 0.123456789}
    with monkeypatch.context() as patch:
        fill_disk(patch)
        with pytest.raises(OSError, match="No space left"):
            append_jsonl(path, row)
    assert path.read_bytes() == b""
    append_jsonl(path, row)
    assert read_jsonl(path) == [row]


def test_half_a_row_of_a_killed_writer_is_cut_off(tmp_path):
    path = tmp_path / "x.jsonl"
    whole = [json.dumps({"step": step, "λ": "é"}, ensure_ascii=False) + "\n" for step in range(2)]
    for half in ("", '{"step": 2, "λ', '{"step": 2}'):
        path.write_text("".join(whole) + half, encoding="utf-8")
        cut_jsonl(path)
        assert path.read_text(encoding="utf-8") == "".join(whole)
    path.write_text('{"st', encoding="utf-8")
    cut_jsonl(path)
    assert path.read_bytes() == b""


def test_empty_folder_means_nothing_of_somebody_else(tmp_path):
    assert is_empty_folder(tmp_path)
    (tmp_path / ".x.json.1.tmp").touch()  # what a killed writer leaves
    (tmp_path / "data").mkdir()
    assert is_empty_folder(tmp_path, besides="data")
    assert not is_empty_folder(tmp_path)
    (tmp_path / "thesis.txt").touch()
    assert not is_empty_folder(tmp_path, besides="data")
    assert not is_empty_folder(tmp_path / "thesis.txt")
    assert not is_empty_folder(tmp_path / "nothing")
