"""The memory of a step: equal to what a step allocates, whatever runs it."""

import functools
import itertools
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from diffattn.lab.catalog.models import TYPES
from diffattn.lab.training.config import TrainConfig
from diffattn.lab.training.planning.step_memory import OPTIMIZER, LiveBytes, step_memory
from diffattn.lab.training.trainer import optimizer_and_scheduler
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.ops.inputs import kernel_support
from diffattn.probes.passes import window_inputs

TRAIN = TrainConfig(num_steps=30, batch_tokens=512, seq_len=128)


def config(attention_type="diff", **changes):
    settings = {"vocab_size": 512, "max_position_embeddings": 512, "num_hidden_layers": 3} | changes
    softmax = DiffTransformerConfig(
        attention_type="softmax", hidden_size=64, num_heads=4, **settings
    )
    return softmax.twin(attention_type, match="heads").config


def take_two_steps(model_config, sequences, positions=None, chunk=None, before=lambda: None):
    """The first gives the optimizer its state."""
    model = DiffTransformerForCausalLM(model_config).train()
    model.loss_chunk_tokens = chunk
    optimizer, _ = optimizer_and_scheduler(model, TRAIN)
    ids = torch.zeros(sequences, TRAIN.seq_len, dtype=torch.int64)
    rows = window_inputs(ids, positions)
    for _ in range(2):
        before()
        model(**rows, labels=rows["input_ids"], use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def really_alive(model_config, sequences, positions=None):
    """The most bytes alive in two real steps."""
    live = LiveBytes(lambda func, args, tensor: "all")
    with live:
        take_two_steps(model_config, sequences, positions, before=lambda: live.enter("step"))
    return sum(live.peaks["step"].values())


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"qkv_bias": True, "qk_norm": True}, marks=pytest.mark.scheduled)],
    ids=str,
)
def test_estimate_is_what_a_real_step_holds(options):
    """The backend holds its maps, so that no memory of its own is added."""
    model = config(attention_backend="reference", **options)
    step = step_memory(model, TRAIN, sequences=4, accumulates=False, device="cpu")
    assert step.backend == "reference"
    assert sum(step.peak.values()) == pytest.approx(really_alive(model, 4), rel=1e-3)
    parameters = sum(p.numel() for p in DiffTransformerForCausalLM(model).parameters())
    assert step.phases[OPTIMIZER]["optimizer"] == pytest.approx(8 * parameters, rel=1e-2)
    assert step.root_parameters + 3 * step.block_parameters == parameters


@pytest.mark.parametrize(
    ("attention_type", "backend", "times"),
    [("diff", "reference", 2), pytest.param("softmax", "sdpa", 1, marks=pytest.mark.scheduled)],
)
def test_documents_kept_apart_are_one_row(attention_type, backend, times):
    """Maps or masks are of the whole row: of one map four times those of windows side by side.
    How many documents there are makes no difference."""
    model = config(attention_type, attention_backend=backend)
    of_four = functools.partial(step_memory, model, TRAIN, sequences=4, accumulates=False)
    step, side_by_side = (of_four(device="cpu", apart=apart) for apart in (True, False))
    needed = sum(step.peak.values())
    for documents in (1, 4):
        positions = torch.arange(TRAIN.seq_len // documents).repeat(documents).expand(4, -1)
        assert needed == pytest.approx(really_alive(model, 4, positions), rel=1e-3)
    assert needed > times * sum(side_by_side.peak.values())


def most_allocated(model_config, sequences, chunk):
    """The most bytes that PyTorch's CPU allocator held in two steps."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        take_two_steps(model_config, sequences, chunk=chunk)
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events))


def test_a_loss_in_chunks_is_counted_as_the_allocator_sees_it():
    """A chunk that is no divisor of the 512 tokens; the logits of all of them would be 12.6 MB."""
    model = config(attention_backend="reference", vocab_size=2_048)
    counted = functools.partial(step_memory, model, TRAIN, sequences=4, accumulates=False)
    step = counted(device="cpu", loss_chunk_tokens=100)
    assert sum(step.peak.values()) == pytest.approx(most_allocated(model, 4, 100), rel=2e-3)
    assert step.peak["logits"] == 3 * 4 * 100 * 2_048
    assert counted(device="cpu").peak["logits"] == 3 * 4 * 512 * 2_048


@pytest.mark.scheduled
@pytest.mark.parametrize("chunk", [None, 100])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("attention_type", TYPES)
def test_two_layers_tell_what_all_of_them_need(attention_type, precision, checkpointing, chunk):
    train = replace(TRAIN, precision=precision)
    options = {"sequences": 4, "device": "cpu"}
    options |= {"checkpointing": checkpointing, "loss_chunk_tokens": chunk}
    counted = functools.partial(step_memory, config(attention_type), train, **options)
    for accumulates in (False, True):
        few, all_layers = (counted(accumulates=accumulates, whole=w) for w in (False, True))
        assert sum(few.peak.values()) == pytest.approx(sum(all_layers.peak.values()), rel=2e-3)


def test_the_backend_of_a_gpu_without_a_record_is_said(monkeypatch):
    """On a GPU that is here and has one, too: another machine is meant."""
    monkeypatch.setenv(kernel_support.VARIABLE, "1")
    monkeypatch.setattr(kernel_support, "_CAPABILITIES", {None: (9, 0)})
    longer = replace(TRAIN, precision="bfloat16")
    chosen = functools.partial(
        step_memory, train=longer, sequences=1, accumulates=False, device="cuda", elsewhere=True
    )
    model = config(head_dim=32, num_hidden_layers=1)
    tested, untested = chosen(model), chosen(model, tested=False)
    named = chosen(config(head_dim=32, num_hidden_layers=1, attention_backend="triton"))
    assert [x.backend for x in (tested, untested, named)] == ["triton", "composed", "triton"]


def test_a_gpu_keeps_no_map_and_adds_the_optimizers_square_roots():
    longer = TrainConfig(num_steps=30, batch_tokens=2048, seq_len=512)
    model = config(head_dim=32, attention_backend="triton")
    options = {"sequences": 4, "accumulates": False, "device": "cuda", "elsewhere": True}
    on_gpu = step_memory(model, longer, **options)
    assert on_gpu.backend == "triton"
    one_map = 4 * model.num_heads * 512 * 512 * 4
    eager = config(head_dim=32, attention_backend="reference")
    maps = step_memory(eager, longer, **options)
    # Both maps of three layers.
    assert maps.peak["activations"] - on_gpu.peak["activations"] > 3 * 2 * one_map
    weights = on_gpu.phases[OPTIMIZER]["weights"]
    assert on_gpu.phases[OPTIMIZER]["working"] == pytest.approx(weights, rel=1e-2)
