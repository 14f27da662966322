"""What a plan says: counts, shares of several devices, time, cost, and refusals."""

import dataclasses

import pytest

import diffattn.lab.training.planning.plan as plan_module
from diffattn.errors import ConfigError
from diffattn.lab.training.config import DataConfig, RunConfig, TrainConfig
from diffattn.lab.training.engine import EngineConfig
from diffattn.lab.training.planning.devices import DEVICES, device
from diffattn.lab.training.planning.plan import device_phases, kv_cache_bytes_per_token, make_plan
from diffattn.lab.training.planning.step_memory import StepMemory, largest
from diffattn.lab.training.planning.table import plan_rows
from diffattn.models.accounting import flops_per_token, parameter_count
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.presets import preset
from diffattn.models.twins import twin
from diffattn.ops.inputs import kernel_support


@pytest.fixture(autouse=True)
def _no_step_is_run(monkeypatch):
    """What a step holds is made up: 400 kB, and 100 kB for every sequence."""
    monkeypatch.setattr(plan_module, "step_memory", made_up_step)


def made_up_step(config, train, *, sequences, accumulates, **options):
    phases = {"backward of the last block": {"weights": 400_000, "logits": 100_000 * sequences}}
    return StepMemory(phases=phases, block_parameters=1000, root_parameters=1000, backend="made up")


def run(parallel="ddp", **changes):
    model = DiffTransformerConfig(
        attention_type="diff",
        vocab_size=512,
        hidden_size=64,
        num_hidden_layers=2,
        num_heads=2,
        head_dim=32,
        max_position_embeddings=64,
    )
    train = TrainConfig(
        **{"num_steps": 1000, "batch_tokens": 512, "seq_len": 64, "precision": "bfloat16"} | changes
    )
    return RunConfig(
        name="planned",
        model=model,
        train=train,
        data=DataConfig(vocab_size=512),
        engine=EngineConfig(parallel=parallel),
    )


def test_how_the_run_is_executed_is_planned_for(monkeypatch):
    given = {}

    def note(*args, **options):
        given.update(options)
        return made_up_step(*args, **options)

    monkeypatch.setattr(plan_module, "step_memory", note)
    engine = EngineConfig(loss_chunk_tokens=32, activation_checkpointing=True)
    make_plan(dataclasses.replace(run(), engine=engine), device("h100"))
    assert (given["loss_chunk_tokens"], given["checkpointing"]) == (32, True)


def test_time_and_cost_follow_from_the_peak():
    config = run()
    plan = make_plan(config, device("H100"), devices=2, utilisation=0.5, price=2.0)
    flops = flops_per_token(config.model, 64, training=True)
    assert plan.forward_flops_per_token + plan.backward_flops_per_token == pytest.approx(
        flops, 1e-6
    )
    assert plan.tokens_per_second == pytest.approx(2 * 989.5e12 * 0.5 / flops, rel=1e-6)
    assert plan.days == pytest.approx(512_000 / plan.tokens_per_second / 86_400)
    assert plan.cost == pytest.approx(plan.days * 24 * 2 * 2.0)
    assert plan.parameters == parameter_count(config.model)
    assert plan.fits
    assert plan.memory_bytes == sum(plan.memory.values())
    assert plan.largest_micro_batch == 4
    assert plan.passes_per_step == 1


def test_a_kernel_without_a_record_is_planned_with_what_runs_in_its_place(monkeypatch):
    step = dataclasses.replace(
        made_up_step(None, None, sequences=1, accumulates=False),
        backend="triton",
        backend_untested="composed",
    )
    monkeypatch.setattr(plan_module, "step_memory", lambda *args, **options: step)
    asked = []

    def passed_tests(capability):
        asked.append(capability)
        return capability == (10, 0)

    monkeypatch.setattr(kernel_support, "passed_tests", passed_tests)
    made = {name: make_plan(run(), device(name)) for name in ("h100", "b200")}
    assert asked == [(9, 0), (10, 0)]
    assert made["h100"].backend_untested == "composed"
    assert made["b200"].backend_untested is None
    assert made["b200"].composed_operations is None
    shown = [plan_rows(of)[0][""] for of in made.values()]
    assert shown == [
        "planned, diff attention by triton (with DIFFATTN_UNVERIFIED_KERNELS=1; else composed)",
        "planned, diff attention by triton",
    ]


@pytest.mark.parametrize(("length", "times"), [(4096, 1.0920), (65_536, 1.6183)])
def test_composed_attention_does_more_than_is_counted(length, times):
    """Per query and key it scores 2H heads of width 2D, and weighs V of width 2D with each."""
    model = DiffTransformerConfig(**preset("3b").settings() | {"max_position_embeddings": length})
    pairs = 28 * (length + 1) / 2
    more = flops_per_token(model, composed=True) - flops_per_token(model)
    assert more == pytest.approx(2 * pairs * (2 * 12 * (256 + 256) - 12 * (2 * 128 + 256)))
    assert flops_per_token(model, composed=True) / flops_per_token(model) == pytest.approx(
        times, abs=1e-4
    )
    for name in ("softmax", "diff_v2", "none", "softmax_minus_mean", "diff_v2_across"):
        one = twin(model, name).config
        assert flops_per_token(one, composed=True) == flops_per_token(one)


def test_the_time_of_composed_attention_is_shown(monkeypatch):
    shown = {}
    for backend, untested in (("triton", "composed"), ("composed", None), ("triton", None)):
        step = dataclasses.replace(
            made_up_step(None, None, sequences=1, accumulates=False),
            backend=backend,
            backend_untested=untested,
        )
        monkeypatch.setattr(plan_module, "step_memory", lambda *args, step=step, **options: step)
        made = make_plan(run(), device("h100"))
        rows = {row["plan"]: row[""] for row in plan_rows(made)}
        shown[backend, untested] = rows.get("time by composed")
        if untested is None:
            continue
        factor = made.composed_operations
        assert f"{factor:.2f} times the operations" in shown[backend, untested]
    assert shown["composed", None] == shown["triton", "composed"]
    assert shown["triton", None] is None
    softmax = dataclasses.replace(run(), model=twin(run().model, "softmax").config)
    made = make_plan(softmax, device("h100"))
    assert "time by composed" not in {row["plan"] for row in plan_rows(made)}


@pytest.mark.parametrize(
    ("days", "hours", "shown"),
    [
        (3.684, 5647.3, "3.68 days, 5,647 device hours"),
        (0.5, 0.134, "12.0 hours, 0.13 device hours"),
        (0.0056, 0.335, "8.1 minutes, 0.34 device hours"),
    ],
)
def test_short_times_and_small_costs_are_not_rounded_away(days, hours, shown):
    plan = dataclasses.replace(make_plan(run(), device("h100")), days=days, device_hours=hours)
    assert {"plan": "time", "": shown} in plan_rows(plan)


def test_one_device_shards_nothing():
    config = dataclasses.replace(run(), engine=EngineConfig(parallel="fsdp"))
    with pytest.raises(ConfigError, match=r"^plan: .* 'fsdp' must have several .* got one"):
        make_plan(config, device("h100"))
    assert make_plan(config, device("h100"), devices=2).parallel == "fsdp"


def test_replicas_of_shards_are_planned():
    config = dataclasses.replace(run(), engine=EngineConfig(parallel="fsdp", replicas=2))
    made = make_plan(config, device("h100"), devices=8)
    whole = make_plan(run(parallel="fsdp"), device("h100"), devices=4)
    assert (made.replicas, whole.replicas) == (2, 1)
    assert made.memory["weights"] == whole.memory["weights"]
    assert plan_rows(made)[1][""] == "8 x NVIDIA H100 SXM, fsdp in 2 replicas"
    for devices, message in ((4, None), (1, "must divide the 1 devices"), (2, "got one")):
        if message is not None:
            with pytest.raises(ConfigError, match=rf"^plan: engine\..*{message}"):
                make_plan(config, device("h100"), devices=devices)
    assert make_plan(run(), device("h100"), devices=8).replicas == 8


def test_no_price_gives_no_cost_and_no_peak_no_time():
    assert make_plan(run(), device("a100")).cost is None
    plan = make_plan(run(), device("cpu"), price=1.0)
    assert (plan.tokens_per_second, plan.days, plan.cost) == (None, None, None)
    assert make_plan(run(precision="float32"), device("h100")).days is None


def test_processes_on_a_cpu_share_its_memory(monkeypatch):
    """As when they are launched: each takes its own."""
    monkeypatch.setattr(plan_module, "available_bytes", lambda: 1_000_000_000)
    alone, two = (make_plan(run(), device("cpu"), devices=n) for n in (1, 2))
    assert alone.device_memory_bytes == 1_000_000_000
    assert two.device_memory_bytes == 500_000_000
    monkeypatch.setattr(plan_module, "available_bytes", lambda: 2 * two.memory_bytes - 2)
    assert make_plan(run(), device("cpu"), devices=2).fits is False
    monkeypatch.setattr(plan_module, "available_bytes", lambda: None)
    assert make_plan(run(), device("cpu"), devices=2).fits is None


def test_what_does_not_fit_is_said():
    tiny = dataclasses.replace(device("h100"), memory_bytes=850_000)
    plan = make_plan(run(), tiny)
    assert (plan.memory_bytes, plan.fits) == (1_200_000, False)
    assert plan.largest_micro_batch == 4
    assert make_plan(run(), dataclasses.replace(tiny, memory_bytes=1000)).largest_micro_batch == 0


def test_the_cache_holds_keys_and_values_of_every_layer():
    model = run().model
    assert (
        kv_cache_bytes_per_token(model) == 2 * 2 * 2 * 64 * 2
    )  # K, V; layers; heads; width; bytes
    plan = make_plan(run(), device("h100"), cache_sequences=3, cache_tokens=10)
    assert plan.kv_cache == {"sequences": 3, "tokens": 10, "bytes": 30 * 1024}


PHASES = {
    "forward": {"weights": 400, "optimizer": 800, "activations": 900, "bfloat16 weights": 200},
    "backward of the last block": {
        "weights": 400,
        "optimizer": 800,
        "gradients": 100,
        "activations": 700,
    },
    "optimizer": {"weights": 400, "optimizer": 800, "gradients": 400, "working": 400},
}
STEP = StepMemory(phases=PHASES, block_parameters=40, root_parameters=20, backend="triton")


def test_whole_copies_send_a_second_copy_of_the_gradients():
    shared = device_phases(STEP, devices=4, shards=1)
    for name, parts in shared.items():
        assert parts == PHASES[name] | {"communication": 400}


def test_shards_divide_what_belongs_to_the_weights():
    shared = device_phases(STEP, devices=4, shards=4)
    assert shared["forward"] == {
        "weights": 100,
        "gradients": 0,
        "optimizer": 200,
        "activations": 900,
        "bfloat16 weights": 200,
        "communication": 4 * (20 + 80),
    }
    assert shared["optimizer"] == {
        "weights": 100,
        "optimizer": 200,
        "gradients": 100,
        "working": 100,
    }
    last_block = shared["backward of the last block"]
    assert last_block["gradients"] == 25
    assert last_block["communication"] == 4 * (20 + 80 + 20 + 2 * 40)
    assert largest(shared) == last_block
    assert device_phases(STEP, devices=1, shards=1) == PHASES
    # Replicas of shards average shards alone.
    assert device_phases(STEP, devices=32, shards=4) == shared


def test_every_device_has_a_source():
    assert all(row.source for row in DEVICES.values())
    assert [name for name, row in DEVICES.items() if row.bfloat16_flops is None] == ["cpu"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"utilisation": 0.0}, "--utilisation must be above 0 and at most 1, got 0."),
        ({"utilisation": 1.5}, "--utilisation must be above 0 and at most 1, got 1.5."),
        ({"utilisation": float("nan")}, "--utilisation must be above 0 and at most 1, got nan."),
        ({"price": -1.0}, "--price must be above 0"),
        ({"devices": 0}, "--gpus must be from 1 to"),
        ({"devices": 3}, "must hold a multiple of 3 sequences, a share per device, got 8 of"),
        ({"cache_tokens": 0}, "--cache-length must be from 1 to"),
    ],
)
def test_wrong_numbers_are_refused(options, message):
    with pytest.raises(ConfigError) as error:
        make_plan(run(), device("h100"), **options)
    assert message in str(error.value)


def test_a_micro_batch_that_does_not_divide_is_refused():
    with pytest.raises(ConfigError, match="must divide 2, the sequences of a device, got 4"):
        make_plan(run(micro_batch_sequences=4), device("h100"), devices=4)
    with pytest.raises(ConfigError, match="Did you mean 'h200'"):
        device("h20")
