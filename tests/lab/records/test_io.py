"""Files are whole or absent, whatever happens while they are written."""

import errno
import io
import json
import os
from pathlib import Path

import pytest

from diffattn.errors import CheckpointError
from diffattn.files.io import (
    append_jsonl,
    is_empty_folder,
    log_facts,
    read_json,
    read_jsonl,
    read_plain_jsonl,
    recover_jsonl,
    write_json,
    write_jsonl,
    write_plain_jsonl,
)
from record_files import entries


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
    assert entries(path.parent) == ["x.json"]


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


DAMAGED = [b"", b"{", b'{"a": 1', b"\xff\xfe", b"{} {}"]
# What Python cannot hold: too deep, or no finite number.
DAMAGED += [b"[" * 100_000, b'{"a": NaN}', b'{"a": 1e999}', b'{"a": ' + b"9" * 5000 + b"}"]


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: repr(content[:9]))
def test_damaged_json_is_named(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x\.json: must be JSON, got a damaged file"):
        read_json(path)
    path.write_bytes(content + b"\n")
    with pytest.raises(CheckpointError, match=":1: every line must be a JSON object"):
        read_jsonl(path)


def test_what_is_no_file_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (read_json, read_jsonl, read_plain_jsonl):
        for name, kind in (("x", "none"), ("pipe", "another kind")):
            with pytest.raises(CheckpointError, match=f"{name}: file must exist, got {kind}"):
                read(tmp_path / name)


def test_appended_rows_follow_one_another(tmp_path):
    """With any separator of lines in their texts, and longer than what is read at once."""
    texts = ["λ", *2 * ["a\u2028b\u2029c\x85d\x0b\x0c\x1c\r\n"], "x" * 200_000, "x" * 65_536, ""]
    for text in texts:
        append_jsonl(tmp_path / "x.jsonl", {"text": text})
    assert [row["text"] for row in read_jsonl(tmp_path / "x.jsonl")] == texts


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


def test_a_changed_value_is_noticed_and_another_layout_is_not(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"b": 1.5, "a": {"2": [1, None]}})
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True).replace(": ", ":\r\n"))
    assert read_json(path) == {"a": {"2": [1, None]}, "b": 1.5}
    path.write_text(path.read_text().replace("1.5", "1.4"))
    with pytest.raises(CheckpointError, match="other content than its checksum says"):
        read_json(path)
    path.write_text('{"b": 1.5}')
    with pytest.raises(CheckpointError, match="must carry a checksum, got none"):
        read_json(path)
    path.write_text("[1]")
    with pytest.raises(CheckpointError, match="must be a JSON object, got a list"):
        read_json(path)


ROWS = [{"step": step, "λ": "é" * step} for step in range(5)]


def test_lost_and_changed_rows_are_named(tmp_path):
    path = tmp_path / "x.jsonl"
    write_jsonl(path, ROWS)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    recorded = log_facts(path)
    assert read_jsonl(path, recorded=recorded) == ROWS
    for change, message in (
        ([0, 1, 3, 4], ":3: must be row 2, got row 3"),
        ([1, 2, 3, 4], ":1: must be row 0, got row 1"),
        ([0, 1, 2, 2, 3, 4], ":4: must be row 3, got row 2"),
    ):
        path.write_text("".join(lines[i] for i in change), encoding="utf-8")
        with pytest.raises(CheckpointError, match=message):
            read_jsonl(path)
    path.write_text("".join(lines).replace("éé", "ée", 1), encoding="utf-8")
    with pytest.raises(CheckpointError, match=":3: must be as it was written"):
        read_jsonl(path)
    path.write_text("".join(lines[:4]), encoding="utf-8")
    assert read_jsonl(path) == ROWS[:4]  # an unfinished file may end anywhere
    path.write_text("".join(lines[:4]) + "[1]\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"x\.jsonl:5: every line must be a JSON object"):
        read_jsonl(path)
    path.write_text("".join(lines[:4]), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"must be the file of 5 rows .* got 4"):
        read_jsonl(path, recorded=recorded)


def test_an_unfinished_file_keeps_its_whole_rows(tmp_path):
    path = tmp_path / "x.jsonl"
    assert recover_jsonl(path) == ([], [])
    write_jsonl(path, ROWS)
    whole = path.read_bytes()
    for half in (b"", b'{"row": 5, "\xce', b'{"row": 5}'):
        path.write_bytes(whole + half)
        assert recover_jsonl(path) == (ROWS, [])
        assert path.read_bytes() == whole
    changed = whole.replace(b'"step": 2', b'"step": \xff').replace(b'"step": 3', b'"step": 9')
    path.write_bytes(changed)
    rows, faults = recover_jsonl(path)
    assert rows == [ROWS[0], ROWS[1], ROWS[4]]
    assert [fault.split(":")[1] for fault in faults] == ["3", "4"]
    assert read_jsonl(path) == rows
    append_jsonl(path, ROWS[2])
    assert read_jsonl(path) == [*rows, ROWS[2]]


def test_rows_for_other_programs_are_plain(tmp_path):
    write_plain_jsonl(tmp_path / "x.jsonl", ROWS)
    assert json.loads((tmp_path / "x.jsonl").read_text(encoding="utf-8").split("\n")[1]) == ROWS[1]
    assert read_plain_jsonl(tmp_path / "x.jsonl") == ROWS


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
