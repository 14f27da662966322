"""The decode kernel with one map: the softmax baseline, dense and through a block table."""

from dataclasses import replace

import pytest
import torch

from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.ops.backends import custom_op
from diffattn.ops.inputs.masking import AttentionMask
from ops.paged_inputs import pages_of

from .kernel_calls import inputs_of, softmax_decode
from .test_decode import CASES as DENSE_CASES

pytest.importorskip("triton", reason="the kernels need triton")

CASES = [replace(case, shared_keys=True, padding=None) for case in DENSE_CASES]
"""Pages know no padding."""


def paged_softmax(q, k_pages, v_pages, lam, *, block_table, backend, scale=None, **options):
    """In the shape of ``paged_decode``; λ is 0."""
    q, scale, mask = q[:, :, :, 0], scale or q.shape[-1] ** -0.5, AttentionMask(**options)
    return custom_op.paged_softmax(q, k_pages, v_pages, block_table, scale=scale, mask=mask)


OPERATORS = {"dense": softmax_decode, "paged": pages_of(16, op=paged_softmax, fill=6e4)}


@pytest.mark.sampled(one_of=8)
@pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_map_is_softmax_attention(case, dtype, op, kernel_device):
    inputs = inputs_of(softmax_decode, case, dtype=dtype, device=kernel_device)
    assert_close_to_reference(op, inputs, backend="kernel", gradients=False)


def test_opcheck_without_lambda(kernel_device):
    case = replace(CASES[0], batch=1, num_heads=1, num_kv_heads=1, num_keys=5)
    inputs = inputs_of(softmax_decode, case, device=kernel_device)
    q, k, v = inputs.q.detach()[:, :, :, 0], inputs.k.detach(), inputs.v.detach()
    arguments = [q, k, v, None, 0.2, True, None, None, None]
    torch.library.opcheck(custom_op.triton_decode, arguments)
