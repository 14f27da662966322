"""Each control differs from its original in one thing."""

import pytest
import torch

from diffattn.layers import controls
from diffattn.layers.diff_attention import DiffAttention
from diffattn.layers.diff_attention_v2 import DiffAttentionV2
from diffattn.layers.softmax_attention import SoftmaxAttention

WIDTH, HEADS, DIM = 24, 3, 4


def pair(control, original, **options):
    """Both layers with the same weights, as far as they have the same."""
    control = control(WIDTH, HEADS, DIM, layer_idx=1, **options).double()
    original = original(WIDTH, HEADS, DIM, layer_idx=1, **options).double()
    for name, weight in original.named_parameters():
        there = dict(control.named_parameters()).get(name)
        if there is not None and there.shape == weight.shape:
            control.get_parameter(name).data.copy_(weight)
    return control, original


@pytest.fixture
def x():
    return torch.randn(2, 7, WIDTH, dtype=torch.float64)


def test_no_attention_is_zero_and_has_no_parameters(x):
    layer = controls.NoAttention(WIDTH, HEADS, DIM)
    assert torch.equal(layer(x), torch.zeros_like(x))
    assert not list(layer.parameters())


def test_half(x):
    control, softmax = pair(controls.HalvedAttention, SoftmaxAttention)
    assert torch.equal(control(x), softmax(x) / 2)


def test_minus_the_mean_of_the_values_that_a_token_sees(x):
    control, softmax = pair(controls.MeanFreeAttention, SoftmaxAttention)
    v = softmax.v_proj(x)
    seen = torch.arange(1, 8, dtype=torch.float64)[:, None]
    means = softmax.o_proj(v.cumsum(1) / seen)
    torch.testing.assert_close(control(x), softmax(x) - 0.7 * means, rtol=0, atol=1e-7)


def test_a_gate_is_v2_whose_maps_are_equal(x):
    """With equal queries both maps are one, and V2 is that map times 1 - λ."""
    gate, v2 = pair(controls.GatedAttention, DiffAttentionV2)
    rows = v2.q_proj.weight.data.view(HEADS, 2, DIM, WIDTH)
    rows[:, 1] = rows[:, 0]
    gate.q_proj.weight.data.copy_(rows[:, 0].reshape(-1, WIDTH))
    torch.testing.assert_close(gate(x), v2(x), rtol=0, atol=1e-12)


def test_a_constant_is_v2_without_a_projection_of_lambda(x):
    constant, v2 = pair(controls.ConstantLambdaAttention, DiffAttentionV2)
    v2.lambda_proj.weight.data.zero_()  # σ(0) = ½
    torch.testing.assert_close(constant(x), v2(x), rtol=0, atol=1e-12)


def test_added_maps_are_v2_with_the_other_sign(x):
    added, v2 = pair(controls.AddedMapsAttention, DiffAttentionV2)
    assert not torch.allclose(added(x), v2(x))
    first = SoftmaxAttention(WIDTH, HEADS, DIM).double()
    first.q_proj.weight.data.copy_(
        v2.q_proj.weight.data.view(HEADS, 2, DIM, WIDTH)[:, 0].reshape(-1, WIDTH)
    )
    for name in ("k_proj", "v_proj", "o_proj"):
        first.get_parameter(f"{name}.weight").data.copy_(v2.get_parameter(f"{name}.weight"))
    # (A1 - λA2) + (A1 + λA2) = 2 A1
    torch.testing.assert_close(added(x) + v2(x), 2 * first(x), rtol=0, atol=1e-12)


def test_a_lambda_per_token_is_v1_where_it_equals_v1s(x):
    token, v1 = pair(controls.TokenLambdaAttention, DiffAttention)
    token.lambda_proj.weight.data.zero_()
    expected = v1(x, attend=lambda q, k, v, _: v1.operator(q, k, v, torch.tensor(0.5)))
    torch.testing.assert_close(token(x), expected, rtol=0, atol=1e-12)
