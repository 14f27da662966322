"""Calls that must not pass PyTorch's dispatcher by: their tensors are no plain memory."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention

pytest.importorskip("triton")

CASE = OpCase(name="", num_queries=5, batch=1, num_heads=2, num_kv_heads=1, head_dim=32,
              value_dim=64, lam_axes="h")  # fmt: skip


@pytest.fixture
def tensors(kernel_device):
    return list(make_diff_attention_inputs(CASE, device=kernel_device).tensors().values())


def triton(*tensors):
    return diff_attention(*tensors, backend="triton")


def test_gradients_of_many_outputs_at_once(tensors):
    out = triton(*tensors)
    many = torch.randn(3, *out.shape, device=out.device)
    options = {"retain_graph": True}
    batched = torch.autograd.grad(out, tensors, many, is_grads_batched=True, **options)
    for index, grad in enumerate(many):
        alone = torch.autograd.grad(out, tensors, grad, **options)
        torch.testing.assert_close([x[index] for x in batched], list(alone), rtol=1e-5, atol=1e-6)


def test_a_lazy_negation_is_read_as_what_it_is(tensors, kernel_device):
    q, k, v, _ = (x.detach() for x in tensors)
    generator = torch.Generator().manual_seed(0)
    lam = torch.randn(2, dtype=torch.complex64, generator=generator).to(kernel_device).conj().imag
    assert lam.is_neg()
    expected = diff_attention(q, k, v, lam.resolve_neg(), backend="reference")
    torch.testing.assert_close(triton(q, k, v, lam), expected, rtol=1e-5, atol=1e-5)


def test_a_graph_traced_before_dispatch_holds_the_operator(tensors):
    traced = make_fx(triton, pre_dispatch=True)(*(x.detach() for x in tensors))
    targets = {str(node.target) for node in traced.graph.nodes}
    assert any("diffattn.triton_diff_attention_inference" in name for name in targets)


def test_a_gradient_that_is_a_lazy_zero(tensors):
    out = triton(*tensors)
    zero = torch._efficientzerotensor(out.shape, dtype=out.dtype, device=out.device)
    for grad in torch.autograd.grad(out, tensors, zero):
        assert not grad.any()
