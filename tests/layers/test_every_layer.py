"""What all attention layers have in common, and the norm of their heads."""

import re
from functools import partial

import pytest
import torch
from torch import nn

from diffattn.errors import ConfigError
from diffattn.layers.attention import SoftmaxAttention
from diffattn.layers.diff_attention import DiffAttention, DiffAttentionV2, GroupedDiffAttention
from diffattn.layers.parts import HeadNorm
from diffattn.layers.shared_diff_attention import SharedDiffAttention
from diffattn.ops.attention import diff_attention
from diffattn.ops.inputs.formulas import rotary_embedding
from diffattn.ops.softmax_attention import softmax_attention

HIDDEN, LENGTH, DIM = 12, 7, 4
LAYERS = {
    "softmax": SoftmaxAttention,
    "diff": DiffAttention,
    "diff_v2": DiffAttentionV2,
    "shared_diff": partial(SharedDiffAttention, shared_rank=2),
    "grouped_diff": partial(GroupedDiffAttention, group_ratio=2),
}
DIFFERENTIAL = [name for name in LAYERS if name != "softmax"]
every_layer = pytest.mark.parametrize("kind", LAYERS)


def make(kind, **options):
    return LAYERS[kind](HIDDEN, 4, DIM, **({"num_kv_heads": 2} | options))


def operator(kind):
    return softmax_attention if kind == "softmax" else diff_attention


def listener(kind, heard):
    """The layer's own operator, writing down what it is called with."""

    def attend(q, k, v, *lam):
        heard.update(q=q, k=k, v=v, lam=lam[0] if lam else None)
        return operator(kind)(q, k, v, *lam)

    return attend


@pytest.mark.parametrize("kind", [name for name in LAYERS if name != "shared_diff"])
def test_biases_and_norms_come_before_the_rotation(kind, formulas, assert_matches_formula):
    """Every map has biases of its own; one scale for queries and one for keys serve all heads and
    both maps. (Shared DIFF is compared with its folded layer.)"""
    layer = make(kind, qkv_bias=True, qk_norm_eps=0.1)
    for norm in (layer.q_norm, layer.k_norm):
        nn.init.uniform_(norm.weight, 0.5, 2.0)

    def formula(layer, x, rotary):
        def projected(name, maps, norm):
            projection = getattr(layer, f"{name}_proj")
            heads = (x @ projection.weight.T + projection.bias).split(DIM, dim=-1)
            heads = [formulas.rms_norm(head, norm.weight, 0.1, 1.0) for head in heads]
            y = torch.stack([formulas.rotate(head, rotary) for head in heads], dim=2)
            return y if maps == 1 else y.unflatten(2, (-1, maps))

        q = projected("q", layer.query_maps, layer.q_norm)
        k = projected("k", layer.key_maps, layer.k_norm)
        v = (x @ layer.v_proj.weight.T + layer.v_proj.bias).unflatten(-1, (2, -1))
        out = operator(kind)(q, k, v, *layer.lambdas(x))
        if kind in ("diff", "grouped_diff"):
            norm = layer.head_norm
            out = formulas.rms_norm(out, norm.weight, norm.eps, norm.factor)
        return out.flatten(2) @ layer.o_proj.weight.T

    assert_matches_formula(layer, formula, rotary_embedding(torch.arange(6), DIM))


@every_layer
def test_bfloat16_module_keeps_lambda_in_float32(kind, device):
    layer, heard = make(kind).to(device, torch.bfloat16), {}
    x = torch.randn(2, LENGTH, HIDDEN, device=device, dtype=torch.bfloat16)
    tables = rotary_embedding(torch.arange(LENGTH, device=device), DIM)
    out = layer(x, tables, attend=listener(kind, heard))
    assert out.dtype == torch.bfloat16
    assert heard["q"].dtype == heard["k"].dtype == heard["v"].dtype == torch.bfloat16
    if kind == "softmax":
        assert heard["lam"] is None
    else:
        assert heard["lam"].dtype == torch.float32
        rounded = heard["lam"].bfloat16().float()
        assert not torch.equal(heard["lam"], rounded)  # its digits are float32's too
    out.float().square().sum().backward()
    for name, p in layer.named_parameters():
        assert p.grad.isfinite().all(), name
        assert (p.grad != 0).any(), name


@pytest.mark.parametrize("kind", DIFFERENTIAL)
def test_autocast_keeps_lambda_in_float32(kind, device):
    layer, plain, cast = make(kind).to(device), {}, {}
    x = torch.randn(2, LENGTH, HIDDEN, device=device)
    layer(x, attend=listener(kind, plain))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out = layer(x, attend=listener(kind, cast))
    assert out.dtype == torch.bfloat16
    assert cast["q"].dtype == torch.bfloat16
    assert cast["lam"].dtype == torch.float32
    if kind == "diff_v2":  # its logits are a product in bfloat16, σ of them is not
        assert not torch.equal(cast["lam"], cast["lam"].bfloat16().float())
        logits = layer.lambda_proj(x)
        size = (x.abs() @ layer.lambda_proj.weight.abs().T).max()
        # Both factors and the logit are rounded; σ has slope at most 1 / 4.
        bound = 3 / 2 * torch.finfo(torch.bfloat16).eps * size / 4
        assert (cast["lam"] - torch.sigmoid(logits)).abs().max() <= bound
    else:
        assert torch.equal(cast["lam"], plain["lam"])
    out.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@every_layer
def test_empty_batch_and_length(kind):
    layer = make(kind)
    for shape in ((0, LENGTH, HIDDEN), (2, 0, HIDDEN)):
        assert layer(torch.zeros(shape)).shape == shape


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_kv_heads": 3}, "num_kv_heads must divide num_heads / group_ratio = 2, got 3."),
        ({"num_kv_heads": -2}, "num_kv_heads must divide num_heads / group_ratio = 2, got -2."),
        ({"head_dim": 0}, "num_heads and head_dim must be 1 or more, got 4 and 0."),
    ],
)
def test_bad_head_counts(options, message):
    sizes = {"hidden_size": HIDDEN, "num_heads": 4, "head_dim": DIM, "group_ratio": 2} | options
    with pytest.raises(ConfigError) as error:
        GroupedDiffAttention(**sizes)
    assert str(error.value) == f"GroupedDiffAttention: {message}"


@pytest.mark.parametrize("ratio", [3, 0, 8, -2])
def test_a_ratio_that_does_not_divide_is_refused(ratio):
    message = f"GroupedDiffAttention: group_ratio must divide num_heads = 4, got {ratio}."
    with pytest.raises(ConfigError, match=re.escape(message)):
        GroupedDiffAttention(HIDDEN, 4, DIM, group_ratio=ratio)


@pytest.mark.parametrize("kind", ["shared_diff", "diff_v2"])  # models of all types: scheduled
def test_compiles_to_one_graph(kind):
    torch.compiler.reset()
    layer = make(kind, head_norm=True)
    tables = rotary_embedding(torch.arange(LENGTH), DIM)
    x = torch.randn(2, LENGTH, HIDDEN)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x, tables), layer(x, tables))


@pytest.mark.parametrize("eps", [0.0, -1e-5])
def test_the_norms_eps_must_be_positive(eps):
    with pytest.raises(ConfigError, match=rf"^HeadNorm: eps must be above 0, got {eps}\.$"):
        HeadNorm(8, eps=eps)
