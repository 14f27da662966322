"""``diffattn plan`` as a user calls it: the plan, its twin, and the command that trains it."""

import json
import shlex

import pytest

import diffattn.lab.training.planning.plan as plan_module
from diffattn.lab.training.planning.step_memory import LAST_BLOCK, StepMemory
from diffattn.models.presets import preset_settings


@pytest.fixture
def step_of(monkeypatch):
    """Let every step hold so many gigabytes for each sequence."""

    def hold(gigabytes):
        def made_up_step(*args, sequences, **options):
            held = {"weights": 0, "activations": round(gigabytes * sequences * 1e9)}
            facts = {"block_parameters": 0, "root_parameters": 0, "backend": "triton"}
            return StepMemory(phases={LAST_BLOCK: held}, **facts)

        monkeypatch.setattr(plan_module, "step_memory", made_up_step)

    return hold


def train_options(command):
    """The arguments of ``diffattn`` in a printed command."""
    words = shlex.split(command.replace("\\\n", " "))
    options = words[words.index("train") :]
    return options[: options.index("--data")] if "--data" in options else options


def test_the_plan_of_a_small_recipe_is_a_command_that_works(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    called = cli("plan", "smoke", "--gpu", "cpu", "--price", 0.5, "--set", "train.num_steps=40")
    assert called.code == 0, called
    assert max(map(len, called.out.splitlines())) <= 80
    for words in ("Transformer", "DIFF V1", "US dollars", "times the time", "cpu.json"):
        assert words in called.out
    command = called.out.partition("Train it:\n")[2]
    dry = cli(*train_options(command), "--dry-run")
    assert json.loads(dry.out)["train"]["num_steps"] == 40


def test_settings_that_were_found_are_in_the_command(cli, step_of):
    step_of(30)
    call = ("plan", "13.1b", "--gpu", "h100", "--gpus", 16, "--attention", "diff_v2", "--json")
    made = json.loads(cli(*call).out)
    assert list(made["plans"]) == ["diff_v2", "softmax"]
    pack, command = made["commands"]
    assert pack == "diffattn pack YOUR_TEXT --vocab-size 100288 --out runs/tokens"
    assert command.startswith("torchrun --nnodes 2 --nproc-per-node 8 ")
    assert command.endswith("--data runs/tokens")
    shown = json.loads(cli(*train_options(command), "--dry-run").out)
    expected = preset_settings("13.1b", "diff_v2").settings() | {"max_position_embeddings": 4_096}
    del expected["rope_parameters"]  # the configuration's own default
    assert {key: shown["model"][key] for key in expected} == expected
    assert shown["train"]["micro_batch_sequences"] == 2


def test_what_fits_nowhere_has_no_days_and_no_price(cli, step_of):
    step_of(75)
    call = ("plan", "3b", "--gpu", "h100", "--price", 3)
    called = cli(*call)
    assert called.code == 0
    assert called.out.splitlines() == [
        "3b does not fit on 1 x NVIDIA H100 SXM.",
        "It fits on 1 x NVIDIA H200 SXM:",
        "  diffattn plan 3b --gpu h200 --gpus 1",
    ]
    found = json.loads(cli(*call, "--json").out)
    assert found == {"plans": {}, "fits_on": [{"gpu": "h200", "gpus": 1}]}
    given = ("--attention", "shared_diff", "--set", "train.warmup_steps=9")
    assert cli(*call, *given).out.splitlines()[-1] == (
        f"  diffattn plan 3b {' '.join(given)} --gpu h200 --gpus 1"
    )
    step_of(1_000)
    called = cli(*call, "--set", "engine.parallel=ddp")
    assert called.out.splitlines() == [
        "3b does not fit on 1 x NVIDIA H100 SXM, with engine.parallel=ddp.",
        "Nor does it fit on any larger device, or on many more.",
    ]
