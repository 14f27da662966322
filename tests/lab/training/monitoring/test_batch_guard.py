"""Bad batches are left out, the same way however often a run is interrupted."""

import math

import pytest
import torch

from continued_runs import assert_same_files, steps_of, stop
from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.io import read_json, read_jsonl, write_jsonl
from diffattn.lab.data.tokens import TokenDataset
from diffattn.lab.training.callbacks import DivergenceError
from diffattn.lab.training.monitoring.guard import BatchGuard, GuardStop
from diffattn.lab.training.run import train
from diffattn.lab.training.trainer import optimizer_and_scheduler, training_order
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

SAME = ("metrics.jsonl", "guard.jsonl", "results.json", "model/model.safetensors")


def broken(model, loss):
    return loss * math.nan


def weights_of(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


def trained_by_hand(config, data, left_out):
    """A bare loop that makes no update at some steps."""
    torch.manual_seed(config.train.seed)
    model = DiffTransformerForCausalLM(config.model)
    optimizer, scheduler = optimizer_and_scheduler(model, config.train)
    windows = training_order(TokenDataset(data.train, config.train.seq_len), config.train)
    for step in range(config.train.num_steps):
        ids = torch.stack([windows[4 * step + i]["input_ids"] for i in range(4)])
        if step + 1 not in left_out:
            model(input_ids=ids, labels=ids).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.train.max_grad_norm)
            optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return model


def test_a_batch_without_a_finite_loss_is_left_out(make_run, bad_batches, data, tmp_path):
    config = make_run(guard={"not_finite": "skip"})
    bad_batches(config, {6: broken})
    messages = []
    train(config, data, tmp_path / "whole", on_message=messages.append)
    assert messages == ["the loss was nan at step 6: step 6 is left out (skip)"]
    (row,) = read_jsonl(tmp_path / "whole" / "guard.jsonl")
    order = training_order(TokenDataset(data.train, 32), config.train)
    expected = {"action": "skip", "reason": "the loss", "value": "nan"}
    expected |= dict.fromkeys(("step", "first", "last"), 6)
    assert row == expected | {"windows": list(order.indices[20:24])}
    rows = read_jsonl(tmp_path / "whole" / "metrics.jsonl")
    norms = [row["gradient_norm"] for row in rows if "train_loss" in row]
    assert [i for i, norm in enumerate(norms) if norm is None] == [3]
    assert len(norms) == 7
    assert all(math.isfinite(r["train_loss"]) for r in rows if "train_loss" in r)
    expected = trained_by_hand(config, data, {6})
    model = DiffTransformerForCausalLM.from_pretrained(tmp_path / "whole" / "model")
    for name, x in model.state_dict().items():
        assert torch.allclose(x, expected.state_dict()[name], atol=1e-6), name
    stop(config, data, tmp_path / "again", 7)  # known after a restart from before the batch
    train(config, data, tmp_path / "again")
    assert_same_files(tmp_path / "again", tmp_path / "whole", SAME)


def test_decisions_that_are_lost_cost_no_checkpoint(make_run, bad_batches, data, tmp_path):
    """A bit, or all of them; each is said, and the file can be put back."""
    config = make_run(guard={"not_finite": "skip"})
    bad_batches(config, {2: broken})
    stop(config, data, tmp_path, 7)
    log, checkpoint = tmp_path / "guard.jsonl", tmp_path / "checkpoints" / "checkpoint-4"
    content = log.read_text()
    for damaged, message in (
        (content.replace('"first": 2', '"first": 3'), r"guard\.jsonl:1: must be as it was written"),
        ("", r"must leave out step 2, as checkpoint-4 did, got no such decision\."),
    ):
        log.write_text(damaged)
        with pytest.raises(CheckpointError, match=f"{message}.* Put the file back"):
            train(config, data, tmp_path)
        assert checkpoint.is_dir()
    log.write_text(content + '{"step": 7')  # a killed writer's half row is no damage
    assert steps_of(config, data, tmp_path)[0] == 5
    assert log.read_text() == content


@pytest.mark.scheduled
def test_rolling_back_leaves_out_what_led_there(make_run, bad_batches, data, tmp_path):
    """As if both batches had been bad; checkpoints of undone steps do not count."""
    config = make_run(guard={"not_finite": "roll_back"})
    both = make_run(guard={"not_finite": "skip"})
    bad_batches(both, {5: broken, 6: broken})
    train(both, data, tmp_path / "both")
    bad_batches(config, {6: broken})
    train(config, data, tmp_path / "whole")
    assert weights_of(tmp_path / "whole") == weights_of(tmp_path / "both")
    (row,) = read_jsonl(tmp_path / "whole" / "guard.jsonl")
    assert (row["action"], row["step"], row["first"], row["last"]) == ("roll_back", 6, 5, 6)
    often = make_run(guard={"not_finite": "roll_back"}, engine={"save_every": 1})
    stop(often, data, tmp_path / "again", 7)
    train(config, data, tmp_path / "again")
    assert_same_files(tmp_path / "again", tmp_path / "whole", SAME)


@pytest.mark.parametrize("save_every", [1, 3], ids=["many between", "none at evaluations"])
def test_rolling_back_finds_the_evaluation_it_goes_to(
    save_every, make_run, bad_batches, data, tmp_path
):
    """However often checkpoints are written; steps 1 and 2 are not done again."""
    engine, steps = {"save_every": save_every, "keep_checkpoints": 1}, {"num_steps": 4}
    steps |= {"evaluate_every": 2, "warmup_steps": 0}
    config = make_run(guard={"not_finite": "roll_back"}, engine=engine, **steps)
    bad_batches(config, {4: broken})
    assert steps_of(config, data, tmp_path) == [1, 2, 3, 3, 4]
    (row,) = read_jsonl(tmp_path / "guard.jsonl")
    assert (row["first"], row["last"]) == (3, 4)


@pytest.mark.scheduled
def test_weights_that_are_no_numbers_are_undone(make_run, bad_batches, data, tmp_path):
    """The update of step 6 is of a finite gradient; that of no later step would be."""

    def poison(model, loss):
        vector = model.model.layers[0].self_attn.lambda_q1
        vector.data = torch.full_like(vector.data, math.nan)
        return loss

    config = make_run(guard={"not_finite": "roll_back"})
    bad_batches(config, {6: poison})
    results = train(config, data, tmp_path / "run")
    assert math.isfinite(results["validation_loss"])
    (row,) = read_jsonl(tmp_path / "run" / "guard.jsonl")
    assert (row["first"], row["last"]) == (5, 6)


@pytest.mark.scheduled
def test_there_is_a_limit(make_run, bad_batches, data, tmp_path):
    config = make_run(guard={"not_finite": "skip", "limit": 2})
    bad_batches(config, dict.fromkeys((3, 6, 7), broken))
    for _ in range(2):  # starting it again changes nothing
        with pytest.raises(DivergenceError, match=r"at most guard.limit=2 times, got the loss"):
            train(config, data, tmp_path / "run")
        assert [row["step"] for row in read_jsonl(tmp_path / "run" / "guard.jsonl")] == [3, 6]
    assert read_json(tmp_path / "run" / "postmortem.json")["step"] == 7


def test_a_roll_back_that_undoes_nothing_ends_the_run(make_run, tmp_path):
    """Before the first step, and where all has been left out already."""
    write_jsonl(tmp_path / "guard.jsonl", [{"step": 6, "first": 5, "last": 6}])
    guard = BatchGuard(tmp_path, make_run(guard={"not_finite": "roll_back"}), print)
    for step in (0, 5, 6):
        with pytest.raises(GuardStop, match=f"the loss must stay finite, got nan at step {step}"):
            guard.roll_back(step, "the loss", math.nan)


@pytest.mark.scheduled
@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_a_spike_is_found_by_the_definition_of_the_studies(
    policy, make_run, bad_batches, data, tmp_path
):
    steps = {"num_steps": 36, "evaluate_every": 36, "learning_rate": 1e-3}
    config = make_run(guard={"spike": policy}, **steps)
    if policy == "skip":  # a run without spikes is not touched
        train(make_run(**steps), data, tmp_path / "plain")
        train(config, data, tmp_path / "guarded")
        assert_same_files(tmp_path / "guarded", tmp_path / "plain", SAME[::3])
        assert not (tmp_path / "guarded" / "guard.jsonl").exists()
    bad_batches(config, {34: lambda model, loss: 3 * loss})
    if policy == "stop":
        with pytest.raises(DivergenceError, match=r"must not stick out .* at step 34"):
            train(config, data, tmp_path / "run")
        return
    train(config, data, tmp_path / "run")
    (row,) = read_jsonl(tmp_path / "run" / "guard.jsonl")
    assert (row["step"], row["action"], row["reason"]) == (34, "skip", "the loss")


def test_what_cannot_be_kept_to_is_refused(make_run, data, tmp_path, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for guard in ({"not_finite": "skip"}, {"spike": "stop"}, {"lam": "clip"}):
        with pytest.raises(ConfigError, match="guard must be left at its defaults"):
            train(make_run(guard=guard), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
