"""When checkpoints are written, and which are kept."""

import shutil
from types import SimpleNamespace

import pytest

from continued_runs import assert_same_run, steps_of, stop
from diffattn.files.folders import write_manifest
from diffattn.lab.training.config import EngineConfig
from diffattn.lab.training.run import train
from diffattn.lab.training.sharding import CheckpointCallback, clear_checkpoints, last_checkpoint
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from record_files import entries


def test_they_need_not_be_where_evaluations_are(finished, make_run, data, tmp_path):
    """Rows of the log are means over steps on both sides of the stop, and the same as ever."""
    folder = tmp_path / "run"
    config = make_run("diff", engine={"save_every": 1, "keep_checkpoints": 3})
    stop(config, data, folder, 7)
    assert entries(folder / "checkpoints") == [f"checkpoint-{step}" for step in (4, 5, 6)]
    # Another interval is no other run.
    assert steps_of(make_run("diff"), data, folder) == list(range(7, 13))
    assert_same_run(folder, finished / "diff")


@pytest.mark.scheduled
def test_some_stay_and_models_load_from_them(finished, make_run, data, tmp_path):
    config = make_run("diff", engine={"save_every": 3, "keep_every": 6})
    stop(config, data, tmp_path / "run", 11)
    assert entries(tmp_path / "run" / "checkpoints") == ["checkpoint-6", "checkpoint-9"]
    train(config, data, tmp_path / "run")
    assert_same_run(tmp_path / "run", finished / "diff")
    kept = tmp_path / "run" / "kept"
    assert entries(kept) == ["checkpoint-12", "checkpoint-6"]
    assert not (tmp_path / "run" / "checkpoints").exists()
    last, middle = (DiffTransformerForCausalLM.from_pretrained(kept / n) for n in entries(kept))
    end = DiffTransformerForCausalLM.from_pretrained(tmp_path / "run" / "model")
    weights = [model.model.embed_tokens.weight for model in (last, middle, end)]
    assert weights[0].equal(weights[2])
    assert not weights[0].equal(weights[1])


def write(checkpoints, step, text, *, whole=True):
    folder = checkpoints / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "weights").write_text(text)
    if whole:
        write_manifest(folder)


def at(step):
    return SimpleNamespace(global_step=step, is_world_process_zero=True)


@pytest.mark.parametrize("damage", ["half-written", "altered"])
def test_a_damaged_one_ahead_of_the_run_is_not_kept(damage, tmp_path):
    folder = tmp_path / "checkpoints"
    write(folder, 0, "killed while it was written", whole=False)
    write(folder, 10, "whole")
    write(folder, 20, "whole")
    write(folder, 30, "half", whole=damage == "altered")
    (folder / "checkpoint-30" / "weights").write_text("other")
    assert last_checkpoint(folder, print).name == "checkpoint-20"
    write(folder, 25, "whole")
    engine = EngineConfig(keep_every=10, keep_checkpoints=1)
    with pytest.warns(UserWarning, match="checkpoint-0 is not whole and is not kept"):
        CheckpointCallback(folder, engine).on_save(None, at(25), None)
    assert entries(folder) == ["checkpoint-25"]
    assert entries(tmp_path / "kept") == ["checkpoint-10", "checkpoint-20"]


def test_a_first_checkpoint_that_is_not_whole_is_said_to_be_the_only_one(tmp_path):
    messages = []
    for step in (4, 8):
        write(tmp_path, step, "half", whole=False)
    assert last_checkpoint(tmp_path, messages.append) is None
    assert [line.partition(": ")[0] for line in messages] == [
        "checkpoint-8 is not whole, an earlier one is used",
        "checkpoint-4 is not whole, training begins anew",
    ]


def test_what_was_just_saved_is_never_removed(tmp_path):
    """Though a number is higher: of one that was not whole, or the run would be there."""
    folder = tmp_path / "checkpoints"
    write(folder, 20, "whole")
    write(folder, 30, "half", whole=False)
    write(folder, 27, "saved before the process ended")
    CheckpointCallback(folder, EngineConfig(keep_checkpoints=1)).on_save(None, at(27), None)
    assert entries(folder) == ["checkpoint-27"]
    assert last_checkpoint(folder, print) == folder / "checkpoint-27"


def test_what_a_user_puts_beside_them_stays(tmp_path):
    folder = tmp_path / "checkpoints"
    for step in (10, 20):
        write(folder, step, "whole")
    shutil.copytree(folder / "checkpoint-20", folder / "checkpoint-30-mine")
    assert last_checkpoint(folder, print) == folder / "checkpoint-20"
    CheckpointCallback(folder, EngineConfig(keep_checkpoints=1)).on_save(None, at(20), None)
    assert entries(folder) == ["checkpoint-20", "checkpoint-30-mine"]


def test_a_kept_one_is_of_the_steps_that_count(tmp_path):
    """After a roll-back a step is done again, with other weights."""
    folder = tmp_path / "checkpoints"
    for text in ("undone", "done again"):
        write(folder, 10, text)
        clear_checkpoints(folder, keep_every=10)
        assert not folder.exists()
    assert (tmp_path / "kept" / "checkpoint-10" / "weights").read_text() == "done again"
    assert entries(tmp_path / "kept") == ["checkpoint-10"]
