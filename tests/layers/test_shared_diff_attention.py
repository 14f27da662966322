"""SharedDiffAttention: its start, its folding, and the weight that it never forms."""

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.layers.diff_attention import DiffAttention
from diffattn.layers.shared_diff_attention import SharedDiffAttention, folded_weight
from diffattn.ops.attention import diff_attention_maps
from diffattn.ops.inputs.formulas import rotary_embedding
from tensor_sizes import Sizes

HIDDEN, LENGTH, DIM, RANK = 12, 6, 4, 3


def make(num_heads=4, **options):
    return SharedDiffAttention(HIDDEN, num_heads, DIM, shared_rank=RANK, **options)


def test_maps_differ_at_step_0_and_lambda_learns():
    """With equal maps the head norm would cancel 1 − λ, and with it the gradient of λ."""
    layer = make().double()
    x = torch.randn(2, LENGTH, HIDDEN, dtype=torch.float64)
    q, k = layer.queries_keys(x)
    map_1, map_2, _ = diff_attention_maps(q, k, layer.lam())
    assert (map_1 - map_2).abs().amax((0, 2, 3)).min() > 0.01  # in every head
    layer(x).square().sum().backward()
    alive = layer.lambda_q1.grad.abs().max()
    assert alive > 1e-4
    layer.zero_grad()
    with torch.no_grad():
        layer.q_up.zero_()
        layer.k_up.zero_()
    layer.head_norm.eps = 1e-12
    layer(x).square().sum().backward()
    assert layer.lambda_q1.grad.abs().max() < 1e-6 * alive


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(
    "options",
    [{}, {"head_norm_affine": False}, {"head_norm": False}, {"head_norm_eps": 0.1},
     {"lambda_init": 0.9}, {"layer_idx": 3}, {"qkv_bias": True, "qk_norm_eps": 0.1}],
    ids=str,
)  # fmt: skip
def test_folded_equals_unfolded(kv_heads, options, assert_matches_formula):
    layer = make(num_kv_heads=kv_heads, **options)
    if options.get("head_norm_affine", True) and options.get("head_norm", True):
        torch.nn.init.uniform_(layer.head_norm.weight, 0.5, 2.0)
    if "qk_norm_eps" in options:
        torch.nn.init.uniform_(layer.q_norm.weight, 0.5, 2.0)
        torch.nn.init.uniform_(layer.k_norm.weight, 0.5, 2.0)
    assert type(layer.fold()) is DiffAttention
    assert layer.fold().layer_idx == layer.layer_idx
    tables = rotary_embedding(torch.arange(LENGTH), DIM)
    assert_matches_formula(
        layer, lambda layer, x, rotary: layer.fold()(x, rotary), tables, gradients=False
    )


def test_folded_layer_stands_alone():
    layer = make().bfloat16().eval()
    folded = layer.fold()
    before = {name: x.clone() for name, x in folded.state_dict().items()}
    assert not folded.training
    for name, x in folded.named_parameters():
        assert x.dtype == (torch.float32 if "lambda" in name else torch.bfloat16), name
    assert all(p.requires_grad for p in folded.parameters())
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(1.0)
    for name, x in folded.state_dict().items():
        assert torch.equal(x, before[name])


def test_training_never_forms_the_folded_weight():
    """Not in the projections and not in their gradients; odd sizes distinguish tensors."""
    hidden, heads, dim = 31, 3, 7
    layer = SharedDiffAttention(hidden, heads, dim, shared_rank=2)
    folded = heads * 2 * dim * hidden
    projections = [p for name, p in layer.named_parameters() if name.startswith(("q_", "k_"))]
    assert len(projections) == 6
    assert all(p.numel() < folded for p in projections)
    x = torch.randn(2, 5, hidden, requires_grad=True)
    with Sizes() as training:
        q, k = layer.queries_keys(x)
        (q.sum() + k.sum()).backward()
    assert not {folded, folded // heads, folded // (2 * heads)} & training.made
    with Sizes() as folding:
        layer.fold()
    assert folded in folding.made


@pytest.mark.parametrize("rank", [0, -1])
def test_rank_below_one_is_refused(rank):
    with pytest.raises(
        ConfigError, match=rf"^SharedDiffAttention: shared_rank must be 1 or more, got {rank}\.$"
    ):
        SharedDiffAttention(HIDDEN, 2, DIM, shared_rank=rank)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_folded_weight_is_rounded_once(dtype):
    generator = torch.Generator().manual_seed(0)
    shapes = ((4 * 8, 24), (4 * 2 * 3, 24), (4, 2, 8, 3))
    parts = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    exact = folded_weight(*(part.double() for part in parts))
    folded = folded_weight(*parts)
    assert folded.dtype == dtype
    half_a_step = torch.finfo(dtype).eps / 2 * exact.abs()
    assert ((folded.double() - exact).abs() <= half_a_step + 8 * 2**-24 * exact.abs().max()).all()


@pytest.mark.parametrize("name", ["q_proj", "k_down_proj", "v_proj"])
def test_folding_does_not_drop_an_adapter(name):
    layer = make()
    setattr(layer, name, torch.nn.Sequential(getattr(layer, name)))
    with pytest.raises(ConfigError, match="adapters of the projections"):
        layer.fold()
