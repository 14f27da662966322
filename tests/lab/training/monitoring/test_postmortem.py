"""What is left of a run whose numbers went wrong says why."""

import math
from types import SimpleNamespace

import pytest
from transformers import default_data_collator

from diffattn.files.io import read_json
from diffattn.lab.data.tokens import TokenDataset
from diffattn.lab.training.callbacks import DivergenceError
from diffattn.lab.training.monitoring.monitor import write_postmortem
from diffattn.lab.training.run import train
from diffattn.lab.training.trainer import training_order
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from record_files import entries


def test_a_run_that_ends_leaves_one(make_run, bad_batches, data, tmp_path):
    config = make_run(log_every=1)
    bad_batches(config, {6: lambda model, loss: loss * math.inf})
    messages = []
    with pytest.raises(DivergenceError, match="train_loss must stay finite, got inf at step 6"):
        train(config, data, tmp_path / "run", on_message=messages.append)
    assert messages == [f"the state of the run at its end: {tmp_path / 'run' / 'postmortem.json'}"]
    results = read_json(tmp_path / "run" / "postmortem.json")
    assert (results["step"], results["updates_made"], results["run"]) == (6, 6, "diff-tiny")
    order = training_order(TokenDataset(data.train, 32), config.train)
    assert results["windows"] == list(order.indices[20:24])
    assert [step for step, _ in results["losses_before"]] == [1, 2, 3, 4, 5]
    # The update was made before the log was written: nothing is a number any more.
    assert "model.embed_tokens.weight" in results["weights_not_finite"]
    assert "lam must" in results["stopped_by"] or results["layers"][0]["hidden_max"] == "nan"


def test_between_rows_of_the_log_no_checkpoint_is_written(make_run, bad_batches, data, tmp_path):
    """It could not be: its sum of losses is no number either."""
    config = make_run(log_every=5, evaluate_every=12, engine={"save_every": 2})
    bad_batches(config, {4: lambda model, loss: loss * math.inf})
    with pytest.raises(DivergenceError, match=r"train_loss must stay finite, got inf at step 4\."):
        train(config, data, tmp_path)
    assert (tmp_path / "postmortem.json").exists()
    assert entries(tmp_path / "checkpoints") == ["checkpoint-2"]


def test_with_a_policy_it_is_of_the_weights_before_the_step(make_run, bad_batches, data, tmp_path):
    config = make_run(guard={"spike": "stop"}, micro_batch_sequences=2)
    bad_batches(config, {6: lambda model, loss: loss * math.nan})
    with pytest.raises(DivergenceError, match="the loss must stay finite, got nan at step 6"):
        train(config, data, tmp_path / "run")
    results = read_json(tmp_path / "run" / "postmortem.json")
    assert (results["step"], results["updates_made"]) == (6, 5)
    assert results["weights_not_finite"] == []
    assert results["stopped_by"] is None
    assert len(results["layers"]) == 2
    assert all(layer.keys() >= {"lam", "hidden_max", "logit_max"} for layer in results["layers"])
    norms = results["gradient_norms"]
    assert all(0 < norm < 100 for norm in norms.values())
    assert {"model.layers.0.self_attn.lambda", "model.layers.1.mlp.down_proj"} <= norms.keys()


def test_a_pass_is_no_larger_than_one_of_the_run(make_run, data, tmp_path, monkeypatch):
    """Of two processes without a micro batch, which have half the batch each."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    config, model = make_run(), DiffTransformerForCausalLM(make_run().model)
    sizes = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(tuple(kwargs["input_ids"].shape)),
        with_kwargs=True,
    )
    trainer = SimpleNamespace(
        model=model,
        train_dataset=training_order(TokenDataset(data.train, 32), config.train),
        data_collator=default_data_collator,
        _prepare_inputs=lambda inputs: inputs,
        is_world_process_zero=lambda: True,
        state=SimpleNamespace(global_step=1),
    )
    (tmp_path / "metrics.jsonl").touch()
    write_postmortem(tmp_path, config, trainer, DivergenceError("said", 2))
    assert sizes == [(2, 32)] * 3  # activations of the first, and the two passes
    assert read_json(tmp_path / "postmortem.json")["gradient_norms"]
