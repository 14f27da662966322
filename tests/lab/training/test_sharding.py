"""Whole copies and shards on several processes: the losses of one, continued, and read by one."""

import pytest
import torch
from safetensors.torch import load_file
from test_distributed import ROUNDING, assert_same_losses, losses
from torch.distributed.tensor import Shard, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from children import launched, raised, values
from continued_runs import stop_together
from diffattn.errors import ConfigError
from diffattn.files.io import read_json
from diffattn.lab.catalog.models import TYPES
from diffattn.lab.records.run import RunRecord
from diffattn.lab.training.config import EngineConfig
from diffattn.lab.training.distributed import joined
from diffattn.lab.training.run import train
from diffattn.lab.training.sharding import require_shardable, require_sharded
from diffattn.lab.training.trainer import RunTrainer
from diffattn.layers.parts import SwiGLU
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

PARALLEL = ("ddp", "fsdp")


@pytest.mark.scheduled
@pytest.mark.parametrize("parallel", PARALLEL)
@pytest.mark.parametrize("attention_type", TYPES)
def test_twenty_steps_on_two_processes_give_the_losses_of_one(
    attention_type, parallel, make_run, data, tmp_path
):
    """Two micro batches per process and step; a last evaluation batch that is not full."""
    changes = {"num_steps": 20, "log_every": 1, "evaluation_tokens": 32 * 7}
    train(make_run(attention_type, **changes), data, tmp_path / "one")
    engine = {"parallel": parallel}
    config = make_run(attention_type, engine=engine, **changes, micro_batch_sequences=1)
    results, others = values(launched(2, lambda: train(config, data, tmp_path / "two")))
    assert results == others
    assert len(losses(tmp_path / "one")) == 20 * 2 + 6
    assert_same_losses(tmp_path / "two", tmp_path / "one")
    entry = read_json(tmp_path / "one" / "results.json")
    assert results["validation_loss"] == pytest.approx(entry["validation_loss"], rel=ROUNDING)
    if entry["lam"] is not None:  # Adam enlarges the rounding of small gradients
        assert results["lam"] == pytest.approx(entry["lam"], rel=1e-4)
    assert RunRecord.read(tmp_path / "two").engine["parallel"] == parallel
    # One process loads it, and it is the model that was measured.
    model = DiffTransformerForCausalLM.from_pretrained(tmp_path / "two" / "model")
    weights = load_file(tmp_path / "two" / "model" / "model.safetensors")
    whole = load_file(tmp_path / "one" / "model" / "model.safetensors")
    assert {n: w.shape for n, w in weights.items()} == {n: w.shape for n, w in whole.items()}
    if entry["lambda_init"] is not None:
        lam = [block.self_attn.lam().item() for block in model.model.layers]
        assert lam == pytest.approx(results["lam"], rel=ROUNDING)


@pytest.mark.scheduled
def test_whole_copies_continue_on_another_number_of_processes(make_run, data, finished, tmp_path):
    config, folder = make_run("diff"), tmp_path / "run"
    stop_together(2, config, data, folder, 7)
    train(config, data, folder)
    assert_same_losses(folder, finished / "diff")
    assert RunRecord.read(folder).engine["processes"] == 2  # how it was begun


@pytest.mark.parametrize(
    "attention_type", ["diff", pytest.param("diff_v2", marks=pytest.mark.scheduled)]
)
def test_shards_train_what_one_process_does(attention_type, make_run, data, tmp_path, monkeypatch):
    """Stopped and continued."""
    changes = {"batch_tokens": 8 * 32, "log_every": 1, "num_steps": 4, "evaluate_every": 2}
    train(make_run(attention_type, **changes), data, tmp_path / "one")
    changes["micro_batch_sequences"] = 1
    folder, held = tmp_path / "run", []
    config = make_run(attention_type, engine={"parallel": "fsdp"}, **changes)
    training_step = RunTrainer.training_step

    def watched(self, model, *args, **kwargs):
        held.extend(p.to_local().numel() / p.numel() for p in model.model.layers.parameters())
        return training_step(self, model, *args, **kwargs)

    monkeypatch.setattr(RunTrainer, "training_step", watched)
    stop_together(2, config, data, folder, 3)

    def run():
        train(config, data, folder)
        return set(held)

    assert values(launched(2, run)) == [{0.5}] * 2
    assert_same_losses(folder, tmp_path / "one")


@pytest.mark.parametrize(
    ("before", "after"), [("ddp", "fsdp"), pytest.param("fsdp", "ddp", marks=pytest.mark.scheduled)]
)
def test_whole_copies_and_shards_continue_each_other(
    before, after, make_run, data, finished, tmp_path
):
    folder = tmp_path / "run"
    stop_together(2, make_run("diff", engine={"parallel": before}), data, folder, 7)
    config = make_run("diff", engine={"parallel": after})
    if after == "fsdp":
        values(launched(2, lambda: train(config, data, folder)))
    else:
        train(config, data, folder)
    assert_same_losses(folder, finished / "diff")


def test_one_process_has_nothing_to_shard_over(make_run, data, tmp_path):
    with pytest.raises(ConfigError, match=r"engine\.parallel 'fsdp' must have several .* got 1"):
        train(make_run("diff", engine={"parallel": "fsdp"}), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    require_shardable(EngineConfig())


def test_a_single_whole_parameter_is_noticed():
    def run():
        with joined():
            model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.RMSNorm(4))
            parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel()})
            assert model[0].weight.placements == (Shard(0),)
            require_sharded(model)

    for names, message, _ in raised(launched(2, run)):
        assert names[0] == "DiffAttnError"
        assert "got 1.weight as a whole" in message


ENGINES = {
    "checkpointing": {"activation_checkpointing": True},
    "chunks": {"loss_chunk_tokens": 24},
    "both": {"activation_checkpointing": True, "loss_chunk_tokens": 24},
}


@pytest.mark.parametrize("engine", [pytest.param("chunks", marks=pytest.mark.scheduled), "both"])
def test_how_a_run_is_executed_does_not_change_its_losses(
    engine, make_run, data, finished, tmp_path, monkeypatch
):
    computed = []
    forward = SwiGLU.forward

    def counted(self, x):
        computed.append(torch.is_grad_enabled())
        return forward(self, x)

    monkeypatch.setattr(SwiGLU, "forward", counted)
    results = train(make_run("diff", engine=ENGINES[engine]), data, tmp_path / "run")
    assert_same_losses(tmp_path / "run", finished / "diff")
    expected = read_json(finished / "diff" / "results.json")["validation_loss"]
    assert results["validation_loss"] == pytest.approx(expected, rel=ROUNDING)
    # Per step and layer: once, and once more in the backward pass where activations are not kept.
    assert sum(computed) == 12 * 2 * (2 if engine == "both" else 1)


@pytest.mark.scheduled
@pytest.mark.parametrize("parallel", PARALLEL)
@pytest.mark.parametrize("engine", ENGINES)
def test_two_processes_are_executed_in_every_way(
    engine, parallel, make_run, data, finished, tmp_path
):
    engine = {"parallel": parallel, **ENGINES[engine]}
    config = make_run("diff", engine=engine, micro_batch_sequences=1)
    values(launched(2, lambda: train(config, data, tmp_path / "run")))
    assert_same_losses(tmp_path / "run", finished / "diff")


def test_no_process_keeps_whole_gradients_between_the_passes_of_a_step(
    make_run, data, tmp_path, monkeypatch
):
    """Where reduction waits for the last pass, shards have no gradients until then."""
    shares = []
    training_step = RunTrainer.training_step

    def watched(self, model, *args, **kwargs):
        loss = training_step(self, model, *args, **kwargs)
        kept = [p.grad.to_local().numel() / p.numel() for p in model.parameters()]
        shares.append(kept)
        return loss

    monkeypatch.setattr(RunTrainer, "training_step", watched)
    changes = {"num_steps": 1, "warmup_steps": 0, "evaluate_every": 1, "evaluation_tokens": 32}
    config = make_run("diff", engine={"parallel": "fsdp"}, **changes, micro_batch_sequences=1)

    def run():
        train(config, data, tmp_path / "run")
        return shares

    for passes in values(launched(2, run)):
        assert len(passes) == 2
        assert all(share == 0.5 for shares in passes for share in shares)


def test_activation_checkpointing_keeps_no_second_copy_of_the_weights(
    make_run, data, tmp_path, monkeypatch
):
    """A bfloat16 copy is made where it is used: in both forward passes of a block."""
    cached = []
    forward = SwiGLU.forward

    def watched(self, x):
        if self.training:
            cached.append((torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()))
        return forward(self, x)

    monkeypatch.setattr(SwiGLU, "forward", watched)
    changes = {"num_steps": 1, "warmup_steps": 0, "evaluate_every": 1, "evaluation_tokens": 32}
    engine = {"activation_checkpointing": True}
    train(make_run("diff", engine=engine, **changes, precision="bfloat16"), data, tmp_path / "run")
    assert cached == [(True, False)] * 4  # two layers


@pytest.mark.scheduled
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_a_compiled_run_has_the_same_losses(make_run, data, finished, tmp_path):
    train(make_run("diff", engine={"compile": True}), data, tmp_path / "run")
    assert_same_losses(tmp_path / "run", finished / "diff")


@pytest.mark.scheduled
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
# Said by torch's own look at the gathered parameters of a block.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("parallel", PARALLEL)
def test_two_processes_compile(parallel, make_run, data, finished, tmp_path):
    config = make_run("diff", engine={"compile": True, "parallel": parallel})

    def run():
        torch._inductor.config.compile_threads = 1  # a fork lacks the threads of a pool
        train(config, data, tmp_path / "run")
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    assert min(values(launched(2, run, seconds=300))) > 0
    assert_same_losses(tmp_path / "run", finished / "diff")


@pytest.mark.scheduled
@pytest.mark.parametrize("parallel", PARALLEL)
def test_bfloat16_on_two_processes(parallel, make_run, data, tmp_path):
    """Autocast on both: weights, λ and optimizer state stay float32, sharded or not."""
    train(make_run("diff", precision="bfloat16"), data, tmp_path / "one")
    config = make_run("diff", engine={"parallel": parallel}, precision="bfloat16")
    values(launched(2, lambda: train(config, data, tmp_path / "two")))
    actual, reference = losses(tmp_path / "two"), losses(tmp_path / "one")
    of_loss = {key: value for key, value in reference.items() if key[1] != "gradient_norm"}
    assert {key: actual[key] for key in of_loss} == pytest.approx(of_loss, rel=2.0**-10)
    weights = load_file(tmp_path / "two" / "model" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
