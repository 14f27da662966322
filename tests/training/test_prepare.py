"""Data is prepared once, reused, and never mixed with another corpus or with foreign files."""

import shutil
from dataclasses import replace

import pytest

from diffattn.data.tokens import PackedTokens
from diffattn.errors import CheckpointError, ConfigError, DiffAttnError
from diffattn.records.lock import sole_writer
from diffattn.training import prepare
from diffattn.training.config import DataConfig
from diffattn.training.prepare import open_data, prepare_data
from record_files import read_record, write_record


def contents(folder):
    """Every file's bytes and time of change, by path."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}


@pytest.fixture
def config(corpus):
    return DataConfig(source=str(corpus), vocab_size=300, validation_fraction=0.2)


@pytest.fixture
def copied(data, tmp_path):
    """The prepared data in a folder that a test may spoil."""
    return shutil.copytree(data.folder, tmp_path / "data")


def test_the_second_time_nothing_is_trained_or_written(data, config, monkeypatch):
    monkeypatch.setattr(prepare, "train_tokenizer", None)  # calling it would fail
    before = contents(data.folder)
    lines = []
    again = prepare_data(config, data.folder, on_message=lines.append)
    assert contents(data.folder) == before
    assert lines == ["checking 20 documents"]
    assert again.facts() == data.facts()
    assert again.config == config


def test_facts_and_files_describe_the_corpus(data, corpus):
    text = "".join(path.read_text(encoding="utf-8") for path in corpus.iterdir())
    facts = data.facts()
    assert facts["train_tokens"] == len(data.train.tokens)
    assert facts["validation_tokens"] == len(data.validation.tokens) > 0
    assert data.train.num_bytes + data.validation.num_bytes == len(text.encode())
    assert data.bytes_per_token == data.validation.num_bytes / data.validation.num_tokens
    assert len({facts[key] for key in facts if key.endswith("hash")}) == 4
    names = {path.name for path in data.folder.iterdir()}
    assert names == {
        "data.json", "tokenizer", "train.bin", "train.json", "validation.bin", "validation.json",
    }  # fmt: skip


def test_a_changed_corpus_is_refused_and_nothing_is_touched(config, copied, corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "texts")
    changed = replace(config, source=str(tmp_path / "texts"))
    prepare_data(changed, tmp_path / "own")
    with (tmp_path / "texts" / "03.txt").open("a", encoding="utf-8") as file:
        file.write("!")
    for settings, folder in (
        (changed, tmp_path / "own"),
        (replace(config, vocab_size=301), copied),
        (replace(config, validation_fraction=0.3), copied),
    ):
        before = contents(folder)
        with pytest.raises(CheckpointError, match=r"got another one's .*Choose another folder"):
            prepare_data(settings, folder)
        assert contents(folder) == before


def test_folders_of_somebody_else_are_left_alone(config, tmp_path):
    (tmp_path / "mine" / "tokenizer").mkdir(parents=True)
    (tmp_path / "mine" / "tokenizer" / "tokenizer.json").write_text("{}")
    (tmp_path / "file").write_text("text")
    for name, must in (
        ("mine", "be empty or hold packed data"),
        ("file", "be a folder, got a file"),
    ):
        before = contents(tmp_path)
        with pytest.raises(DiffAttnError, match=f"{name}: must {must}"):
            prepare_data(config, tmp_path / name)
        assert contents(tmp_path) == before


@pytest.mark.parametrize("survives", ["marker", "tokenizer", "half a tokenizer", "half a packing"])
def test_an_interrupted_preparation_is_finished_by_the_next(config, data, tmp_path, survives):
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copy(data.folder / "data.json", folder)
    if survives in ("tokenizer", "half a packing"):
        shutil.copytree(data.folder / "tokenizer", folder / "tokenizer")
    if survives == "half a tokenizer":
        (folder / ".tokenizer.tmp").mkdir()
        (folder / ".tokenizer.tmp" / "tokenizer.json").write_text("{")
    if survives == "half a packing":
        (folder / ".packing-x").mkdir()
        (folder / ".packing-x" / "train.bin").write_bytes(b"12")
        shutil.copy(data.folder / "train.bin", folder)
    assert prepare_data(config, folder).facts() == data.facts()
    assert {path.name for path in folder.iterdir()} == {p.name for p in data.folder.iterdir()}


def test_a_full_disk_is_one_error_and_the_next_call_continues(config, data, tmp_path, monkeypatch):
    class Full:
        def __getattr__(self, name):
            return getattr(data.tokenizer, name)

        def save_pretrained(self, folder):
            folder.mkdir()
            (folder / "tokenizer.json").write_text("{")
            raise Exception("No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(prepare, "train_tokenizer", lambda *args, **kwargs: Full())
        with pytest.raises(OSError, match="tokenizer: must be writable, got No space left"):
            prepare_data(config, tmp_path / "data")
    assert not (tmp_path / "data").exists()
    assert prepare_data(config, tmp_path / "data").facts() == data.facts()


def test_two_processes_do_not_pack_into_one_folder(config, copied):
    with (
        sole_writer(copied),
        pytest.raises(CheckpointError, match="one process at a time"),
    ):
        prepare_data(config, copied)


def test_an_existing_tokenizer_is_used_by_folder(config, data, tmp_path):
    name = str(data.folder / "tokenizer")
    custom = replace(config, vocab_size=400, tokenizer=name)
    prepared = prepare_data(custom, tmp_path / "data")
    assert prepared.facts() == data.facts()
    entries = len(data.tokenizer)
    small = DataConfig(source=config.source, vocab_size=entries - 1, tokenizer=name)
    with pytest.raises(ConfigError, match=f"at least the tokenizer's {entries} entries, got"):
        prepare_data(small, tmp_path / "small")
    missing = DataConfig(source=config.source, tokenizer=str(tmp_path / "tokeniser"))
    with pytest.raises(ConfigError, match="must be a folder with a tokenizer"):
        prepare_data(missing, tmp_path / "small")
    with pytest.raises(ConfigError, match=r"Did you mean '.*data'\?"):
        prepare_data(DataConfig(source=str(tmp_path / "dta")), tmp_path / "small")
    assert not (tmp_path / "small").exists()


def spoil(folder, name):
    path = folder / name
    if name == "tokenizer":
        shutil.rmtree(path)
    elif name == "tokenizer/tokenizer.json":
        path.write_text("{")
    elif name.endswith(".bin"):
        path.write_bytes(path.read_bytes()[:-2])
    else:
        path.unlink()


@pytest.mark.parametrize(
    "name",
    ["data.json", "tokenizer", "tokenizer/tokenizer.json", "train.bin", "validation.json"],
)
def test_missing_or_damaged_files_are_named(copied, name):
    assert isinstance(open_data(copied).train, PackedTokens)
    spoil(copied, name)
    with pytest.raises(CheckpointError, match=name.split("/")[0]) as error:
        open_data(copied)
    assert "\n" not in str(error.value)


def test_a_marker_of_another_kind_is_refused(copied):
    path = copied / "data.json"
    marker = read_record(path)
    for value in (
        {"schema": 2},
        {"schema": 1},
        marker | {"config": {"colour": "red"}},
        marker | {"config": marker["config"] | {"vocab_size": "x"}},
    ):
        write_record(path, value)
        with pytest.raises(CheckpointError, match=r"data\.json"):
            open_data(copied)
    with pytest.raises(CheckpointError, match="file must exist"):
        open_data(copied / "nothing")
