"""Where results may be written."""

import os

import pytest

from diffattn.errors import ConfigError
from diffattn.files.destination import (
    is_folder_name,
    require_file_destination,
    require_folder_destination,
)


def test_free_names_and_what_may_be_replaced_are_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    for name in ("new", "new/newer", "file", "link", "../new", str(tmp_path / "new")):
        require_file_destination(name)
    for name in ("new", "new/newer", ".", "..", tmp_path, ""):
        require_folder_destination(name)
    assert sorted(os.listdir()) == ["file", "link"]


@pytest.mark.parametrize("check", [require_file_destination, require_folder_destination])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pipe", "pipe: must be a f.*, got a pipe"),
        ("pipe/x", "got a path through a pipe"),
        ("gone", "got a link to nothing"),
        ("device", "got a device"),
        ("loop", "Too many levels"),
        ("new/../x", "got '..' after a folder that does not exist"),
        ("\0", "embedded null"),
        ("\ud800", "surrogates not allowed"),
        ("x" * 250, "more than 200 bytes"),
        ("x" * 300, "File name too long"),
        ("a\x1b[2Jb\n/" + "x" * 250, r"^'a\\x1b\[2Jb\\n/x+': must be"),
    ],
)
def test_wrong_places_are_refused(check, name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for link, target in {"gone": "absent", "device": "/dev/zero", "loop": "loop"}.items():
        (tmp_path / link).symlink_to(target)
    with pytest.raises(ConfigError, match=message):
        check(name)


def test_a_folder_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    for check in (require_file_destination, require_folder_destination):
        with pytest.raises(ConfigError, match="a folder that is not writable"):
            check(tmp_path / "new" / "x")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("one", "a b", "<b>", "λ", "x.judged-y", "a..b")),
        *((name, False) for name in ("", ".", "..", ".hidden", "a/b", "/", "../x", "a\0")),
        ("\ud800", False),
        ("x" * 201, False),
    ],
)
def test_folder_names(name, is_one):
    assert is_folder_name(name) == is_one
