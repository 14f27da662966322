"""A folder that is only right as a whole notices what is not."""

import pytest

from diffattn.errors import CheckpointError
from diffattn.files import io
from diffattn.files.folders import MANIFEST, verify_manifest, write_manifest
from diffattn.files.io import read_json


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_bytes(bytes(range(256)) * 40)
    (folder / "config").write_text("{}")
    write_manifest(folder)
    return folder


def test_a_whole_folder_passes_and_more_files_may_lie_there(folder):
    verify_manifest(folder)
    (folder / "README.md").write_text("mine")
    verify_manifest(folder)


def test_it_names_every_file_but_the_card_and_hidden_ones(folder):
    for name in ("tokenizer.json", "README.md", ".lock"):
        (folder / name).write_text("{}")
    write_manifest(folder)
    assert read_json(folder / MANIFEST)["files"].keys() == {"weights", "config", "tokenizer.json"}


def test_the_card_too_lies_on_the_disk(folder, monkeypatch):
    """Nothing would write it again after a loss of power."""
    synced = []
    (folder / "README.md").write_text("mine")
    monkeypatch.setattr(io, "sync", lambda path: synced.append(path.name))
    write_manifest(folder)
    assert "README.md" in synced


def test_every_flipped_bit_and_cut_is_noticed(folder):
    for name in ("weights", "config", MANIFEST):
        path = folder / name
        content = path.read_bytes()
        for position in range(0, len(content), max(1, len(content) // 50)):
            changed = bytearray(content)
            changed[position] ^= 1 << position % 8
            for damaged in (bytes(changed), content[:position]):
                path.write_bytes(damaged)
                with pytest.raises(CheckpointError, match=name):
                    verify_manifest(folder)
        path.unlink()
        with pytest.raises(CheckpointError, match=name):
            verify_manifest(folder)
        path.write_bytes(content)
    verify_manifest(folder)


def test_the_message_says_how_a_file_differs(folder):
    (folder / "config").write_text('{"mine": 1}')
    with pytest.raises(CheckpointError, match=r"config: .*, got 11 bytes where 2 were written"):
        verify_manifest(folder)
