"""Runs on recall tasks: what is scored, when they end, and that they continue."""

import os
import signal
from dataclasses import replace

import pytest
import torch

from continued_runs import Interruption, assert_same_files, interrupt_at
from diffattn.errors import ShapeError
from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.catalog.models import TYPES
from diffattn.lab.data.recall_tasks import LookupConfig, NoisyRecallConfig
from diffattn.lab.data.synthetic import generate
from diffattn.lab.records.run import RunRecord
from diffattn.lab.training import recall
from diffattn.lab.training.config import RecallConfig, TrainConfig
from diffattn.lab.training.monitoring.termination import Terminated
from diffattn.lab.training.practical_measures import GROUPS, attention_shares, key_groups
from diffattn.lab.training.recall import held_out, recall_score, solved_step, train_recall
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.loading import load_model
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.probes.activations import layer_lambdas
from record_files import entries

TINY = {"num_keys": 4, "num_values": 4, "num_noise": 4, "num_pairs": 2}
TASKS = {
    "lookup": LookupConfig(context_len=8, num_queries=3, **TINY),
    "noisy_recall": NoisyRecallConfig(noise_ratio=0.5, num_queries=3, **TINY),
}


def make_config(task, attention_type="diff", hidden_size=16, num_heads=2, **train):
    task = TASKS.get(task, task)
    model = DiffTransformerConfig(
        attention_type="softmax",
        vocab_size=task.vocab_size,
        hidden_size=hidden_size,
        intermediate_size=hidden_size,
        num_hidden_layers=2,
        num_heads=num_heads,
        head_dim=hidden_size // num_heads,
        max_position_embeddings=task.seq_len,
        initializer_range=0.1,
        tie_word_embeddings=False,
    )
    settings = {"num_steps": 12, "warmup_steps": 2, "log_every": 2, "evaluate_every": 2}
    settings |= {"batch_tokens": 4 * task.seq_len, "seq_len": task.seq_len}
    settings |= {"evaluation_tokens": 10 * task.seq_len, "seed": 5, "data_seed": 5}
    return RecallConfig(
        name="run",
        model=model.twin(attention_type).config,
        train=TrainConfig(**(settings | train)),
        task=task,
    )


@pytest.mark.parametrize(("attention_type", "task"), list(zip(TYPES, [*TASKS] * 2, strict=True)))
def test_a_run_leaves_its_records(task, attention_type, tmp_path):
    config = make_config(task, attention_type, num_steps=2, warmup_steps=1)
    results = train_recall(config, tmp_path / "run", facts={"parameter_difference": 7})
    assert results == read_json(tmp_path / "run" / "results.json")
    logs = ["launches.jsonl", "metrics.jsonl"]
    assert entries(tmp_path / "run") == ["costs.json", *logs, "model", "results.json", "run.json"]
    record = RunRecord.read(tmp_path / "run")
    assert record.config == config.resolved()
    assert record.model["parameter_difference"] == 7
    rows = [row for row in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "accuracy" in row]
    assert [row["step"] for row in rows] == [0, 2]
    assert len(rows[0]["writes"]) == 2 * config.model.num_hidden_layers
    assert results["largest_write"] == max(rows[0]["writes"])
    assert "writes" not in rows[1]
    for row in rows:
        assert len(row["by_query"]) == config.task.num_queries
        assert row["accuracy"] == pytest.approx(sum(row["by_query"]) / len(row["by_query"]))
    assert (results["solved"], results["solved_step"], results["steps"]) == (False, None, 2)
    assert results["diverged"] is False
    assert results["sequences"] == 8
    assert ("lam" in rows[0]) == (attention_type != "softmax")
    _, tokenizer = load_model(str(tmp_path / "run"))
    test = held_out(config, recall.TEST)
    example = test.input_ids[0, : test.queries[0, 0] + 1].tolist()
    assert tokenizer(tokenizer.init_kwargs["example"])["input_ids"] == example


def test_the_score_is_that_of_the_answers():
    """Against logits computed here; position and order of the queries included."""
    config = make_config("lookup")
    torch.manual_seed(0)
    model = DiffTransformerForCausalLM(config.model)
    batch = held_out(config, 0)
    scored, loss = recall_score(model, batch)
    with torch.no_grad():
        log_probability = model(input_ids=batch.input_ids).logits.log_softmax(-1)
    rows = range(len(batch.input_ids))
    right = log_probability.argmax(-1) == batch.labels
    hits = [[bool(right[row, place]) for place in batch.queries[row]] for row in rows]
    assert scored.bool().tolist() == hits
    at = batch.labels >= 0
    measured = -log_probability[at].gather(1, batch.labels[at][:, None])
    assert loss == pytest.approx(float(measured.mean()), rel=1e-5)
    assert model.training


def test_validation_test_and_training_sequences_differ():
    config = make_config("noisy_recall")
    validation, test = held_out(config, 0), held_out(config, 1)
    training = generate(config.task, 10, seed=config.train.data_seed)
    assert not torch.equal(validation.input_ids, test.input_ids)
    for batch in (validation, test):
        assert not torch.equal(batch.input_ids, training.input_ids)
    other = replace(config, train=replace(config.train, seed=9, data_seed=9))
    assert torch.equal(held_out(other, 1).input_ids, test.input_ids)


@pytest.mark.parametrize(
    ("accuracies", "step"), [([0.5, 0.99, 0.98, 0.99], None), ([0.5, 0.99, 0.98, 0.99, 1.0], 30)]
)
def test_solved_means_twice_in_a_row(accuracies, step):
    rows = [{"step": 10 * i, "accuracy": value} for i, value in enumerate(accuracies)]
    rows.insert(4, {"step": 30, "train_loss": 1.0})
    assert solved_step(rows, 0.99) == step
    assert solved_step(rows[:1], 0.0) is None


def test_a_solved_run_ends_early(tmp_path):
    """One pair, no noise: the only value of the context is the answer, so copying solves it."""
    sizes = {"num_pairs": 1, "num_keys": 2, "num_values": 2, "num_noise": 1}
    task = NoisyRecallConfig(noise_ratio=0, num_queries=2, **sizes)
    settings = {"num_steps": 400, "batch_tokens": 16 * task.seq_len}
    settings |= dict.fromkeys(("learning_rate", "final_learning_rate"), 1e-2)
    settings |= dict.fromkeys(("evaluate_every", "log_every"), 20)
    config = make_config(task, "softmax", **settings)
    results = train_recall(config, tmp_path / "run")
    assert results["solved"]
    assert results["steps"] == results["solved_step"] + 20 < 400
    assert results["test_accuracy"] == 1
    assert read_jsonl(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == results["steps"]

    def terminate(step, loss):
        if step == results["steps"]:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Terminated):  # with a checkpoint of the step at which it ends
        train_recall(config, tmp_path / "again", on_progress=terminate)
    assert train_recall(config, tmp_path / "again") == results
    assert_same_files(tmp_path / "again", tmp_path / "run", ("metrics.jsonl", "results.json"))


def test_a_run_that_diverges_ends_unsolved(tmp_path):
    """An outcome like any other: the rest of a study goes on."""
    rate = {"learning_rate": 1e25, "final_learning_rate": 1e25, "warmup_steps": 0}
    config = make_config("noisy_recall", "diff_v2", num_steps=8, **rate)
    results = train_recall(config, tmp_path / "run")
    assert results["steps"] < 8
    assert (results["diverged"], results["solved"]) == (True, False)
    assert results["validation_loss"] is None
    assert (results["test_accuracy"], results["lam"]) == (0, None)
    assert train_recall(config, tmp_path / "run") == results


def test_a_mistake_of_shapes_is_no_divergence(tmp_path, monkeypatch):
    def fail(*args, **options):
        raise ShapeError("of ours")

    monkeypatch.setattr(recall, "_answer_loss", fail)
    with pytest.raises(ShapeError, match="of ours"):
        train_recall(make_config("noisy_recall"), tmp_path / "run")


def test_an_interrupted_run_ends_as_an_unbroken_one(tmp_path):
    config = make_config("noisy_recall", "shared_diff", num_steps=12)
    train_recall(config, tmp_path / "whole")
    with pytest.raises(Interruption):
        train_recall(config, tmp_path / "run", on_progress=interrupt_at(10))
    assert not (tmp_path / "run" / "results.json").exists()
    steps = []
    train_recall(config, tmp_path / "run", on_progress=lambda step, loss: steps.append(step))
    assert steps == list(range(9, 13))  # from the checkpoint at step 8
    launches = read_jsonl(tmp_path / "run" / "launches.jsonl")
    assert [launch["step"] for launch in launches] == [0, 8]
    assert_same_files(tmp_path / "run", tmp_path / "whole", ("metrics.jsonl", "results.json"))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_attention_falls_on_groups_of_keys():
    """Every key is in one group; the maps' rows sum to 1, net weights to 1 − λ."""
    config = make_config("noisy_recall", "diff")
    batch = recall.held_out(config, recall.TEST)
    groups = key_groups(config.task, batch)
    answers = batch.labels.gather(1, batch.queries)
    is_answer = groups == GROUPS.index("answer")
    assert (is_answer.sum(-1) >= 1).all()
    shown = batch.input_ids[:, None].expand_as(groups)[is_answer]
    assert (shown == answers[:, :, None].expand_as(groups)[is_answer]).all()
    assert shown.unique().numel() > 1
    model = DiffTransformerForCausalLM(config.model).eval()
    shares = attention_shares(model, config.task, batch)
    for name in ("map_1", "map_2", "size"):
        assert sum(shares[name].values()) == pytest.approx(1, abs=1e-5)
    lam = layer_lambdas(model, input_ids=batch.input_ids[:4])[-1]
    assert sum(shares["net"].values()) == pytest.approx(1 - lam, abs=1e-4)
