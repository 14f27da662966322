"""Contenders follow the backend tables, read one memory, and are counted by one formula."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import ModuleType

import pytest
import torch

from diffattn.lab.benchmark import contenders as module
from diffattn.lab.benchmark.config import Case
from diffattn.lab.benchmark.contenders import count_flops, operator_contenders, pairs
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention
from diffattn.ops.inputs import backends
from diffattn.ops.softmax_attention import softmax_attention

CASE = Case(
    suite="ops", device="cpu", dtype="float32", mode="forward_backward",
    shape={"B": 1, "H": 2, "d": 8, "N": 40},
)  # fmt: skip


@pytest.mark.parametrize("shape", [{}, {"attention": "v2"}, {"N": 1, "S": 30}], ids=str)
def test_every_backend_of_the_table_stands_and_is_right(shape):
    case = replace(CASE, shape={**CASE.shape, **shape})
    contenders = operator_contenders(case)
    assert [c.role for c in contenders if c.name == "sdpa"] == ["T"]
    of_diff = [c.name for c in contenders if c.role == "DIFF"]
    assert of_diff == list(backends.names("diff_attention"))
    for contender in contenders:
        if contender.refusal is None:
            assert contender.check(True)["passed"], contender.name
            contender.backward(contender.forward())
            assert contender.flops > 0


def test_softmax_reads_the_memory_that_diff_reads():
    """A twin on its own copy would see another state of the cache."""
    contenders = {c.name: c for c in operator_contenders(CASE)}
    softmax, diff = (contenders[name].backward.args[0] for name in ("sdpa", "composed"))
    for ours, theirs in zip(softmax, diff, strict=False):
        assert ours.untyped_storage().data_ptr() == theirs.untyped_storage().data_ptr()
        assert ours.numel() == theirs.numel()
    assert softmax[0].shape == (1, 40, 4, 8)
    assert contenders["sdpa"].forward().shape == (1, 40, 4, 8)


def test_our_softmax_techniques_are_tc_of_the_backend_of_the_same_name(monkeypatch):
    rows = tuple(backends.Backend(name=name, summary="") for name in ("sdpa", "composed"))
    monkeypatch.setitem(backends._TABLE, "softmax_attention", rows)
    monkeypatch.setattr(
        module, "softmax_attention", lambda q, k, v, backend: softmax_attention(q, k, v)
    )
    contenders = {c.name: c for c in operator_contenders(CASE)}
    twin = contenders["softmax_composed"]
    assert (twin.role, twin.technique) == ("TC", contenders["composed"].technique)
    assert twin.technique == "composed"
    assert twin.check(True)["passed"]
    assert "softmax_sdpa" not in contenders  # that is T
    only = operator_contenders(CASE, ("composed",))
    assert [c.name for c in only] == ["sdpa", "softmax_composed", "composed"]


def test_what_cannot_run_is_named_with_its_reason(monkeypatch):
    monkeypatch.setattr(module, "MAP_BYTES_LIMIT", 1_000)
    v2 = replace(CASE, shape={**CASE.shape, "attention": "v2"})
    refusals = {c.name: c.refusal for c in operator_contenders(v2)}
    for name in ("reference", "decode", "softmax_reference", "softmax_decode"):
        assert "its maps would take about" in refusals[name]
    assert refusals["softmax_chunked"] is None
    assert refusals["flash_diff_attn_2"].startswith("needs Dv = 2 head_dim")
    assert refusals["composed"] is None


def test_flex_is_fused_at_every_shape(monkeypatch):
    """Ten cases in one process: PyTorch gives up on a function at its ninth form, without a word.

    The function is small; what is counted is whether compiled code ran.
    """
    ran = []

    def compiler(graph, inputs):
        def run(*args):
            ran.append(graph)
            return graph(*args)

        return run

    monkeypatch.setattr(module, "diff_attention", lambda q, *, backend: q + 1)
    compiled_by = partial(torch.compile, backend=compiler)
    monkeypatch.setattr(torch, "compile", compiled_by)
    on_gpu = replace(CASE, device="cuda")
    for length in range(2, 12):
        q = torch.zeros(length)
        attend = module._operator(on_gpu, "flex")
        assert torch.equal(attend(q, backend="flex"), q + 1)
        assert len(ran) == length - 1
    assert len(set(ran)) == 10  # none served two shapes
    assert module._operator(on_gpu, "composed") is module.diff_attention


def test_operations_follow_the_documented_widths():
    inputs = backends.Inputs(
        device="cpu", dtype=torch.float32, batch=1, num_heads=2, num_queries=4, num_keys=4,
        head_dim=8, value_dim=16,
    )  # fmt: skip
    assert (pairs(4, 4), pairs(1, 9), pairs(3, 2)) == (10, 9, 3)
    unit = 2 * 10 * 4 * 8  # one product over 2H = 4 heads of 8
    facts = {"batch": 1, "num_heads": 2}

    def counted(backend):
        modes = ("forward", "backward", "forward_backward")
        counts = [count_flops(inputs, backend, mode=mode, **facts) // unit for mode in modes]
        assert counts[2] == counts[0] + counts[1]
        return counts[:2]

    assert count_flops(inputs, None, batch=1, num_heads=4, mode="forward") == 2 * unit
    assert count_flops(inputs, None, batch=1, num_heads=4, mode="backward") == 5 * unit
    assert counted("reference") == [2, 4]
    assert counted("chunked") == counted("not known yet") == [2, 5]
    assert counted("flash_diff_attn_1") == [3, 7]
    assert counted("flash_diff_attn_2") == counted("composed") == [4, 10]
    assert counted("triton") == [3, 5]


def test_kernels_of_others_compute_what_ours_compute(monkeypatch):
    """They have stand-ins on a CPU."""

    def flash_attn_func(q, k, v, *, causal):
        return softmax_attention(q, k, v, causal=causal), None

    package, cute = ModuleType("flash_attn"), ModuleType("flash_attn.cute")
    cute.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    monkeypatch.setattr(module, "sdpa_kernel", lambda kernel: nullcontext())
    shape = {"num_queries": 9, "num_kv_heads": 2, "lam_axes": "bth"}
    for shared, peer in (
        (True, module.one_call_of_flash_attention_4),
        (True, module.two_calls_by_cudnn),
        (False, module.two_calls_by_cudnn),
    ):
        case = OpCase(name="", shared_keys=shared, **shape)
        tensors = make_diff_attention_inputs(case, dtype=torch.float64).tensors().values()
        expected = diff_attention(*tensors, backend="reference")
        torch.testing.assert_close(peer(*tensors), expected, rtol=1e-10, atol=1e-10)
