"""The decode kernel with one map: the softmax baseline, dense and through a block table."""

import pytest
import torch

from diffattn.errors import BackendError
from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OpCase
from diffattn.ops.backends import decode_op
from diffattn.ops.inputs.masking import AttentionMask
from ops.paged_inputs import pages_of, scattered

from .kernel_calls import inputs_of, softmax_decode

pytest.importorskip("triton", reason="the kernels need triton")

NARROW = {"head_dim": 32, "value_dim": 32, "shared_keys": True}
GQA = {"num_heads": 4, "num_kv_heads": 2}
CASES = [
    OpCase(name="T1", num_queries=1, num_keys=260, **NARROW, **GQA),
    OpCase(name="T3-group3", num_queries=3, num_keys=70, num_heads=6, num_kv_heads=2, **NARROW),
    OpCase(name="T16-noncausal", num_queries=16, num_keys=40, causal=False, **NARROW, **GQA),
    OpCase(name="rows-in-blocks", num_queries=16, num_keys=40, num_heads=18, num_kv_heads=1,
           batch=1, **NARROW),
    OpCase(name="T5-window-lengths", num_queries=5, num_keys=90, window=17, kv_lengths=(90, 61),
           scale=0.3, **NARROW),
    OpCase(name="empty-and-short", num_queries=4, num_keys=50, kv_lengths=(0, 2), **NARROW),
    OpCase(name="d64-wide", num_queries=2, num_keys=40, head_dim=64, value_dim=128,
           shared_keys=True, batch=1, **GQA),
]  # fmt: skip


def paged_softmax(q, k_pages, v_pages, lam, *, block_table, backend, scale=None, **options):
    """In the shape of ``paged_decode``; λ is 0."""
    q, scale, mask = q[:, :, :, 0], scale or q.shape[-1] ** -0.5, AttentionMask(**options)
    return decode_op.paged_softmax(q, k_pages, v_pages, block_table, scale=scale, mask=mask)


OPERATORS = {"dense": softmax_decode, "paged": pages_of(16, op=paged_softmax, fill=6e4)}


@pytest.mark.sampled(one_of=4)
@pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_map_is_softmax_attention(case, dtype, op, kernel_device):
    inputs = inputs_of(softmax_decode, case, dtype=dtype, device=kernel_device)
    assert_close_to_reference(op, inputs, backend="kernel", gradients=False)


def test_opcheck_without_lambda(kernel_device):
    inputs = inputs_of(softmax_decode, CASES[0], device=kernel_device)
    q, k, v = inputs.q.detach()[:, :, :, 0], inputs.k.detach(), inputs.v.detach()
    arguments = [q, k, v, None, 0.2, True, None, None, None]
    torch.library.opcheck(decode_op.triton_decode, arguments)


def test_a_gradient_is_refused(kernel_device):
    inputs = inputs_of(softmax_decode, CASES[0], device=kernel_device)
    (k_pages, table), (v_pages, _) = (scattered(x, 16) for x in (inputs.k, inputs.v))
    lengths = torch.full((2,), 260, dtype=torch.int32, device=kernel_device)
    with pytest.raises(BackendError, match=r"paged_softmax: .* must run under torch.no_grad"):
        decode_op.paged_softmax(
            inputs.q[:, :, :, 0], k_pages, v_pages, table, scale=0.2,
            mask=AttentionMask(kv_lengths=lengths),
        )  # fmt: skip
