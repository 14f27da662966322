"""What a corpus was read from is pinned, and what has changed since is named."""

from types import SimpleNamespace

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.data import corpora, files
from diffattn.lab.data.corpora import changed_file, pin, stamp


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "sub" / "b.jsonl").write_text('{"text": "two"}\n')
    (tmp_path / ".hidden").write_text("not read")
    return tmp_path


def test_files_are_pinned_by_size_and_hash(texts):
    pinned = pin(str(texts))
    sha256 = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
    assert pinned["files"]["a.txt"] == {"bytes": 3, "sha256": sha256}
    assert pinned["files"].keys() == {"a.txt", "sub/b.jsonl"}
    assert pin(str(texts / "a.txt"))["files"].keys() == {"a.txt"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda f: (f / "a.txt").write_text("two"), "'a.txt' has changed"),
        (lambda f: (f / "a.txt").unlink(), "'a.txt' is missing"),
        (lambda f: (f / "c.txt").touch(), "'c.txt' is new"),
        (lambda f: (f / ".other").touch(), None),
        (lambda f: (f / "a.txt").touch(), None),
    ],
    ids=["content", "missing", "new", "hidden", "time"],
)
def test_the_first_difference_is_named(texts, change, expected):
    before, seen = pin(str(texts)), stamp(str(texts))
    change(texts)
    assert changed_file(before, pin(str(texts))) == expected
    if expected:
        assert stamp(str(texts)) != seen


def test_installed_sources_and_local_datasets_are_files_too(texts):
    stdlib, python = pin("stdlib")["files"], pin("python")["files"]
    assert "argparse.py" in stdlib.keys() < python.keys()
    assert "pydoc_data/topics.py" in python
    assert pin(f"hub:{texts}") == pin(str(texts))


def test_a_dataset_on_the_hub_is_pinned_by_its_commit(monkeypatch):
    asked = []

    def dataset_info(self, name, *, revision):
        asked.append((name, revision))
        return SimpleNamespace(sha="0123abc")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    pinned = pin("hub:owner/name@v1:sub")
    assert pinned == {"revision": "0123abc"}
    assert asked == [("owner/name", "v1")]
    assert stamp("hub:owner/name") == {}


def test_a_hub_out_of_reach_is_one_line(monkeypatch):
    def dataset_info(self, name, *, revision):
        raise ConnectionError("no route\nto the hub")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    with pytest.raises(ConfigError, match=r"'owner/name' must be .* hub knows, got: no route\.$"):
        pin("hub:owner/name")


def test_a_text_that_is_too_large_is_refused_before_anything_is_hashed(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("small")
    with (tmp_path / "b.txt").open("wb") as file:
        file.truncate(1 << 40)  # sparse; to hash it would take an hour
    monkeypatch.setattr(corpora, "file_hash", None)
    with pytest.raises(ConfigError, match=r"b\.txt: one text must have at most \d+ bytes"):
        pin(str(tmp_path))


def test_json_lines_may_be_of_any_size(tmp_path, monkeypatch):
    (tmp_path / "rows.JSONL").write_text('{"text": "of several words"}\n')
    monkeypatch.setattr(files, "MAX_TEXT_BYTES", 8)
    assert list(pin(str(tmp_path))["files"]) == ["rows.JSONL"]
