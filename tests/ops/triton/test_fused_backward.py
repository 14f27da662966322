"""The backward pass by keys alone, which adds dQ up: against float64 and the two-kernel form."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from diffattn.lab.testing.assertions import exact_weights
from diffattn.lab.testing.budget import compare
from diffattn.lab.testing.inputs import make_diff_attention_inputs
from diffattn.lab.testing.rounding import rounding_errors
from diffattn.ops.inputs.masking import AttentionMask
from diffattn.ops.triton import configs, launch
from ops.triton.test_diff_attention_kernels import (  # noqa: F401  run again, in this form
    V1,
    V2,
    check,
    op,
    test_any_lambda,
    test_any_strides,
    test_every_width,
    test_logits_of_ten_thousand,
    test_query_without_keys_gives_zero,
)
from ops.triton.test_softmax_kernels import test_equals_softmax_attention  # noqa: F401

GROUP = replace(V1, name="gqa", num_heads=4, num_keys=20)


@pytest.fixture(autouse=True)
def _sums_in_any_order(monkeypatch):
    """The rule's choice where nothing asks for one order; the tests of this folder do ask."""
    monkeypatch.setattr(configs, "adds_in_order", lambda q: False)


def launched(case):
    """The gradients by name, and the launches that gave them."""
    inputs = make_diff_attention_inputs(case)
    launches = configs.backward_configs("", inputs.q, case.value_dim)
    out = op(*inputs.tensors().values(), backend="triton", **inputs.options)
    grads = torch.autograd.grad(out, list(inputs.tensors().values()), exact_weights(out))
    return dict(zip(inputs.tensors(), grads, strict=True)), set(launches)


@pytest.mark.parametrize(
    "case",
    [V1, V2, replace(V1, name="window-packed", num_queries=70, num_keys=None, window=40,
                     documents=(3, 60, 7))],
    ids=str,
)  # fmt: skip
def test_both_forms_agree(case, monkeypatch):
    fused, launches = launched(case)
    assert launches == {"bwd"}
    monkeypatch.setattr(configs, "adds_in_order", lambda q: True)
    in_order, launches = launched(case)
    assert launches == {"dkv", "dq"}
    inputs = make_diff_attention_inputs(case)
    out = op(*inputs.tensors().values(), backend="triton", **inputs.options)
    errors = rounding_errors(inputs, exact_weights(out))
    for name, grad in fused.items():
        compared = compare(grad, in_order[name].double(), errors[f"gradient of {name}"])
        assert not compared.problem, f"{name}: {compared.problem}"


@pytest.mark.parametrize("base", [V1, V2], ids=str)
def test_dv_as_a_launch_of_its_own(base, monkeypatch):
    """As on chips whose registers do not hold dK, dV and a product of dQ."""
    monkeypatch.setattr(configs, "BACKWARD_FORMS", (("dkq", "dv"),))
    assert launched(base)[1] == {"dkq", "dv"}
    check(make_diff_attention_inputs(base))


@pytest.mark.parametrize("in_order", [True, False], ids=["two-kernels", "one-kernel"])
@pytest.mark.parametrize("base", [GROUP, replace(GROUP, shared_keys=True, value_dim=32)], ids=str)
def test_query_heads_in_parts(base, in_order, monkeypatch):
    """As on a chip with more multiprocessors than blocks of keys."""
    monkeypatch.setattr(configs, "adds_in_order", lambda q: in_order)
    monkeypatch.setattr(launch, "num_multiprocessors", lambda device: 2)
    assert launch.group_splits(4, 1, torch.device("cpu")) == 2
    check(make_diff_attention_inputs(base))


@pytest.mark.parametrize(
    ("group", "num_programs", "multiprocessors", "splits"),
    [(1, 1, 132, 1), (8, 132, 132, 1), (8, 131, 132, 2), (8, 40, 132, 4), (8, 1, 132, 8),
     (6, 50, 132, 3), (7, 131, 132, 7), (8, 4096, 1, 1)],
)  # fmt: skip
def test_as_few_parts_as_fill_the_chip(group, num_programs, multiprocessors, splits, monkeypatch):
    monkeypatch.setattr(launch, "num_multiprocessors", lambda device: multiprocessors)
    assert launch.group_splits(group, num_programs, torch.device("cpu")) == splits


def test_masks_reach_the_kernel_by_keys_as_intervals():
    """Full tiles of padded, packed and windowed calls are not masked; see test_tile_bounds."""
    q, k = torch.zeros(2, 5, 1, 2, 4), torch.zeros(2, 8, 1, 2, 4)
    padding = torch.tensor([[0, 1, 1, 0, 1, 1, 0, 0], [0] * 8]).bool()
    mask = launch.key_mask(q, k, AttentionMask(key_padding_mask=padding, causal=False),
                           gradient=True)  # fmt: skip
    assert mask.first.tolist() == [[1] * 5, [8] * 5]
    assert mask.last.tolist() == [[6] * 5, [0] * 5]
    assert mask.before.tolist() == [[0, 0, 1, 2, 2, 3, 4, 4, 4], [0] * 9]
    assert mask.begin[0].tolist() == [0, 0, 0, 0, 0, 0, 5, 5]
    assert mask.end[0].tolist() == [0, 5, 5, 5, 5, 5, 5, 5]
