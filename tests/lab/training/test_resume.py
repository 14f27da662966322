"""An interrupted run that is continued ends as if nothing had happened."""

import errno
import json
import resource
import shutil
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from transformers import Trainer

from continued_runs import assert_same_run, stop, stop_and_continue
from diffattn.errors import CheckpointError, DiffAttnError
from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.catalog.models import TYPES
from diffattn.lab.records.run import LAUNCHES
from diffattn.lab.training import run
from diffattn.lab.training.prepare import prepare_data
from diffattn.lab.training.run import train
from diffattn.lab.training.trainer import RunTrainer
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from record_files import entries, snapshot, write_record


@pytest.mark.sampled(one_of=4)
@pytest.mark.parametrize(
    ("attention_type", "step", "first"),
    [*((name, 7, 5) for name in TYPES), *(("diff", *i) for i in ((1, 1), (4, 1), (12, 9)))],
)
def test_every_type_continues_at_every_kind_of_step(
    attention_type, step, first, finished, make_run, data, tmp_path
):
    """From the last checkpoint, of steps 4 and 8."""
    steps = stop_and_continue(make_run(attention_type), data, tmp_path / "run", step)
    assert steps == list(range(first, 13))
    assert_same_run(tmp_path / "run", finished / attention_type)


def test_a_tied_head_is_not_missed_in_a_checkpoint(make_run, monkeypatch):
    messages = []
    monkeypatch.setattr("transformers.trainer.logger.warning", messages.append)
    trainer = RunTrainer.__new__(RunTrainer)
    trainer.model = model = DiffTransformerForCausalLM(deepcopy(make_run().model))
    weights = {name: x for name, x in model.state_dict().items() if name != "lm_head.weight"}
    trainer._issue_warnings_after_load(model.load_state_dict(weights, strict=False))
    assert messages == []
    del weights["model.norm.weight"]
    trainer._issue_warnings_after_load(model.load_state_dict(weights, strict=False))
    assert ["model.norm.weight" in line for line in messages] == [True]


def test_with_accumulation_and_autocast(make_run, data, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    settings = {"micro_batch_sequences": 2, "precision": "bfloat16"}
    config = make_run("diff", **settings, num_steps=6, evaluate_every=2)
    train(config, data, tmp_path / "whole")
    assert "--set train.precision=float32" in run.precision_advice(config)
    stop_and_continue(config, data, tmp_path / "run", 4)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_every_launch_is_recorded(make_run, data, tmp_path, monkeypatch):
    """When, from where, by what and how; a row that a killed process left half is written anew.

    Another number of threads is told: sums over another number of parts round otherwise.
    """
    folder, config = tmp_path / "run", make_run("diff")
    messages, threads = [], torch.get_num_threads()
    stop(config, data, folder, 2)
    engine = {"keep_checkpoints": 3, "loss_chunk_tokens": 512}
    stop(make_run("diff", engine=engine), data, folder, 6)
    with (folder / LAUNCHES).open("a", encoding="utf-8") as file:
        file.write('{"started": "2')
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    train(config, data, folder, on_message=messages.append)
    assert f"OMP_NUM_THREADS={threads} and goes on with {threads + 1}" in messages[0]
    train(config, data, folder)  # finished: nothing is launched
    rows = read_jsonl(folder / LAUNCHES)
    assert [row["step"] for row in rows] == [0, 0, 4]
    assert [row["engine"]["keep_checkpoints"] for row in rows] == [2, 3, 2]
    first = read_json(folder / "run.json")
    for row in rows:
        assert row["engine"].keys() == first["engine"].keys()
        assert row["versions"] == first["versions"]
        assert (row["commit"], row["device"]) == (first["commit"], first["device"])
    assert rows[0]["engine"] == first["engine"]
    assert [row["threads"] for row in rows] == [threads, threads, threads + 1]
    assert first["created"] <= rows[0]["started"] <= rows[1]["started"] <= rows[2]["started"]


def test_a_checkpoint_and_a_row_that_are_not_whole_are_made_again(
    finished, make_run, data, tmp_path
):
    """Costs of both parts add up."""

    def damage(checkpoints):
        (checkpoints / "checkpoint-8" / "trainer_state.json").write_bytes(b"{")
        path = checkpoints.parent / "metrics.jsonl"
        path.write_bytes(path.read_bytes()[:-20])
        path = checkpoints.parent / "costs.json"
        spent = {"wall_seconds": 5_000.0, "cpu_seconds": 4_000.0, "peak_bytes": 10**15}
        write_record(path, read_json(path) | spent)

    steps = stop_and_continue(make_run("diff"), data, tmp_path / "run", 10, damage)
    assert steps[0] == 5
    assert_same_run(tmp_path / "run", finished / "diff")
    costs = read_json(tmp_path / "run" / "costs.json")
    assert 5_000 < costs["wall_seconds"] < 5_500
    assert 4_000 < costs["cpu_seconds"] < 4_500
    assert costs["peak_bytes"] == 10**15


def test_after_the_last_step_only_the_end_is_repeated(
    finished, make_run, data, tmp_path, monkeypatch
):
    def full(path, value):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(run, "write_json", full)  # results.json
        with pytest.raises(OSError, match="No space left"):
            train(make_run("diff"), data, folder)
    earlier = read_json(folder / "costs.json")
    monkeypatch.setattr(Trainer, "training_step", None)
    train(make_run("diff"), data, folder)
    assert_same_run(folder, finished / "diff")
    costs = read_json(folder / "costs.json")
    assert costs["step_seconds"] == earlier["step_seconds"]
    assert costs["wall_seconds"] > earlier["wall_seconds"]


def test_a_checkpoint_that_does_not_fit_is_one_line_and_loses_nothing(
    finished, make_run, data, tmp_path
):
    """Files above a size cannot be written: the weights, or only the optimizer's state."""
    folder, config = tmp_path / "run", make_run("diff")
    stop(config, data, folder, 7)
    saved, before = entries(folder / "checkpoints"), resource.getrlimit(resource.RLIMIT_FSIZE)
    message = r"checkpoint-8: must be written whole, got: .*The same command continues the run"
    for size in (60_000, 120_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            with pytest.raises(DiffAttnError, match=message):
                train(config, data, folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert entries(folder / "checkpoints") == saved
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            json.loads(line)
    train(config, data, folder)
    assert_same_run(folder, finished / "diff")


def test_what_changed_under_an_interrupted_run_is_named(make_run, data, corpus, tmp_path):
    """Its settings, its policies, its tokens; the folder stays as it was."""
    folder, config = tmp_path / "run", make_run("diff")
    stop(config, data, folder, 7)
    before = snapshot(folder)
    shutil.copytree(corpus, tmp_path / "text")
    (tmp_path / "text" / "00.txt").write_text("the cat sat on another mat", encoding="utf-8")
    changed = prepare_data(replace(data.config, source=str(tmp_path / "text")), tmp_path / "data")
    for other, tokens, named in (
        (make_run("diff", beta_2=0.99), data, r"train.beta_2 0.99 where 0.95 is recorded"),
        (make_run("diff", guard={"spike": "skip"}), data, "guard .*'spike': 'skip'.* where"),
        (config, replace(changed, config=data.config), r"data.\w+ .* where .* is recorded"),
    ):
        with pytest.raises(CheckpointError, match=f"same settings to be continued, got {named}"):
            train(other, tokens, folder)
    assert snapshot(folder) == before
