"""Paged decoding: every contender reads the same keys, is right, and is counted."""

from dataclasses import replace

import pytest
import torch

from diffattn.lab.benchmark import paged as module
from diffattn.lab.benchmark.config import BenchConfig, Case, contender_names
from diffattn.lab.benchmark.paged import paged_contenders
from diffattn.lab.benchmark.session import plan
from diffattn.ops.inputs import kernel_support
from diffattn.ops.inputs.masking import AttentionMask

CASE = Case(
    suite="paged", device="cpu", dtype="float32", mode="decode",
    shape={"B": 2, "H": 2, "d": 8, "N": 1, "S": 21, "page": 8},
)  # fmt: skip


@pytest.mark.parametrize("attention", [{}, {"attention": "v2"}], ids=("v1", "v2"))
def test_every_contender_is_right(attention):
    case = replace(CASE, shape={**CASE.shape, **attention})
    contenders = paged_contenders(case)
    assert tuple(c.name for c in contenders) == contender_names("paged")
    ran = [c for c in contenders if c.refusal is None]
    assert {c.name for c in ran} == {"sdpa", "reference", "gathered", "dense_decode"}
    for contender in ran:
        check = contender.check(False)
        assert check["passed"], contender.name
        assert check["compared"] == "everything"
        assert contender.flops > 0


@pytest.mark.parametrize("attention", [{}, {"attention": "v2"}], ids=("v1", "v2"))
def test_the_kernels_are_compared_with_softmax_of_their_technique(attention, monkeypatch):
    """Not timed in the interpreter, but right there; a GPU times both."""
    pytest.importorskip("triton", reason="the kernels need triton")
    case = replace(CASE, shape={**CASE.shape, "d": 32, **attention})
    made = paged_contenders(case, ("triton", "softmax_triton"))
    assert [(c.name, c.role, c.technique) for c in made] == [
        ("sdpa", "T", "sdpa"), ("softmax_triton", "TC", "triton"), ("triton", "DIFF", "triton"),
    ]  # fmt: skip
    if "cpu" not in kernel_support.devices():
        pytest.skip("CPU tensors need Triton's interpreter")
    assert all("interpreter" in c.refusal for c in made[1:])
    assert all(c.check(False)["passed"] for c in made)
    assert made[1].flops == made[0].flops
    mask = AttentionMask(kv_lengths=torch.tensor([21, 20], dtype=torch.int32))
    monkeypatch.setattr(module, "AttentionMask", lambda kv_lengths: mask)
    (short,) = (c for c in paged_contenders(case) if c.name == "softmax_triton")
    assert not short.check(False)["passed"]


def test_a_page_in_the_wrong_place_is_found(monkeypatch):
    gather = module.gathered_pages
    monkeypatch.setattr(module, "gathered_pages", lambda x, table: gather(x, table.flip(1)))
    first, *_ = paged_contenders(CASE)
    assert not first.check(False)["passed"]


def test_the_plan_and_what_only_keeps():
    (case, *_) = plan(BenchConfig(suite="paged", scale="quick", lengths=(64,)))
    assert (case.mode, case.shape["page"], case.shape["S"]) == ("decode", 64, 64)
    assert [c.name for c in paged_contenders(CASE, ("gathered",))] == ["sdpa", "gathered"]
