"""Every layer of the papers against its formula, head by head, map by map."""

from functools import partial

import pytest
import torch
from torch import nn

from diffattn.layers.attention import SoftmaxAttention
from diffattn.layers.diff_attention import DiffAttention, DiffAttentionV2, GroupedDiffAttention
from diffattn.layers.gated_attention import DexAttention, ElementGatedAttention, GatedAttention
from diffattn.layers.parts import SwiGLU
from diffattn.layers.shared_diff_attention import SharedDiffAttention
from diffattn.ops.inputs.formulas import lambda_init, rotary_embedding

HIDDEN, LENGTH, DIM = 12, 6, 4
V1_LAYERS = (
    DiffAttention,
    partial(SharedDiffAttention, shared_rank=3),
    partial(GroupedDiffAttention, group_ratio=2),
)
LAYERS = {
    "softmax": SoftmaxAttention,
    "diff": DiffAttention,
    "diff_v2": DiffAttentionV2,
    "diff_v2 with bias": partial(DiffAttentionV2, lambda_bias=True),
    "shared_diff": V1_LAYERS[1],
    "grouped_diff": V1_LAYERS[2],
    "gated_head": partial(GatedAttention, lambda_bias=True),
    "gated_element": ElementGatedAttention,
    "dex": DexAttention,
}
every_layer = pytest.mark.parametrize("layer_class", LAYERS.values(), ids=LAYERS)


def queries_or_keys(layer, x, name, head, number):
    """Vectors of one map of one head. Rows of a projection lie head by head, map by map."""
    weight, dim = getattr(layer, f"{name}_proj").weight, layer.head_dim
    if not isinstance(layer, SharedDiffAttention):
        maps = layer.query_maps if name == "q" else layer.key_maps
        index = maps * head + min(number, maps - 1)
        if name == "q":  # the subtracted query of a group is its last
            group, place = divmod(head, layer.group_ratio)
            index = maps * group + (place if number == 0 else maps - 1)
        start = index * dim
        return x @ weight[start : start + dim].T
    # X (W + U Zᵀ)
    down, up = getattr(layer, f"{name}_down_proj").weight, getattr(layer, f"{name}_up")
    start = (2 * head + number) * layer.shared_rank
    update = down[start : start + layer.shared_rank].T @ up[head, number].T
    return x @ (weight[head * dim : (head + 1) * dim].T + update)


def lambdas(layer, x, formulas):
    """λ that broadcasts to ``[B, T, H]``."""
    if isinstance(layer, DiffAttention):
        return formulas.lam(layer).expand(*x.shape[:2], layer.num_heads)
    logits = x @ layer.lambda_proj.weight.T
    bias = layer.lambda_proj.bias
    return 1 / (1 + torch.exp(-(logits if bias is None else logits + bias)))


@pytest.fixture
def formula(formulas):
    """``formula(eps, factor)``: the layer as the papers write it; without ``eps`` no head norm."""

    def run(eps, factor, layer, x, rotary):
        values = (x @ layer.v_proj.weight.T).split(layer.value_dim, dim=-1)
        outputs = []
        for head in range(layer.num_heads):
            kv_head = head // (layer.num_heads // layer.num_kv_heads)
            maps = []
            for number in range(min(layer.query_maps, 2)):
                q = queries_or_keys(layer, x, "q", head, number)
                k = queries_or_keys(layer, x, "k", kv_head, number)
                q, k = formulas.rotate(q, rotary), formulas.rotate(k, rotary)
                maps.append(formulas.causal_map(q, k))
            signed = maps[0]
            if len(maps) == 2:
                signed = signed - lambdas(layer, x, formulas)[..., head, None] * maps[1]
            out = signed @ values[kv_head]
            if isinstance(layer, GatedAttention):
                lam = lambdas(layer, x, formulas).unflatten(-1, (layer.num_heads, -1))
                out = (1 - lam[:, :, head]) * out
            if isinstance(layer, DexAttention):
                out = out - formulas.lam(layer) * (out @ layer.dex_proj.weight.T)
            if eps is not None:
                weight = dict(layer.named_parameters()).get("head_norm.weight")
                out = formulas.rms_norm(out, weight, eps, factor)
            outputs.append(out)
        return torch.cat(outputs, dim=-1) @ layer.o_proj.weight.T

    return lambda eps=None, factor=1.0: partial(run, eps, factor)


@every_layer
@pytest.mark.parametrize("kv_heads", [4, 2, 1], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("rotary", [False, True], ids=["no positions", "rotary"])
def test_equals_the_formula(layer_class, kv_heads, rotary, formula, assert_matches_formula):
    """Only the head norm of V1 and Shared DIFF is on by default, with factor 1 − λ_init."""
    heads = 8 if layer_class is LAYERS["grouped_diff"] else 4  # four groups
    layer = layer_class(HIDDEN, heads, DIM, num_kv_heads=kv_heads, layer_idx=2)
    tables = rotary_embedding(torch.arange(LENGTH), DIM) if rotary else None
    norm = (1e-5, 1 - lambda_init(2)) if layer.normalises_heads else ()
    assert_matches_formula(layer, formula(*norm), tables)


@every_layer
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_head_norm_options(layer_class, affine, eps, formula, assert_matches_formula):
    """The factor is 1 − λ_init where the layer has one, else 1."""
    options = {"head_norm": True, "head_norm_affine": affine, "head_norm_eps": eps}
    has_lambda_init = layer_class in (*V1_LAYERS, DexAttention)
    if has_lambda_init:
        options["lambda_init"] = 0.9
    layer = layer_class(HIDDEN, 2, DIM, **options)
    if affine:
        nn.init.uniform_(layer.head_norm.weight, 0.5, 2.0)
    assert_matches_formula(layer, formula(eps, 1 - 0.9 if has_lambda_init else 1.0))


@pytest.mark.parametrize("layer_class", V1_LAYERS, ids=["diff", "shared_diff", "grouped_diff"])
def test_without_head_norm_there_is_no_factor(layer_class, formula, assert_matches_formula):
    layer = layer_class(HIDDEN, 2, DIM, head_norm=False, lambda_init=0.9)
    assert "head_norm.weight" not in dict(layer.named_parameters())
    assert_matches_formula(layer, formula())


def test_swiglu_equals_the_formula(assert_matches_formula):
    def swiglu(layer, x, rotary):
        gate = x @ layer.gate_proj.weight.T
        swish = gate / (1 + torch.exp(-gate))
        return (swish * (x @ layer.up_proj.weight.T)) @ layer.down_proj.weight.T

    def call(layer, x, rotary):
        return layer(x)

    assert_matches_formula(SwiGLU(HIDDEN, 32), swiglu, call=call)
