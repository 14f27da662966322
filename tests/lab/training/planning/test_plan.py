"""What a plan says: counts, shares of several devices, time, cost, and refusals."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

import diffattn.lab.training.planning.plan as plan_module
from diffattn.errors import ConfigError
from diffattn.lab.training.config import DataConfig, EngineConfig, RunConfig, TrainConfig
from diffattn.lab.training.planning.devices import MEASURED, device, measured_utilisation
from diffattn.lab.training.planning.plan import device_phases, make_plan, plan_rows
from diffattn.lab.training.planning.step_memory import StepMemory, largest
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.twins import flops_per_token, parameter_count

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def _no_step_is_run(monkeypatch):
    """What a step holds is made up: 400 kB, and 100 kB for every sequence."""
    monkeypatch.setattr(plan_module, "step_memory", made_up_step)


def made_up_step(config, train, *, sequences, accumulates, **options):
    phases = {"backward of the last block": {"weights": 400_000, "logits": 100_000 * sequences}}
    return StepMemory(phases=phases, block_parameters=1000, root_parameters=1000, backend="made up")


def run(engine=None, **changes):
    model = DiffTransformerConfig(
        attention_type="diff",
        vocab_size=512,
        hidden_size=64,
        num_hidden_layers=2,
        num_heads=2,
        head_dim=32,
        max_position_embeddings=64,
    )
    settings = {"num_steps": 1000, "batch_tokens": 512, "seq_len": 64, "precision": "bfloat16"}
    return RunConfig(
        name="planned",
        model=model,
        train=TrainConfig(**settings | changes),
        data=DataConfig(vocab_size=512),
        engine=EngineConfig(**engine or {}),
    )


def shown(plan):
    return {row[""]: row["DIFF"] for row in plan_rows({"DIFF": plan})}


def test_time_and_cost_follow_from_the_peak():
    config = run()
    plan = make_plan(config, device("H100"), devices=2, utilisation=0.5, price=2.0)
    flops = flops_per_token(config.model, 64, training=True)
    planned = plan.forward_flops_per_token + plan.backward_flops_per_token
    assert planned == pytest.approx(flops, 1e-6)
    assert plan.tokens_per_second == pytest.approx(2 * 989.5e12 * 0.5 / flops, rel=1e-6)
    assert plan.days == pytest.approx(512_000 / plan.tokens_per_second / 86_400)
    assert plan.cost == pytest.approx(plan.days * 24 * 2 * 2.0)
    assert plan.parameters == parameter_count(config.model)
    assert plan.fits
    assert plan.memory_bytes == sum(plan.memory.values())
    assert plan.passes_per_step == 1
    engine = {"activation_checkpointing": True}
    again = make_plan(run(engine), device("h100"), devices=2)
    logits = 2 * 512 * 64
    assert again.repeated_flops_per_token == plan.forward_flops_per_token - logits
    engine["loss_chunk_tokens"] = 64
    all_again = make_plan(run(engine), device("h100"), devices=2, utilisation=0.5)
    assert all_again.days == pytest.approx(plan.days * 4 / 3)


def test_utilisation_is_that_of_the_records():
    """Of the nearest size; a type without a record takes that of a measured one."""
    for (kind, precision, hidden_size), (source, shares) in MEASURED.items():
        size, record = re.search(r"size (\w+).*\((.*)\)", source).groups()
        (case,) = [
            case
            for case in json.loads((ROOT / record).read_text())["cases"]
            if (case["suite"], case["mode"]) == ("models", "forward_backward")
            and case["dtype"] == precision
            and case["shape"]["size"] == size
            and case["shape"]["N"] != 2_048
        ]
        peak = case["matmul_flops_per_second"] if kind == "cpu" else device(kind).peak_flops
        measured = {row["contender"]: row["flops_per_second"] / peak for row in case["rows"]}
        measured["softmax"] = max(measured["softmax"], measured["softmax_sdpa"])
        types = ("softmax", "diff", "diff_v2", "shared_diff")[: len(shares)]
        assert shares == tuple(pytest.approx(measured[name], abs=1e-3) for name in types)
        for name, share in zip(types, shares, strict=True):
            got = measured_utilisation(device(kind), precision, name, hidden_size + 9)
            assert got == (share, source)
    assert measured_utilisation(device("cpu"), "float32", "diff", 10**6)[0] == 0.766
    share, source = measured_utilisation(device("a100"), "bfloat16", "gated_head", 4_096)
    assert share == 0.487
    assumed = "assumed for this device; gated_head is assumed to reach that of softmax"
    assert source.endswith(assumed)
    assert measured_utilisation(device("h100"), "float32", "diff", 3_072) is None


def test_what_is_slower_than_the_records_has_no_time(monkeypatch):
    fast = made_up_step(None, None, sequences=1, accumulates=False)
    step = dataclasses.replace(fast, backend="reference")
    monkeypatch.setattr(plan_module, "step_memory", lambda *args, **options: step)
    made = make_plan(run(), device("h100"), price=1.0)
    assert (made.days, made.cost) == (None, None)
    assert shown(made)["time"] == "not measured"


def test_short_times_and_small_costs_are_not_rounded_away():
    made = make_plan(run(), device("h100"), utilisation=0.4)
    rows = shown(dataclasses.replace(made, days=0.0056, device_hours=0.335))
    assert (rows["time"], rows["device hours"]) == ("8.1 minutes", "0.34")


def test_shards_are_planned():
    config = run({"parallel": "fsdp"})
    made = make_plan(config, device("h100"), devices=4)
    assert made.replicas == 1
    assert shown(made)["copies of the model"] == "1, in 4 shards"
    with pytest.raises(ConfigError, match=r"^plan: engine\..*several devices .*got 1"):
        make_plan(config, device("h100"), devices=1)
    assert make_plan(run(), device("h100"), devices=8).replicas == 8


def test_no_price_gives_no_cost_and_no_peak_no_time():
    assert make_plan(run(), device("a100"), utilisation=0.4).cost is None
    for options in ({}, {"utilisation": 0.4}):
        plan = make_plan(run(), device("cpu"), price=1.0, **options)
        assert (plan.tokens_per_second, plan.days, plan.cost) == (None, None, None)
    assert make_plan(run(precision="float32"), device("h100"), utilisation=0.4).days is None


def test_processes_on_a_cpu_share_its_memory(monkeypatch):
    """As when they are launched: each takes its own."""
    monkeypatch.setattr(plan_module, "available_bytes", lambda: 1_000_000_000)
    alone, two = (make_plan(run(), device("cpu"), devices=n) for n in (1, 2))
    assert alone.device_memory_bytes == 1_000_000_000
    assert two.device_memory_bytes == 500_000_000
    too_few = 2 * int(two.memory_bytes / plan_module.ROOM) - 2
    monkeypatch.setattr(plan_module, "available_bytes", lambda: too_few)
    assert make_plan(run(), device("cpu"), devices=2).fits is False
    monkeypatch.setattr(plan_module, "available_bytes", lambda: None)
    assert make_plan(run(), device("cpu"), devices=2).fits is None


def test_a_plan_leaves_room():
    tiny = dataclasses.replace(device("h100"), memory_bytes=1_333_333)
    plan = make_plan(run(), tiny)
    assert (plan.memory_bytes, plan.fits) == (1_200_000, False)
    assert make_plan(run(), dataclasses.replace(tiny, memory_bytes=1_333_334)).fits


def test_the_cache_holds_keys_and_values_of_every_layer():
    plan = make_plan(run(), device("h100"), cache_sequences=3, cache_tokens=10)
    # Tokens; K, V; layers; heads; width; bytes.
    size = 30 * 2 * 2 * 2 * 64 * 2
    assert plan.kv_cache == {"sequences": 3, "tokens": 10, "bytes": size}


KEPT = {"weights": 400, "optimizer": 800}
PHASES = {
    "forward": KEPT | {"activations": 900, "bfloat16 weights": 200},
    "backward of the last block": KEPT | {"gradients": 100, "activations": 700},
    "optimizer": KEPT | {"gradients": 400, "working": 400},
}
STEP = StepMemory(phases=PHASES, block_parameters=40, root_parameters=20, backend="triton")


def test_shards_divide_what_belongs_to_the_weights():
    shared = device_phases(STEP, devices=4, shards=4)
    kept = {"weights": 100, "optimizer": 200}
    whole = {"activations": 900, "bfloat16 weights": 200, "communication": 4 * (20 + 80)}
    assert shared["forward"] == kept | {"gradients": 0} | whole
    assert shared["optimizer"] == kept | {"gradients": 100, "working": 100}
    last_block = shared["backward of the last block"]
    assert last_block["gradients"] == 25
    assert last_block["communication"] == 4 * (20 + 80 + 20 + 2 * 40)
    assert largest(shared) == last_block
    assert device_phases(STEP, devices=1, shards=1) == PHASES
    # Whole copies send a second copy of the gradients.
    for name, parts in device_phases(STEP, devices=4, shards=1).items():
        assert parts == PHASES[name] | {"communication": 400}
