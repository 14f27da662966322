"""Runs that start from the weights of another run."""

import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_distributed import assert_same_losses

from children import launched, values
from continued_runs import assert_same_run, stop, stop_together
from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.training import initial
from diffattn.lab.training.config import DataConfig
from diffattn.lab.training.initial import initial_model, initial_weights
from diffattn.lab.training.prepare import prepare_data
from diffattn.lab.training.run import train
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


def extended(make_run, folder, attention_type="diff", **changes):
    """The next stage: twice the length, another θ, other initial seed."""
    config = make_run(attention_type, seq_len=64, seed=5, **changes)
    config.model.rope_parameters = {"rope_type": "default", "rope_theta": 640_000.0}
    return replace(config, init=initial_weights(folder, config.model))


@pytest.fixture(scope="module")
def second(make_run, data, finished, tmp_path_factory):
    """Folder of a second stage, trained without interruption; read-only."""
    folder = tmp_path_factory.mktemp("second") / "run"
    train(extended(make_run, finished / "diff"), data, folder)
    return folder


def test_the_first_losses_are_those_of_the_given_weights(make_run, data, finished, tmp_path):
    """Evaluated before step 1 on the whole split, as the run was that they come from."""
    config = make_run("diff", seed=5, evaluation_tokens=10**6, num_steps=4)
    config = replace(config, init=initial_weights(finished / "diff", config.model))
    train(config, data, tmp_path / "run")
    first = read_jsonl(tmp_path / "run" / "metrics.jsonl")[0]
    assert first["step"] == 0
    expected = read_json(finished / "diff" / "results.json")
    assert first["validation_loss"] == expected["validation_loss"]
    assert first["lam"] == expected["lam"]


def test_the_optimizer_starts_fresh_and_the_context_is_longer(second, finished):
    rows = [row for row in read_jsonl(second / "metrics.jsonl") if "learning_rate" in row]
    assert rows[0]["learning_rate"] < rows[1]["learning_rate"]  # warm-up again
    model = DiffTransformerForCausalLM.from_pretrained(second / "model")
    assert model.config.max_position_embeddings == 64
    assert model.config.rope_parameters["rope_theta"] == 640_000.0
    recorded = read_json(second / "run.json")
    assert set(recorded["config"]["init"]) == {"weights"}
    assert recorded["model"]["init_from"] == str(finished / "diff")


def test_a_run_continues_to_the_bit_without_reading_the_weights_again(
    second, make_run, data, finished, tmp_path, monkeypatch
):
    config, folder = extended(make_run, finished / "diff"), tmp_path / "run"
    stop(config, data, folder, 7)
    monkeypatch.setattr(initial, "safe_open", None)  # calling it would fail
    train(config, data, folder)
    assert_same_run(folder, second)


@pytest.fixture
def given(finished, tmp_path):
    """A copy of a model folder that a test may change."""
    shutil.copytree(finished / "diff" / "model", tmp_path / "given")
    return tmp_path / "given"


def test_weights_may_be_moved_but_not_changed(second, make_run, data, given, finished):
    config = extended(make_run, given)
    assert config.init.folder != read_json(second / "run.json")["model"]["init_from"]
    assert train(config, data, second) == read_json(second / "results.json")
    path = given / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][0] += 1
    save_file(weights, path)
    with pytest.raises(CheckpointError, match=r"must be as manifest\.json recorded it"):
        extended(make_run, given)
    (given / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"got init\.weights '.*' where '.*' is recorded"):
        train(extended(make_run, given), data, second)
    with pytest.raises(CheckpointError, match=r"got init None where \{'weights': .* is recorded"):
        train(replace(config, init=None), data, second)


def test_parts_of_a_large_model_and_bfloat16_are_read(given, make_run):
    config = make_run("diff").model
    model = DiffTransformerForCausalLM.from_pretrained(given)
    shutil.rmtree(given)
    model.to(torch.bfloat16).save_pretrained(given, max_shard_size="20KB")
    assert len(list(given.glob("*.safetensors"))) > 1
    loaded = initial_model(config, initial_weights(given, config))
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}
    for actual, reference in zip(loaded.parameters(), model.parameters(), strict=True):
        assert torch.equal(actual, reference.float())


def test_a_default_may_be_spelled_out(make_run, finished):
    model = make_run("diff").model
    lambda_init = [model.layer_lambda_init(i) for i in range(model.num_hidden_layers)]
    spelled = {"head_norm": True, "lambda_init": lambda_init}
    same = type(model)(**model.settings() | spelled)
    assert initial_weights(finished / "diff", same) == initial_weights(finished / "diff", model)
    other = type(model)(**model.settings() | {"head_norm": False})
    with pytest.raises(ConfigError, match=r"model\.head_norm must be None to start"):
        initial_weights(finished / "diff", other)


def test_other_parameters_than_the_settings_say_are_refused(given, make_run):
    model = make_run("diff").model
    path = given / "model.safetensors"
    weights = load_file(path)
    (given / "manifest.json").unlink()
    norm = weights.pop("model.norm.weight")
    for changes, message in (
        ({}, r"hold model\.norm\.weight as \[32\], got none\."),
        ({"model.norm.weight": norm[:8].clone()}, r"hold model\.norm\.weight as \[32\], got \[8\]"),
        ({"model.norm.weight": norm, "a": norm.clone()}, r"hold a as none, got \[32\]\."),
    ):
        save_file(weights | changes, path)
        with pytest.raises(ConfigError, match=message):
            initial_weights(given, model)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"must hold weights \(model\.safetensors\)"):
        initial_weights(given, model)
    (given / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match=r"must name a model of type .*, got 'llama'"):
        initial_weights(given, model)
    with pytest.raises(CheckpointError, match=r"must be a folder, got 'some/name'"):
        initial_weights("some/name", model)


def test_text_of_another_tokenizer_is_refused(corpus, make_run, data, finished, tmp_path):
    settings = DataConfig(source=str(corpus), vocab_size=270, validation_fraction=0.2)
    other = prepare_data(settings, tmp_path / "data")
    config = extended(make_run, finished / "diff")
    with pytest.raises(ConfigError, match=r"tokenizer must be that of the weights .* Pack with"):
        train(config, other, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.scheduled
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_start_from_them_and_continue(
    parallel, second, make_run, data, finished, tmp_path
):
    """Whole copies and shards have the losses of one process, and continue to the bit."""
    engine = {"parallel": parallel}
    config = extended(make_run, finished / "diff", engine=engine, micro_batch_sequences=1)
    values(launched(2, lambda: train(config, data, tmp_path / "whole")))
    assert_same_losses(tmp_path / "whole", second)
    stop_together(2, config, data, tmp_path / "run", 7)
    values(launched(2, lambda: train(config, data, tmp_path / "run")))
    assert_same_run(tmp_path / "run", tmp_path / "whole")
