"""Blocks of query rows change neither the reference nor what rounding may do to it."""

import pytest
import torch

from diffattn.lab.testing.assertions import (
    exact_weights,
    output_and_gradients,
    reference_by_rows,
)
from diffattn.lab.testing.inputs import OP_CASES, make_diff_attention_inputs
from diffattn.lab.testing.rounding import rounding_errors, row_blocks
from diffattn.ops.attention import diff_attention


def test_blocks_hold_every_row_once():
    inputs = make_diff_attention_inputs(OP_CASES[2])
    per_row = 2 * 2 * 4 * 100
    blocks = list(row_blocks(inputs, 7 * per_row))
    assert torch.equal(torch.cat(blocks), torch.arange(100))
    assert max(map(len, blocks)) == 7
    assert [len(block) for block in row_blocks(inputs, 1)] == [1] * 100


@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_blocks_change_nothing(case):
    """Up to the order of float64 sums."""
    inputs = make_diff_attention_inputs(case)
    exact = inputs.map_tensors(torch.Tensor.double)
    out = diff_attention(*exact.tensors().values(), backend="reference", **exact.options)
    weights = exact_weights(out)
    whole = output_and_gradients(out, exact.tensors(), weights)
    few = 2 * out.shape[0] * out.shape[2] * inputs.k.shape[1] * 5
    in_blocks = reference_by_rows(inputs, weights, scores=few)
    assert whole.keys() == in_blocks.keys()
    for name, value in whole.items():
        torch.testing.assert_close(in_blocks[name], value, rtol=1e-12, atol=1e-12)
    errors = rounding_errors(inputs, weights)
    for name, value in rounding_errors(inputs, weights, scores=few).items():
        torch.testing.assert_close(value, errors[name], rtol=1e-8, atol=0)
