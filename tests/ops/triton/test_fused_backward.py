"""The backward pass by keys alone, which adds dQ up, against float64; see also test_real_tiles."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from diffattn.lab.testing.inputs import make_diff_attention_inputs
from diffattn.ops.triton import configs, launch
from ops.triton.test_diff_attention_kernels import (  # noqa: F401  run again, in this form
    V1,
    check,
    test_any_lambda,
    test_any_strides,
    test_every_width,
    test_logits_of_ten_thousand,
    test_query_without_keys_gives_zero,
)
from ops.triton.test_softmax_kernels import test_equals_softmax_attention  # noqa: F401

pytestmark = pytest.mark.sampled(one_of=3 if configs.interpreted() else 1)
GROUP = replace(V1, name="gqa", num_heads=4, num_keys=20)


@pytest.fixture(autouse=True)
def _sums_in_any_order(monkeypatch):
    """The rule's choice where nothing asks for one order; the tests of this folder do ask."""
    monkeypatch.setattr(configs, "adds_in_order", lambda q: False)
    assert set(configs.backward_configs("", torch.empty(1, 1, 1, 2, 32), 64)) == {"bwd"}


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
