"""Each control differs from its original in one thing."""

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.layers import controls
from diffattn.layers.attention import SoftmaxAttention
from diffattn.layers.diff_attention import DiffAttention, DiffAttentionV2
from diffattn.ops.attention import diff_attention
from diffattn.ops.softmax_attention import softmax_attention_maps

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


def test_matched_added_maps_have_rows_as_large_as_those_of_v2(x):
    """Where all tokens have one value, an output is that value times the sum of a row."""
    matched, v2 = pair(controls.MatchedAddedMapsAttention, DiffAttentionV2)
    same = torch.ones_like(x)
    torch.testing.assert_close(matched(same), v2(same), rtol=0, atol=1e-12)
    assert not torch.allclose(matched(x), v2(x))
    lam = v2.lambdas(x)[0][..., None]
    v = v2.v_proj(x).unflatten(-1, (HEADS, DIM))
    q, k = v2.queries_keys(x)
    added = diff_attention(q, k, v, -lam[..., 0])
    expected = v2.o_proj((added * (1 - lam) / (1 + lam)).flatten(2))
    torch.testing.assert_close(matched(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lambda_init", [0.8, -0.8])
def test_added_maps_are_v1_with_the_other_sign(x, lambda_init):
    """Its queries, keys, head norm and factor are V1's; it never subtracts, whatever λ becomes."""
    added, v1 = pair(controls.AddedMapsV1, DiffAttention, lambda_init=lambda_init)
    expected = v1(x, attend=lambda q, k, v, lam: v1.operator(q, k, v, -lam.abs()))
    torch.testing.assert_close(added(x), expected, rtol=0, atol=1e-12)
    assert torch.allclose(added(x), v1(x)) == (lambda_init < 0)
    assert added.lam() == v1.lam()


def test_a_uniform_second_map_is_v1_whose_second_queries_are_zero(x):
    uniform, v1 = pair(controls.UniformSecondMap, DiffAttention)
    for name in ("q_proj", "k_proj"):
        maps = v1.get_parameter(f"{name}.weight").data.view(HEADS, 2, DIM, WIDTH)
        if name == "q_proj":
            maps[:, 1] = 0
        uniform.get_parameter(f"{name}.weight").data.copy_(maps[:, 0].reshape(-1, WIDTH))
    torch.testing.assert_close(uniform(x), v1(x), rtol=0, atol=1e-12)
    v = v1.v_proj(x).unflatten(-1, (HEADS, 2 * DIM))
    seen = torch.arange(1, 8, dtype=torch.float64)[:, None, None]
    first = v1.operator(*uniform.queries_keys(x), v, torch.tensor(0.0))
    expected = v1.head_norm(first - v1.lam() * v.cumsum(1) / seen)
    torch.testing.assert_close(uniform(x), v1.o_proj(expected.flatten(2)), rtol=0, atol=1e-7)


def test_a_lambda_per_token_is_v1_where_it_equals_v1s(x):
    token, v1 = pair(controls.TokenLambdaAttention, DiffAttention)
    token.lambda_proj.weight.data.zero_()
    expected = v1(x, attend=lambda q, k, v, _: v1.operator(q, k, v, torch.tensor(0.5)))
    torch.testing.assert_close(token(x), expected, rtol=0, atol=1e-12)


def whole_maps(query, key, heads):
    """Causal maps of projections ``[B, T, heads D]``."""
    return softmax_attention_maps(*(y.unflatten(-1, (heads, DIM)) for y in (query, key)))


def v2_maps(layer, x):
    """Both maps and the values of V2, with one key/value head per head, by hand."""
    q = layer.q_proj(x).unflatten(-1, (HEADS, 2, DIM))
    k, v = layer.k_proj(x), layer.v_proj(x).unflatten(-1, (HEADS, DIM))
    maps = [whole_maps(q[..., i, :].flatten(2), k, HEADS) for i in (0, 1)]
    return *maps, v


def test_a_shuffled_map_has_v2s_weights_at_other_keys(x):
    layer = controls.ShuffledMapAttention(WIDTH, HEADS, DIM).double()
    first, second, v = v2_maps(layer, x)
    lam = layer.lambdas(x)[0].transpose(1, 2)[..., None]
    shuffled = (first - layer.acting_map(first, second, lam)) / lam
    torch.testing.assert_close(shuffled.sort(-1)[0], second.sort(-1)[0], rtol=0, atol=1e-12)
    assert not shuffled.triu(1).any()  # the future stays hidden
    assert not torch.allclose(shuffled, second)
    expected = torch.einsum("bhts,bshd->bthd", first - lam * shuffled, v)
    torch.testing.assert_close(layer(x), layer.o_proj(expected.flatten(2)), rtol=0, atol=1e-12)


def assert_v2_with_lambda(layer, x, lam):
    """Of V2's maps the second is subtracted ``lam`` times, ``[B, T, H]``."""
    first, second, v = v2_maps(layer, x)
    signed = first - lam.transpose(1, 2)[..., None] * second
    expected = torch.einsum("bhts,bshd->bthd", signed, v)
    torch.testing.assert_close(layer(x), layer.o_proj(expected.flatten(2)), rtol=0, atol=1e-12)


def test_without_lambda_the_maps_are_subtracted_whole(x):
    layer = controls.WholeDifferenceAttention(WIDTH, HEADS, DIM).double()
    assert_v2_with_lambda(layer, x, torch.ones(2, 7, HEADS))


def test_a_raw_lambda_is_its_projection(x):
    layer = controls.RawLambdaAttention(WIDTH, HEADS, DIM).double()
    layer.lambda_proj.weight.data.mul_(20)
    lam = layer.lambda_proj(x)
    assert lam.min() < 0
    assert lam.max() > 1
    assert_v2_with_lambda(layer, x, lam)
    assert layer.float().bfloat16().lambdas(x.bfloat16())[0].dtype == torch.float32


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_pairs_across_groups_read_different_keys_and_values(x, num_kv_heads):
    heads = 4
    layer = controls.AcrossGroupsAttention(WIDTH, heads, DIM, num_kv_heads=num_kv_heads).double()
    group = 2 * heads // num_kv_heads
    k, v = (
        projection(x).unflatten(-1, (num_kv_heads, DIM)).repeat_interleave(group, dim=2)
        for projection in (layer.k_proj, layer.v_proj)
    )
    maps = whole_maps(layer.q_proj(x), k.flatten(2), 2 * heads)
    out = torch.einsum("bhts,bshd->bthd", maps, v)
    lam = layer.lambda_proj(x).sigmoid()[..., None]
    expected = torch.stack(
        [out[:, :, i] - lam[:, :, i] * out[:, :, i + heads] for i in range(heads)], dim=2
    )
    torch.testing.assert_close(layer(x), layer.o_proj(expected.flatten(2)), rtol=0, atol=1e-12)


class TestNormOnTheMap:
    @pytest.fixture
    def layer(self):
        return controls.MapNormAttention(WIDTH, HEADS, DIM, layer_idx=1, shared_rank=2).double()

    def test_is_a_row_of_unit_length_before_v(self, layer, x):
        q, k = layer.queries_keys(x)
        first, second = (
            whole_maps(q[..., i, :].flatten(2), k[..., i, :].flatten(2), HEADS) for i in (0, 1)
        )
        signed = first - layer.lam() * second
        rows = signed / (signed.square().sum(-1, keepdim=True) + 1e-5).sqrt()
        v = layer.v_proj(x).unflatten(-1, (HEADS, 2 * DIM))
        out = (1 - layer.lambda_init) * torch.einsum("bhts,bshd->bthd", rows, v)
        torch.testing.assert_close(layer(x), layer.o_proj(out.flatten(2)), rtol=0, atol=1e-12)
        assert layer.lambda_init == pytest.approx(0.8 - 0.6 * 2.718281828**-0.3)

    def test_cannot_be_folded_into_v1(self, layer):
        with pytest.raises(ConfigError, match="fold must be left out"):
            layer.fold()
