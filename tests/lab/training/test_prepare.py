"""Data is prepared once, reused, and never mixed with another corpus or with foreign files."""

import shutil
from dataclasses import asdict, replace

import pytest

from diffattn.errors import CheckpointError, ConfigError
from diffattn.lab.data.corpora import load_corpus, pin
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.training import prepare
from diffattn.lab.training.config import DataConfig
from diffattn.lab.training.prepare import open_data, prepare_data
from record_files import contents, entries, read_record, snapshot, write_record


@pytest.fixture
def config(corpus):
    return DataConfig(source=str(corpus), vocab_size=300, validation_fraction=0.2)


@pytest.fixture
def copied(data, tmp_path):
    """The prepared data in a folder that a test may spoil."""
    return shutil.copytree(data.folder, tmp_path / "data")


def test_the_second_time_nothing_is_trained_or_written(data, config, monkeypatch):
    monkeypatch.setattr(prepare, "train_tokenizer", None)  # calling it would fail
    before = snapshot(data.folder)
    lines = []
    again = prepare_data(config, data.folder, on_message=lines.append)
    assert snapshot(data.folder) == before
    assert lines == [f"checking {config.source}, which {data.folder} holds packed"]
    assert again.facts() == data.facts()
    assert again.config == config


def test_facts_and_files_describe_the_corpus(data, corpus):
    text = "".join(path.read_text(encoding="utf-8") for path in corpus.iterdir())
    facts = data.facts()
    assert facts["validation_tokens"] == len(data.validation.tokens) > 0
    assert data.train.num_bytes + data.validation.num_bytes == len(text.encode())
    assert data.bytes_per_token == data.validation.num_bytes / data.validation.num_tokens
    assert len({facts[key] for key in facts if key.endswith("hash")}) == 4
    kinds = ("bin", "idx", "json", "names")
    packed = [f"{split}.{kind}" for split in ("train", "validation") for kind in kinds]
    assert entries(data.folder) == ["data.json", "tokenizer", *packed]
    marker = read_record(data.folder / "data.json")
    assert (marker["config"], marker["source"]) == (asdict(data.config), pin(str(corpus)))
    assert marker["packed"]["train"]["token_hash"] == facts["train_hash"]
    assert {"python", "tokenizers", "transformers", "diffattn"} <= marker["versions"].keys()


def test_a_changed_corpus_is_refused_and_nothing_is_touched(config, copied, corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "texts")
    changed = replace(config, source=str(tmp_path / "texts"))
    prepare_data(changed, tmp_path / "own")
    with (tmp_path / "texts" / "03.txt").open("a", encoding="utf-8") as file:
        file.write("!")
    for settings, folder, named in (
        (changed, tmp_path / "own", "source: '03.txt' has changed"),
        (replace(config, vocab_size=301), copied, "data.vocab_size 301 where 300 is recorded"),
        (replace(config, validation_fraction=0.3), copied, "data.validation_fraction 0.3 where"),
    ):
        before = snapshot(folder)
        with pytest.raises(CheckpointError, match=r"another one's .*Choose another fo") as error:
            prepare_data(settings, folder)
        assert snapshot(folder) == before
        assert named in str(error.value)


def test_a_corpus_that_changes_while_it_is_packed_is_refused(config, corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "texts")
    moved = replace(config, source=str(tmp_path / "texts"))

    def change(line):
        if line.startswith("packing"):
            (tmp_path / "texts" / "03.txt").write_text("other")

    with pytest.raises(CheckpointError, match="must stay as it is while it is packed"):
        prepare_data(moved, tmp_path / "data", on_message=change)
    with pytest.raises(CheckpointError, match=r"'03\.txt' has changed"):
        prepare_data(moved, tmp_path / "data")


def test_a_packed_commit_of_the_hub_is_used_without_the_hub(
    config, data, corpus, tmp_path, monkeypatch
):
    revisions = []

    def documents(source, revision, *options):
        revisions.append(revision)
        return load_corpus(str(corpus))

    hub = replace(config, source="hub:owner/name")
    with monkeypatch.context() as patch:
        patch.setattr("diffattn.lab.data.corpora._commit", lambda source: "0123abc")
        patch.setattr("diffattn.lab.data.corpora._hub_texts", documents)
        packed = prepare_data(hub, tmp_path / "data")
    assert revisions == ["0123abc"] * 2  # for the tokenizer and for the tokens
    assert read_record(tmp_path / "data" / "data.json")["source"] == {"revision": "0123abc"}
    monkeypatch.setattr("diffattn.lab.data.corpora._commit", None)  # calling it would fail
    assert prepare_data(hub, tmp_path / "data").facts() == packed.facts() == data.facts()


def test_progress_counts_the_bytes_of_the_source(config, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("diffattn.lab.data.packing.BATCH_CHARS", 3_000)
    seen = []
    folder = tmp_path / "data"
    prepared = prepare_data(config, folder, on_progress=lambda *counts: seen.append(counts))
    size = sum(path.stat().st_size for path in corpus.iterdir())
    assert len(seen) > 4
    assert all(total == size >= read for read, total, _ in seen)
    assert seen[0][0] < size == seen[-1][0]
    assert seen[-1][2] == prepared.train.num_tokens + prepared.validation.num_tokens


def test_a_full_disk_is_one_error_and_the_next_call_continues(config, data, tmp_path, monkeypatch):
    class Full:
        def __getattr__(self, name):
            return getattr(data.tokenizer, name)

        def save_pretrained(self, folder):
            (folder / "tokenizer.json").write_text("{")
            raise Exception("No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(prepare, "train_tokenizer", lambda *args, **kwargs: Full())
        with pytest.raises(OSError, match="tokenizer: must be writable, got No space left"):
            prepare_data(config, tmp_path / "data")
    assert not (tmp_path / "data").exists()
    assert prepare_data(config, tmp_path / "data").facts() == data.facts()


def test_what_a_call_packed_and_nobody_can_use_is_removed(config, copied, tmp_path):
    def refuse(data):
        assert data.train.num_tokens > 0
        raise ConfigError("it must be longer")

    before = snapshot(copied)
    for folder in (copied, tmp_path / "new" / "data"):
        with pytest.raises(ConfigError, match="it must be longer"):
            prepare_data(config, folder, require=refuse)
    assert snapshot(copied) == before
    assert not (tmp_path / "new").exists()
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ConfigError, match="must have at least 2 characters"):
        prepare_data(replace(config, source=str(tmp_path / "a.txt")), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "clone" / ".git").mkdir(parents=True)  # what is hidden does not make it another's
    (tmp_path / "clone" / ".git" / "HEAD").write_text("main")
    with pytest.raises(ConfigError, match="must have at least 2 characters"):
        prepare_data(replace(config, source=str(tmp_path / "a.txt")), tmp_path / "clone")
    assert list(snapshot(tmp_path / "clone")) == [".git/HEAD"]


def test_two_processes_do_not_pack_into_one_folder(config, copied):
    with sole_writer(copied), pytest.raises(CheckpointError, match="one process at a time"):
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
    assert not (tmp_path / "small").exists()


def test_a_marker_of_another_kind_is_refused(copied):
    path = copied / "data.json"
    marker = read_record(path)
    for value in (
        {"schema": 3},
        marker | {"schema": 2},
        marker | {"config": {"colour": "red"}},
        marker | {"config": marker["config"] | {"vocab_size": "x"}},
    ):
        write_record(path, value)
        with pytest.raises(CheckpointError, match=r"data\.json"):
            open_data(copied)
    with pytest.raises(CheckpointError, match="file must exist"):
        open_data(copied / "nothing")


@pytest.mark.parametrize("survives", ["marker", "tokenizer", "half a tokenizer", "half a packing"])
def test_an_interrupted_preparation_is_finished_by_the_next(config, data, tmp_path, survives):
    folder = tmp_path / "data"
    folder.mkdir()
    whole = read_record(data.folder / "data.json")
    begun = ("schema", "config", "source")
    write_record(folder / "data.json", {key: whole[key] for key in begun})
    if survives in ("tokenizer", "half a packing"):
        shutil.copytree(data.folder / "tokenizer", folder / "tokenizer")
    if survives == "half a tokenizer":
        (folder / ".tokenizer.7.tmp").mkdir()
        (folder / ".tokenizer.7.tmp" / "tokenizer.json").write_text("{")
    if survives == "half a packing":
        (folder / ".packing").mkdir()
        (folder / ".packing" / "train.bin").write_bytes(b"12")
        shutil.copy(data.folder / "train.bin", folder)
    assert prepare_data(config, folder).facts() == data.facts()
    assert contents(folder) == contents(data.folder)
