"""Temporary files of dead processes go, those being written stay."""

import fcntl

import pytest

from diffattn.files.io import clean_leftovers, write_text
from diffattn.lab.records.lock import sole_writer
from record_files import contents, entries


def test_only_what_nobody_writes_is_removed(tmp_path):
    (tmp_path / ".a.json.17.tmp").touch()
    (tmp_path / ".b.json.17.tmp").touch()
    kept = [".a.json.tmp", "a.json.17.tmp", ".a.json.x.tmp", "a.json"]
    for name in kept:
        (tmp_path / name).touch()
    (tmp_path / ".folder.17.tmp").mkdir()
    with (tmp_path / ".b.json.17.tmp").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        clean_leftovers(tmp_path)
        assert (tmp_path / ".b.json.17.tmp").exists()
    assert not (tmp_path / ".a.json.17.tmp").exists()
    clean_leftovers(tmp_path)
    assert entries(tmp_path) == sorted([*kept, ".folder.17.tmp"])


def test_who_writes_a_file_removes_its_leftovers_alone(tmp_path):
    (tmp_path / ".a+.json.17.tmp").touch()
    (tmp_path / ".aa.json.17.tmp").touch()
    write_text(tmp_path / "a+.json", "{}")
    assert entries(tmp_path) == [".aa.json.17.tmp", "a+.json"]


def test_who_holds_a_folder_removes_all_of_them(tmp_path):
    (tmp_path / ".aa.json.17.tmp").touch()
    with sole_writer(tmp_path):
        assert entries(tmp_path) == [".lock"]


def test_a_file_taken_for_a_leftover_is_made_again(tmp_path, monkeypatch):
    real, times = fcntl.flock, []

    def late(file, how):
        times.append(how)
        if len(times) == 1:  # another process was faster
            next(tmp_path.iterdir()).unlink()
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    write_text(tmp_path / "a", "a")
    assert len(times) == 2
    assert contents(tmp_path) == {"a": b"a"}


def test_without_locks_leftovers_stay(tmp_path, monkeypatch):
    def none(file, how):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", none)
    (tmp_path / ".a.17.tmp").touch()
    write_text(tmp_path / "a", "a")
    assert (tmp_path / "a").read_text() == "a"
    assert (tmp_path / ".a.17.tmp").exists()


def test_on_failure_the_old_file_stays(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a", "new \ud800")
    assert contents(tmp_path) == {"a": b"old"}
