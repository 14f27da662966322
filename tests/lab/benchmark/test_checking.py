"""The check finds what is wrong, wherever it is wrong, and passes what is right."""

import itertools

import pytest
import torch

from diffattn.lab.benchmark import checking
from diffattn.lab.benchmark.checking import Exact, device_lost, error_line
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention
from diffattn.ops.softmax_attention import softmax_attention

V1 = OpCase(name="v1", num_queries=200, batch=2, num_heads=3, num_kv_heads=3)
V2 = OpCase(
    name="v2", num_queries=200, batch=2, num_heads=3, num_kv_heads=3, value_dim=8,
    shared_keys=True, lam_axes="bth",
)  # fmt: skip
DECODE = OpCase(name="decode", num_queries=1, num_keys=70, num_heads=3, num_kv_heads=3)


@pytest.fixture(params=["whole", "rows"])
def extent(request, monkeypatch):
    if request.param == "rows":
        monkeypatch.setattr(checking, "_WHOLE_PAIRS", 0)
    return request.param


@pytest.mark.parametrize("case", [V1, V2, DECODE], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_right_backend_passes(dtype, case, extent):
    inputs = make_diff_attention_inputs(case, dtype=dtype)
    result = Exact(inputs).check(
        lambda: diff_attention(*inputs.tensors().values(), backend="composed"), True
    )
    assert result["passed"], result
    assert 0 <= result["error"] <= result["budget"]
    everything = extent == "whole" or case is DECODE  # of one row
    assert (result["compared"] == "everything") == everything


def test_right_softmax_passes(extent):
    inputs = make_diff_attention_inputs(V1)
    leaves = tuple(
        x.detach().requires_grad_()
        for x in (inputs.q.flatten(2, 3), inputs.k.flatten(2, 3), inputs.v.repeat(1, 1, 2, 1))
    )
    assert Exact.softmax(leaves).check(lambda: softmax_attention(*leaves), True)["passed"]
    off = Exact.softmax(leaves).check(lambda: softmax_attention(*leaves, scale=0.5), True)
    assert not off["passed"]


@pytest.mark.parametrize("part", ["output", "q", "k", "v", "lam"])
def test_wrong_values_and_gradients_are_found(part, extent):
    inputs = make_diff_attention_inputs(V1)

    def run():
        tensors = inputs.tensors()
        if part != "output":  # the value stays, its gradient is 1 % too large
            x = tensors[part]
            tensors[part] = 1.01 * x - 0.01 * x.detach()
        out = diff_attention(*tensors.values())
        return out + 0.01 * out.detach() if part == "output" else out

    exact = Exact(inputs)
    if part != "output":  # values of outputs alone are not taken for those of gradients
        assert exact.check(run, False)["passed"]
    result = exact.check(run, True)
    assert not result["passed"]
    assert part in result["worst"]
    assert result["error"] > result["budget"]


def test_not_a_number_anywhere_fails():
    inputs = make_diff_attention_inputs(V1)

    def run():
        out = diff_attention(*inputs.tensors().values())
        poison = torch.zeros_like(out)
        poison[0, 100, 1, 3] = float("nan")
        return out + poison

    result = Exact(inputs).check(run, False)
    assert not result["passed"]
    assert result["error"] is None


def test_the_compared_rows_reach_both_ends_and_lie_evenly_between(monkeypatch):
    monkeypatch.setattr(checking, "_WHOLE_PAIRS", 0)
    long = OpCase(name="long", num_queries=4_096, batch=1, num_heads=1, num_kv_heads=1)
    rows = Exact(make_diff_attention_inputs(long)).rows.tolist()
    assert rows[:16] == list(range(16))
    assert rows[-16:] == list(range(4_080, 4_096))
    assert len(rows) == len(set(rows)) == 46
    assert max(b - a for a, b in itertools.pairwise(rows)) <= 4_096 / 15


@pytest.mark.parametrize("place", [(0, 1, slice(0, 200)), (1, 1, slice(120, 200))], ids=str)
def test_a_head_between_the_others_is_looked_at(place, monkeypatch):
    monkeypatch.setattr(checking, "_WHOLE_PAIRS", 0)
    inputs = make_diff_attention_inputs(V1)

    def run():
        out = diff_attention(*inputs.tensors().values()).clone()
        b, h, rows = place
        out[b, rows, h] = 0
        return out

    assert not Exact(inputs).check(run, False)["passed"]


def test_an_error_in_late_rows_is_not_paid_for_by_early_ones():
    """The first rows are averages of few keys, and the largest."""
    long = OpCase(
        name="long", num_queries=1_024, num_heads=2, num_kv_heads=2, head_dim=64, value_dim=128
    )
    inputs = make_diff_attention_inputs(long, dtype=torch.bfloat16)
    tensors = [x.float() for x in inputs.tensors().values()]  # a CPU may be slow at bfloat16
    half = [*tensors[:3], tensors[3] / 2]
    out, exact = diff_attention(*tensors).bfloat16(), Exact(inputs)
    assert exact.check(lambda: out, False)["passed"]
    for name, late in {
        "future keys": diff_attention(*tensors, causal=False),
        "lost keys": diff_attention(*tensors, window=700),
        "half of λ": diff_attention(*half),
    }.items():
        wrong = torch.cat([out[:, :800], late[:, 800:].bfloat16()], dim=1)
        assert not exact.check(lambda wrong=wrong: wrong, False)["passed"], name


def test_an_error_in_one_line_keeps_where_and_why():
    long = error_line(ValueError("at 12:3: " + "source " * 500 + "out of registers"))
    assert long.startswith("ValueError: at 12:3: source")
    assert long.endswith("out of registers")
    assert len(long) < 700


def test_a_context_is_lost_when_it_cannot_be_waited_for(monkeypatch):
    def dead():
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    assert not device_lost()  # no context
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert not device_lost()
    monkeypatch.setattr(torch.cuda, "synchronize", dead)
    assert device_lost()
