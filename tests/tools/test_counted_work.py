"""The counted work is what the kernels multiply, and what docs/records/counted_work.md says."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime import interpreter

from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.backends import custom_op
from diffattn.ops.triton import configs
from tools import counted_work as work

BASE = OpCase(name="v1", num_queries=70, batch=1, num_heads=2, num_kv_heads=1, head_dim=32,
              value_dim=64)  # fmt: skip
CASES = [BASE, replace(BASE, name="v2-T<S", num_keys=90, shared_keys=True, value_dim=32),
         replace(BASE, name="T>S", num_keys=40)]  # fmt: skip


@pytest.fixture
def multiplied(monkeypatch):
    """Multiply-adds of every product that the interpreter computes, one entry each."""
    sizes = []
    multiply = interpreter.InterpreterBuilder.create_dot

    def count(self, a, b, *rest):
        sizes.append(a.data.shape[0] * a.data.shape[1] * b.data.shape[1])
        return multiply(self, a, b, *rest)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", count)
    return sizes


@pytest.mark.parametrize("form", configs.BACKWARD_FORMS, ids="-".join)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_counts_are_those_of_the_kernels(case, form, multiplied, monkeypatch):
    monkeypatch.setattr(configs, "adds_in_order", lambda q: False)
    monkeypatch.setattr(configs, "BACKWARD_FORMS", (form,))
    inputs = make_diff_attention_inputs(case)
    out = custom_op.diff_attention(*inputs.tensors().values(), scale=0.2)
    torch.autograd.grad(out.sum(), list(inputs.tensors().values()))
    launches = configs.forward_configs("", inputs.q, case.value_dim)
    launches |= configs.backward_configs("", inputs.q, case.value_dim)
    assert sum(multiplied) == case.num_heads * work.multiply_adds(
        launches, case.head_dim, case.value_dim, case.num_queries, inputs.k.shape[1]
    )


@pytest.mark.parametrize("form", [("bwd",), ("dkv", "dq")], ids="-".join)
def test_counts_are_those_of_the_softmax_kernels(form, multiplied, monkeypatch):
    monkeypatch.setattr(configs, "adds_in_order", lambda q: False)
    monkeypatch.setattr(configs, "BACKWARD_FORMS", (form,))
    inputs = make_diff_attention_inputs(CASES[1])
    tensors = [inputs.q.detach()[:, :, :, 0].requires_grad_(), inputs.k, inputs.v]
    out = custom_op.softmax_attention(*tensors, scale=0.2)
    torch.autograd.grad(out.sum(), tensors)
    launches = configs.forward_configs("softmax_", tensors[0], 32)
    launches |= configs.backward_configs("softmax_", tensors[0], 32)
    launches = {f"softmax_{launch}": config for launch, config in launches.items()}
    assert sum(multiplied) == 2 * work.multiply_adds(launches, 32, 32, 70, 90)


def test_numerics_has_the_table():
    numerics = Path(__file__).parents[2] / "docs" / "records" / "counted_work.md"
    assert work.table() in numerics.read_text(encoding="utf-8"), (
        "python -m tools.counted_work prints the table as it should be"
    )
