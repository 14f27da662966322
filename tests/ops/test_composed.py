"""Each composed form equals the eager definition, called directly."""

import pytest
import torch

from diffattn.ops.backends import reference
from diffattn.ops.backends.composed import flash_diff_attn_1, flash_diff_attn_2, one_call
from diffattn.ops.inputs.masking import AttentionMask

FORMS = [one_call, flash_diff_attn_1, flash_diff_attn_2]


def _inputs(num_kv_heads=2, shared_keys=False, value_dim=16):
    generator = torch.Generator().manual_seed(1)
    keys = (2, 9, num_kv_heads, 8) if shared_keys else (2, 9, num_kv_heads, 2, 8)
    shapes = [(2, 7, 4, 2, 8), keys, (2, 9, num_kv_heads, value_dim), (2, 7, 4)]
    return [
        torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes
    ]


def _bound(expected):
    # Sums of at most 9 products in another order: a few units in the last place.
    return 64 * torch.finfo(torch.float64).eps * float(expected.detach().abs().max())


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
def test_form_equals_the_definition(form, causal, num_kv_heads):
    inputs = _inputs(num_kv_heads)
    mask = AttentionMask(causal)
    expected = reference.forward(*inputs, scale=0.3, mask=mask)
    actual = form(*inputs, scale=0.3, mask=mask)
    assert (actual - expected).abs().max() <= _bound(expected)
    weights = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected)
    gradients = torch.autograd.grad((actual * weights).sum(), inputs)
    for gradient, exact in zip(
        gradients, torch.autograd.grad((expected * weights).sum(), inputs), strict=True
    ):
        assert (gradient - exact).abs().max() <= _bound(exact)


@pytest.mark.parametrize("form", [one_call, flash_diff_attn_1], ids=lambda form: form.__name__)
@pytest.mark.parametrize("value_dim", [8, 16, 24])
def test_shared_keys_and_any_value_width(form, value_dim):
    inputs = _inputs(shared_keys=True, value_dim=value_dim)
    expected = reference.forward(*inputs, scale=0.3)
    assert (form(*inputs, scale=0.3) - expected).abs().max() <= _bound(expected)


def test_one_call_makes_one_call(monkeypatch):
    calls = []
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def count(*args, **kwargs):
        calls.append(args[1].shape)
        return sdpa(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", count)
    one_call(*_inputs(), scale=0.3)
    assert calls == [(2, 2, 9, 16)]  # keys of both maps side by side, not repeated
