"""The plan that is found: the fastest that fits, with what the user has fixed left alone."""

from dataclasses import replace

import pytest

import diffattn.lab.training.planning.plan as plan_module
from diffattn.lab.catalog.recipes.catalog import recipe
from diffattn.lab.training.config import EngineConfig
from diffattn.lab.training.planning.devices import device
from diffattn.lab.training.planning.search import best_plan, changes_of, enough_devices, twin_of
from diffattn.lab.training.planning.step_memory import StepMemory

MB = 10**6
RECIPE = recipe("scaling-1.4b")  # 128 sequences of 2,048 tokens, 8 in a pass


@pytest.fixture(autouse=True)
def _no_step_is_run(monkeypatch):
    """A step holds 40 MB of weights, and for every sequence 20 MB of activations, 2 if they are
    computed again, and 10 MB of logits, 5 in chunks."""

    def made_up_step(config, train, *, sequences, checkpointing, loss_chunk_tokens, **options):
        activations = (2 if checkpointing else 20) * sequences * MB
        logits = (5 if loss_chunk_tokens else 10) * sequences * MB
        parts = {"weights": 40 * MB, "activations": activations, "logits": logits}
        empty = {"block_parameters": 0, "root_parameters": 0, "backend": "triton"}
        return StepMemory(phases={"backward of the last block": parts}, **empty)

    monkeypatch.setattr(plan_module, "step_memory", made_up_step)


def planned(room, devices=1, config=RECIPE, fixed=()):
    """The settings of the plan for devices that have ``room`` MB for it."""
    limited = replace(device("h100"), memory_bytes=round(room * MB / plan_module.ROOM) + 1)
    best = best_plan(config, limited, devices=devices, fixed=fixed)
    return best and changes_of(RECIPE, best[0], fixed)


MICRO, CHUNK = "train.micro_batch_sequences", "engine.loss_chunk_tokens=1024"
AGAIN, SHARDS = "engine.activation_checkpointing=true", "engine.parallel=fsdp"


@pytest.mark.parametrize(
    ("room", "devices", "settings"),
    [
        (40 + 8 * 30, 1, []),  # the recipe as it is
        (40 + 4 * 30, 1, [f"{MICRO}=4"]),
        (40 + 2 * 30, 1, [f"{MICRO}=2"]),
        (40 + 2 * 30 - 1, 1, [f"{MICRO}=2", CHUNK]),
        # One sequence has fewer tokens than a pass that was measured: then activations go first.
        (40 + 30, 1, [f"{MICRO}=2", AGAIN]),
        (40 + 2 * 25 - 1, 1, [f"{MICRO}=4", AGAIN]),
        (40 + 7, 1, [f"{MICRO}=1", AGAIN, CHUNK]),
        (40 + 6, 1, None),
        (80 + 8 * 30, 8, []),  # whole copies send a second copy of the gradients
        (5 + 2 * 30, 8, [f"{MICRO}=2", SHARDS]),
        (5 + 2 * 12, 8, [f"{MICRO}=2", SHARDS, AGAIN]),
    ],
)
def test_settings_that_cost_least_come_first(room, devices, settings):
    got = planned(room, devices)
    assert got == settings if settings is None else set(got) == set(settings)


def test_what_is_given_stays():
    config = replace(RECIPE, engine=EngineConfig(activation_checkpointing=True))
    fixed = ("engine.activation_checkpointing",)
    assert planned(1_000, config=config, fixed=fixed) == []
    best = best_plan(config, device("h100"), fixed=fixed)
    assert best[0].engine.activation_checkpointing
    fixed = (MICRO,)
    assert planned(40 + 4 * 30, fixed=fixed) == [AGAIN]
    assert planned(40 + 10, fixed=fixed) is None


def test_devices_that_are_enough():
    small = replace(device("a100-40gb"), memory_bytes=20 * MB)
    (more, count), (larger, same) = enough_devices(RECIPE, small, 1, ())
    assert (more, count) == (small, 4)
    assert (larger.name, same) == ("a100-40gb", 1)
    (only,) = enough_devices(RECIPE, device("cpu"), 3, ())
    assert (only[0].name, only[1]) == ("h100", 1)
    tight = replace(small, memory_bytes=1)  # no count divides a micro batch of the whole batch
    whole = replace(RECIPE.train, micro_batch_sequences=RECIPE.train.batch_sequences)
    found = enough_devices(replace(RECIPE, train=whole), tight, 1, (MICRO,))
    assert [count for _, count in found] == [1]
    sharded = replace(RECIPE, engine=EngineConfig(parallel="fsdp"))
    (only,) = enough_devices(sharded, device("cpu"), 3, ("engine.parallel",))
    assert only[1] == 2  # shards need two


def test_the_twin_has_the_other_attention():
    twin = twin_of(RECIPE)
    assert (twin.model.attention_type, twin.model.num_heads) == ("softmax", 16)
    assert twin_of(twin).model.settings() == RECIPE.model.settings()
