"""Two processes train what one does, write it once, and share out only what can be shared out."""

import errno
import re
import time
from copy import copy
from dataclasses import replace

import pytest
import torch.distributed as dist

from children import launched, raised, values
from continued_runs import assert_same_files, steps_of, stop_together
from diffattn.errors import ConfigError
from diffattn.files.folders import MANIFEST, write_manifest
from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.records import run as run_record
from diffattn.lab.records.run import RunRecord, package_versions
from diffattn.lab.training import distributed, sharding
from diffattn.lab.training.distributed import joined, process_index, require_one_process, together
from diffattn.lab.training.run import train
from record_files import contents, entries

ROUNDING = 1e-6  # relative; sums over processes are taken in another order


def losses(folder):
    names = {"train_loss", "gradient_norm", "validation_loss"}
    rows = read_jsonl(folder / "metrics.jsonl")
    return {(row["step"], name): row[name] for row in rows for name in names & row.keys()}


def assert_same_losses(folder, expected):
    actual, reference = losses(folder), losses(expected)
    assert actual.keys() == reference.keys()
    assert actual == pytest.approx(reference, rel=ROUNDING)


@pytest.fixture(scope="module")
def pair(make_run, data, tmp_path_factory):
    """Folder of a run of two processes, and what each returns: results, and calls of progress."""
    config, folder, messages = make_run("diff"), tmp_path_factory.mktemp("pair") / "run", []

    def run():
        results = train(config, data, folder, on_progress=lambda *step: messages.append(step))
        return results, len(messages)

    return folder, values(launched(2, run))


def test_two_processes_train_what_one_does(pair, finished):
    folder, (first, second) = pair
    assert first[0] == second[0] == read_json(folder / "results.json")
    assert (first[1], second[1]) == (12, 0)  # one of them speaks
    assert_same_losses(folder, finished / "diff")
    alone = read_json(finished / "diff" / "results.json")
    assert first[0]["validation_loss"] == pytest.approx(alone["validation_loss"], rel=ROUNDING)
    assert first[0]["validation_parts"].keys() == alone["validation_parts"].keys()
    for part, entry in first[0]["validation_parts"].items():
        assert entry["tokens"] == alone["validation_parts"][part]["tokens"]  # every token once
    assert entries(folder) == entries(finished / "diff")
    assert contents(folder).keys() == contents(finished / "diff").keys()
    record = RunRecord.read(folder)
    assert (record.engine["processes"], record.engine["parallel"]) == (2, "ddp")
    assert RunRecord.read(finished / "diff").engine["parallel"] is None


def test_two_processes_save_between_rows_of_the_log(pair, make_run, data, tmp_path):
    """What was not logged yet is gathered from all of them; SIGTERM saves in the same place."""
    config, folder = make_run("diff", engine={"save_every": 5}), tmp_path / "run"
    stop_together(2, config, data, folder, 7)
    saved = folder / "checkpoints" / "checkpoint-5"
    assert (saved / MANIFEST).exists()
    assert len({*read_json(saved / "unlogged.json")["loss_sums"]}) == 2  # each goes on from its own
    steps = values(launched(2, lambda: steps_of(config, data, folder)))
    assert steps == [list(range(6, 13)), []]
    assert_same_files(folder, pair[0], ["metrics.jsonl"])


def test_no_process_goes_on_before_a_checkpoint_is_whole(tmp_path, monkeypatch):
    """To hash a large one takes longer than what comes next would wait for the first process."""

    def slow(folder):
        time.sleep(1)
        write_manifest(folder)

    monkeypatch.setattr(sharding, "write_manifest", slow)

    def run():
        with joined(), sharding.written_by_all(tmp_path / "checkpoint-1"):
            (tmp_path / "checkpoint-1").mkdir(exist_ok=True)
        return (tmp_path / "checkpoint-1" / MANIFEST).exists()

    assert values(launched(2, run)) == [True, True]


def test_what_fails_on_one_process_leaves_no_half_checkpoint_and_no_process_waiting(tmp_path):
    """As a full disk of one machine; later parts of a checkpoint are sums over all processes."""

    def run():
        with joined(), sharding.written_by_all(tmp_path / "checkpoint-1"):
            with together():
                (tmp_path / "checkpoint-1").mkdir(exist_ok=True)
                if process_index() == 1:
                    raise OSError(errno.ENOSPC, "No space left")
            dist.barrier()

    outcomes = raised(launched(2, run))
    for names, message, _ in outcomes:
        assert names[0] == "DiffAttnError"
        assert "checkpoint-1: must be written whole, got: " in message
        assert "No space left" in message
    assert "process 1 failed" in outcomes[0][1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ("rate", r"got train\.learning_rate 0\.5 where [0-9.]+ is the first process's"),
        ("data", r"got data\.train_hash 'other' where"),
        ("engine", r"save_every 3 where None is the first process's"),
        ("versions", r"got versions\.torch '1\.0' where '[^']+' is the first process's"),
    ],
)
def test_processes_that_were_asked_for_different_runs_are_refused(
    difference, message, make_run, data, tmp_path, monkeypatch
):
    """A mistyped command on one machine, its own older packing or packages would spoil the
    gradients."""
    config, folder = make_run("diff"), tmp_path / "run"

    def run():
        actual, packed = config, data
        if process_index() == 1 and difference == "rate":
            actual = replace(config, train=replace(config.train, learning_rate=0.5))
        elif process_index() == 1 and difference == "versions":
            here = package_versions()
            monkeypatch.setattr(run_record, "package_versions", lambda: {**here, "torch": "1.0"})
        elif process_index() == 1 and difference == "engine":
            actual = make_run("diff", engine={"save_every": 3})
        elif process_index() == 1:
            packed = copy(data)
            packed.train.metadata["token_hash"] = "other"
        train(actual, packed, folder)

    for names, messages, _ in raised(launched(2, run)):
        assert names[0] == "ConfigError"
        assert re.search(message, messages), messages
    assert not folder.exists()


def test_processes_that_see_different_folders_are_refused(make_run, data, tmp_path, monkeypatch):
    """Checkpoints are read by all of them."""
    monkeypatch.setattr(distributed, "_SEEN_SECONDS", 0.1)
    config = make_run("diff")
    outcomes = launched(2, lambda: train(config, data, tmp_path / f"run-{process_index()}"))
    for _, messages, _ in raised(outcomes):
        assert "must be the same folder for every process, got no run.json on process 1" in messages


@pytest.mark.parametrize(
    ("processes", "changes", "message"),
    [
        (3, {}, r"WORLD_SIZE=3: a batch of 4 sequences .*out evenly to all devices, got 3"),
        (2, {"micro_batch_sequences": 4}, r"train\.micro_batch_sequences must divide 2, .* got 4"),
    ],
)
def test_a_batch_that_cannot_be_shared_out_is_refused_before_anything_is_written(
    processes, changes, message, make_run, data, tmp_path, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    with pytest.raises(ConfigError, match=message):
        train(make_run("diff", **changes), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_launches_that_are_none_are_refused(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    require_one_process("a run on a recall task")
    for given in ("abc", "", "0"):
        monkeypatch.setenv("WORLD_SIZE", given)
        with pytest.raises(ConfigError, match=f"must be a number of processes, got '{given}'"):
            distributed.num_processes()
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = "WORLD_SIZE=2 must come from torchrun, got no RANK"
    with pytest.raises(ConfigError, match=message), joined():
        pass
    with pytest.raises(ConfigError, match=r"a recall task must have one process, got WORLD_SIZE=2"):
        require_one_process("a run on a recall task")


def test_a_process_that_fails_alone_does_not_wait_for_the_others():
    """NCCL, told to end, waits for all of them; the error would be told minutes later."""

    def run():
        try:
            with joined():
                dist.barrier()  # nobody leaves while another one still connects
                if process_index() == 1:
                    raise ConfigError("mine alone")
        except ConfigError as error:
            return str(error), dist.is_initialized()
        return None, dist.is_initialized()

    assert values(launched(2, run)) == [(None, False), ("mine alone", True)]


def test_the_error_of_the_first_process_ends_all(make_run, data, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    outcomes = launched(2, lambda: train(make_run("diff"), data, tmp_path / "run"))
    (names, message, _), (other_names, other_message, _) = raised(outcomes)
    assert names[0] == other_names[0] == "CheckpointError"
    assert "must be empty or hold" in message
    assert other_message.startswith("training: the first process failed: ")
    assert entries(tmp_path / "run") == ["notes.txt"]
