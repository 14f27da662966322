"""A run writes what it did, the same every time, and refuses what it cannot or must not do."""

import functools
import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer

from continued_runs import SAME
from diffattn.errors import CheckpointError, ConfigError, DiffAttnError
from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.catalog.models import TYPES
from diffattn.lab.data.ngrams import CONTEXT_PARTS, PARTS, QUARTERS, context_parts
from diffattn.lab.data.tokens import TokenDataset
from diffattn.lab.records.run import RunRecord
from diffattn.lab.training.callbacks import require_finite
from diffattn.lab.training.run import train
from diffattn.lab.training.trainer import RunTrainer, learning_rate_factor, training_order
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.models.twins import parameter_count
from record_files import contents, snapshot


@pytest.mark.parametrize("attention_type", TYPES)
def test_a_run_learns_and_writes_its_files(attention_type, finished, make_run, data):
    folder, config = finished / attention_type, make_run(attention_type)
    records = ["costs.json", "launches.jsonl", "metrics.jsonl", "results.json", "run.json"]
    hashed = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    hashed |= {"tokenizer_config.json", "modeling_diff_transformer.py"}
    of_model = {f"model/{name}" for name in (*hashed, "manifest.json", "README.md")}
    assert contents(folder).keys() == {*records, *of_model}
    assert read_json(folder / "model" / "manifest.json")["files"].keys() == hashed
    rows = read_jsonl(folder / "metrics.jsonl")
    results = read_json(folder / "results.json")
    assert rows[0]["validation_loss"] == pytest.approx(math.log(300), abs=0.3)
    assert results["validation_loss"] < rows[0]["validation_loss"] - 1
    assert results["tokens"] == 12 * 128
    ratio = results["validation_bits_per_byte"] / results["validation_loss"]
    assert ratio == pytest.approx(1 / math.log(2) / data.bytes_per_token)
    has_lam = attention_type != "softmax"
    assert (results["lam"] is not None) == has_lam
    if attention_type in ("diff", "shared_diff"):
        assert results["lambda_init"] == pytest.approx([0.2, 0.8 - 0.6 * math.exp(-0.3)])
    else:
        assert results["lambda_init"] is None
    if has_lam:
        assert [row["lam"] for row in rows if "lam" in row][-1] == results["lam"]
    record = RunRecord.read(folder)
    assert record.name == config.name
    assert record.model["parameters"] == parameter_count(config.model)
    assert record.config["model"] == config.model.settings()
    assert record.config["data"]["train_hash"] == data.facts()["train_hash"]
    operator = "softmax_attention" if attention_type == "softmax" else "diff_attention"
    assert list(record.backends) == [operator]
    text = "".join((folder / name).read_text() for name in SAME[:2])
    assert "seconds" not in text
    assert "per_second" not in text
    assert (record.device, record.seed) == ("cuda" if torch.cuda.is_available() else "cpu", 0)


def test_rows_are_ordered_unique_and_complete(finished, make_run):
    rows = read_jsonl(finished / "diff" / "metrics.jsonl")
    train_steps = [row["step"] for row in rows if "train_loss" in row]
    validation_steps = [row["step"] for row in rows if "validation_loss" in row]
    assert train_steps == [1, 3, 4, 6, 8, 9, 12]  # every third, the first, and at checkpoints
    assert validation_steps == [0, 4, 8, 12]
    steps = [row["step"] for row in rows]
    assert steps == sorted(steps)
    assert all(row["tokens"] == 128 * row["step"] for row in rows)
    config = make_run("diff").train
    for row in rows:
        if "train_loss" in row:
            rate = config.learning_rate * learning_rate_factor(row["step"] - 1, config)
            assert row["learning_rate"] == pytest.approx(rate)
            assert 0 < row["gradient_norm"] < 100


def test_the_seed_changes_the_weights_and_the_data_seed_the_order(
    finished, make_run, data, tmp_path
):
    for changes in ({"seed": 1}, {"data_seed": 1}):
        train(make_run("diff", num_steps=3, **changes), data, tmp_path / str(changes))
    folders = [finished / "diff", *sorted(tmp_path.iterdir())]
    first, second = zip(*(read_jsonl(f / "metrics.jsonl")[:2] for f in folders), strict=True)
    before = [row["validation_loss"] for row in first]
    assert before[0] == before[1] != before[2]  # other initial weights
    assert len({row["train_loss"] for row in second}) == 3


def test_one_pass_gives_the_loss_that_transformers_measures(make_run, data, tmp_path, monkeypatch):
    """The loop of ``transformers.Trainer`` is the oracle; ours sees each window once."""
    actual, pairs = RunTrainer.evaluation_loop, []

    def both(self, dataloader, description, prediction_loss_only=None, **rest):
        loss = f"{rest['metric_key_prefix']}_loss"
        expected = Trainer.evaluation_loop(self, dataloader, description, True, **rest)
        passes = []
        handle = self.model.model.register_forward_pre_hook(
            lambda module, args: passes.append(len(args[0]))
        )
        measured = actual(self, dataloader, description, **rest)
        handle.remove()
        assert sum(passes) == len(dataloader.dataset)
        pairs.append((measured.metrics[loss], expected.metrics[loss]))
        return measured

    monkeypatch.setattr(RunTrainer, "evaluation_loop", both)
    single = {"num_steps": 1, "warmup_steps": 0, "evaluate_every": 1}
    train(make_run("diff", precision="bfloat16", **single), data, tmp_path / "run")
    assert len(pairs) == 3  # before the first step, after the last, and on all windows
    for measured, expected in pairs:
        assert measured == pytest.approx(expected, rel=1e-6)


def test_parts_add_up_to_the_losses(finished, data):
    rows = [row for row in read_jsonl(finished / "diff" / "metrics.jsonl") if "lam" in row]
    results = read_json(finished / "diff" / "results.json")
    windows = np.stack([i["input_ids"].numpy() for i in TokenDataset(data.validation, 32)])
    counts = {name: int(mask.sum()) for name, mask in context_parts(windows).items()}
    parts = results["validation_parts"]
    assert {name: part["tokens"] for name, part in parts.items()} == counts
    for names in (CONTEXT_PARTS, QUARTERS):
        total = sum(parts[name]["loss"] * counts[name] for name in names)
        assert sum(counts[name] for name in names) == windows[:, 1:].size
        assert total / windows[:, 1:].size == pytest.approx(results["validation_loss"])
    for row in rows:
        assert set(row["validation_parts"]) == set(PARTS)
        losses = [row["validation_parts"][name] for name in CONTEXT_PARTS]
        assert min(losses) < row["validation_loss"] < max(losses)
    # 13 words in windows of 32 tokens: what has been read together before is told first.
    last = rows[-1]["validation_parts"]
    assert last["repeated_bigram"] < last["first_occurrence"]


def test_costs_stand_apart(finished):
    costs = read_json(finished / "diff" / "costs.json")
    assert (costs["schema"], costs["run"]) == (1, "diff-tiny")
    assert costs["wall_seconds"] > 0
    assert costs["cpu_seconds"] > 12 * costs["step_seconds"] / 2
    assert costs["tokens_per_second"] == pytest.approx(128 / costs["step_seconds"])
    assert costs["peak_bytes"] > 10**6


def test_every_type_and_every_seed_reads_the_same_tokens(make_run, data, tmp_path, monkeypatch):
    seen, forward = [], DiffTransformerForCausalLM.forward

    @functools.wraps(forward)
    def spy(self, *args, **kwargs):
        if self.training:
            seen.append(kwargs["input_ids"].cpu())
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(DiffTransformerForCausalLM, "forward", spy)
    runs = [make_run(name, num_steps=3, seed=i) for i, name in enumerate(("softmax", "diff_v2"))]
    for run in runs:
        train(run, data, tmp_path / run.name)
    order = training_order(TokenDataset(data.train, 32), runs[0].train)
    expected = torch.stack([item["input_ids"] for item in order])
    assert len(expected) == 3 * 4
    assert torch.equal(torch.cat(seen), torch.cat([expected, expected]))


def test_each_pass_is_a_new_permutation(make_run):
    config = make_run(num_steps=25).train  # 100 windows of 30: three passes and a third
    passes = torch.tensor(training_order(range(30), config).indices).split(30)
    assert [len(single) for single in passes] == [30, 30, 30, 10]
    for single in passes[:3]:
        assert single.sort().values.tolist() == list(range(30))
    assert passes[0].tolist() != passes[1].tolist() != list(range(30))
    # All that a process holds of it: a list of Python's integers takes five times as much.
    assert training_order(range(30), config).indices.nbytes == 8 * 100
    again = training_order(range(30), replace(config, seed=5, learning_rate=1.0))
    assert (again.indices == training_order(range(30), config).indices).all()
    other = training_order(range(30), replace(config, data_seed=5))
    assert (other.indices != again.indices).any()
    longer = training_order(range(30), replace(config, num_steps=50))
    assert (longer.indices[:100] == again.indices).all()


def test_gradient_accumulation_equals_the_whole_batch(finished, make_run, data, tmp_path):
    whole = read_jsonl(finished / "diff" / "metrics.jsonl")
    # The learning rates differ from step 3 on, whose loss is that of the weights before.
    train(make_run("diff", micro_batch_sequences=1, num_steps=3), data, tmp_path / "run")
    parts = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in parts[:3]] == [row["step"] for row in whole[:3]] == [0, 1, 3]
    for part, row, rounding in zip(parts[1:3], whole[1:3], (1e-6, 1e-5), strict=True):
        assert part["train_loss"] == pytest.approx(row["train_loss"], rel=rounding)
        assert part["gradient_norm"] == pytest.approx(row["gradient_norm"], rel=10 * rounding)


def test_bfloat16_is_autocast_and_leaves_weights_in_float32(finished, make_run, data, tmp_path):
    results = train(make_run("diff", precision="bfloat16"), data, tmp_path / "run")
    exact = read_json(finished / "diff" / "results.json")
    assert results["validation_loss"] == pytest.approx(exact["validation_loss"], rel=0.02)
    assert results["validation_loss"] != exact["validation_loss"]
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    reloaded = DiffTransformerForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert reloaded.config.use_cache is True  # transformers switches it off to train


@pytest.mark.parametrize(("attention_type", "learning_rate"), [("diff", 1e9), ("softmax", 1e25)])
def test_a_run_that_diverges_stops_with_one_line(
    attention_type, learning_rate, make_run, data, tmp_path
):
    config = make_run(attention_type, learning_rate=learning_rate, max_grad_norm=0.0)
    with pytest.raises(DiffAttnError, match=r"must stay finite, got .+ at step \d+") as error:
        train(config, data, tmp_path / "run")
    assert "A lower train.learning_rate may help" in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "results.json").exists()
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line)


def test_a_finished_run_is_not_run_again(finished, make_run, data, tmp_path, monkeypatch):
    """Nor where its model is damaged, which is said."""
    folder = shutil.copytree(finished / "diff", tmp_path / "run")
    (folder / "checkpoints").mkdir()  # killed between its last two steps
    monkeypatch.setattr(DiffTransformerForCausalLM, "__init__", None)
    before = snapshot(folder)
    assert train(make_run("diff"), data, folder) == read_json(folder / "results.json")
    assert snapshot(folder) == before
    assert not (folder / "checkpoints").exists()
    path = folder / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"~")
    before = snapshot(folder)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .* got other content\. .* To"):
        train(make_run("diff"), data, folder)
    assert snapshot(folder) == before


def test_data_that_the_run_cannot_read_is_refused_before_anything_is_written(
    make_run, data, tmp_path
):
    long = make_run("diff", seq_len=2_000, batch_tokens=2_000)
    with pytest.raises(ConfigError, match="the text is too short"):
        train(long, data, tmp_path / "run")
    config = make_run("diff")
    few = replace(config, data=replace(data.config, vocab_size=257))
    small = type(few.model)(**few.model.settings() | {"vocab_size": 257})
    few = replace(few, model=small)
    with pytest.raises(ConfigError, match=r"model.vocab_size must be at least the data's \d+, got"):
        train(few, data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [math.nan, [1.0, math.inf], {"quarter_1": 1.0, "b": -math.inf}])
def test_every_measured_number_must_be_finite(value):
    require_finite(7, {"a": 1.0, "b": [1.0, None], "c": {"quarter_1": 2.0}, "d": None})
    with pytest.raises(DiffAttnError, match=r"validation_\w+ must stay finite, .* at step 7"):
        require_finite(7, {"validation_numbers": value})
