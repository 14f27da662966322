"""Every backend of the baseline operator against its eager definition."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends, sdpa_kernel

from backend_skips import require_backend
from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OP_CASES, OpCase, make_diff_attention_inputs
from diffattn.ops.backends import composed
from diffattn.ops.inputs import backends
from diffattn.ops.softmax_attention import softmax_attention
from ops.backend_cases import every_backend

OP = "softmax_attention"
LONG = OpCase(name="long", num_queries=130, num_keys=300, batch=1, num_heads=2, num_kv_heads=1)


def softmax(q, k, v, lam, *, backend, **options):
    """Softmax attention of map 1, in the shape of the other operator."""
    k = k if k.ndim == 4 else k[:, :, :, 0]
    return softmax_attention(q[:, :, :, 0], k, v, backend=backend, **options) + 0 * lam.sum()


@pytest.mark.sampled(one_of=3)
@every_backend(
    *OP_CASES, LONG, dtypes=(torch.float32, torch.bfloat16, torch.float64), op=OP,
    without=("reference",),
)  # fmt: skip
def test_backend_matches_reference(backend, dtype, case, device):
    """Output and every gradient stay within twice the error that rounding alone causes."""
    require_backend(OP, backend, device=device, dtype=dtype, case=case)
    inputs = make_diff_attention_inputs(case, dtype=dtype, device=device)
    zero = replace(inputs, lam=torch.zeros_like(inputs.lam).requires_grad_())
    assert_close_to_reference(softmax, zero, backend=backend)


@pytest.mark.parametrize(
    ("facts", "chosen"),
    [
        ({"num_queries": 1}, "decode"),
        ({"num_queries": 100}, "sdpa"),
        ({"num_queries": 100, "num_keys": 512}, "chunked"),
        ({"num_queries": 100, "dtype": torch.bfloat16}, "chunked"),
        ({"num_queries": 100, "dtype": torch.float16, "num_keys": 512}, "sdpa"),
        ({"num_queries": 100, "device": "cuda", "num_keys": 512}, "sdpa"),
    ],
)
def test_auto_is_one_rule(facts, chosen):
    usual = {"device": "cpu", "dtype": torch.float32, "batch": 1, "num_heads": 4, "num_keys": 100}
    inputs = backends.Inputs(**(usual | {"head_dim": 8, "value_dim": 8} | facts))
    assert backends.resolve(OP, "auto", inputs) == chosen


def test_cudnn_is_asked_first_on_hopper_and_no_kernel_that_the_user_forbids(monkeypatch):
    """Read inside the call, also of compiled code; no kernel of a GPU is run."""
    orders, whole = [], torch._C._get_sdp_priority_order()
    real = torch.nn.functional.scaled_dot_product_attention

    def attend(*tensors, **options):
        orders.append(_cur_sdpa_kernel_backends(with_priority=True))
        return real(*tensors, **options)

    q = torch.randn(1, 6, 2, 8, dtype=torch.bfloat16)
    monkeypatch.setattr(composed.kernel_support, "compute_capability", lambda device: (9, 0))
    expected = composed.attend(q, q, q, scale=0.3)
    compiled = torch.compile(composed.attend, fullgraph=True, backend="eager")
    assert torch.equal(compiled(q, q, q, scale=0.3), expected)
    monkeypatch.setattr(composed.F, "scaled_dot_product_attention", attend)
    composed.attend(q, q, q, scale=0.3)
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        composed.attend(q, q, q, scale=0.3)
    assert torch._C._get_sdp_priority_order() == whole
    assert orders[0][:2] == [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
    assert orders[1] == [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    before = _cur_sdpa_kernel_backends(with_priority=True)
    for changed, capability in ((q.float(), (9, 0)), (q, (8, 0))):
        monkeypatch.setattr(
            composed.kernel_support, "compute_capability", lambda _, c=capability: c
        )
        composed.attend(changed, changed, changed, scale=0.3)
        assert orders[-1] == before
