"""The counted work is what the kernels multiply, and what docs/records/counted_work.md says."""

from dataclasses import replace
from itertools import cycle
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


@pytest.mark.sampled(one_of=4)
@pytest.mark.parametrize(
    ("op", "form", "case"),
    [
        *(("", *pair) for pair in zip(configs.BACKWARD_FORMS, cycle(CASES), strict=False)),
        ("softmax_", ("bwd",), CASES[1]),
        ("softmax_", ("dkv", "dq"), CASES[1]),
    ],
)
def test_counts_are_those_of_the_kernels(op, form, case, multiplied, monkeypatch):
    monkeypatch.setattr(configs, "adds_in_order", lambda q: False)
    monkeypatch.setattr(configs, "BACKWARD_FORMS", (form,))
    inputs = make_diff_attention_inputs(case)
    tensors = list(inputs.tensors().values())
    run = custom_op.diff_attention
    if op:
        tensors = [tensors[0].detach()[:, :, :, 0].requires_grad_(), *tensors[1:3]]
        run = custom_op.softmax_attention
    torch.autograd.grad(run(*tensors, scale=0.2).sum(), tensors)
    launches = configs.forward_configs(op, tensors[0], case.value_dim)
    launches |= configs.backward_configs(op, tensors[0], case.value_dim)
    launches = {f"{op}{launch}": config for launch, config in launches.items()}
    assert sum(multiplied) == case.num_heads * work.multiply_adds(
        launches, case.head_dim, case.value_dim, case.num_queries, inputs.k.shape[1]
    )


def test_numerics_has_the_table():
    numerics = Path(__file__).parents[2] / "docs" / "records" / "counted_work.md"
    assert work.table() in numerics.read_text(encoding="utf-8"), (
        "python -m tools.counted_work prints the table as it should be"
    )
