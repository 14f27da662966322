"""SoftmaxAttention against its formula."""

import pytest
import torch

from diffattn.layers.softmax_attention import SoftmaxAttention
from diffattn.ops.inputs.rotary import rotary_embedding

HIDDEN, LENGTH, DIM = 12, 6, 4


@pytest.fixture
def formula(formulas):
    def run(layer, x, rotary, *, eps=None):
        heads, dim = layer.num_heads, layer.head_dim
        group = heads // layer.num_kv_heads
        q, k, v = (
            (x @ proj.weight.T).split(dim, dim=-1)
            for proj in (layer.q_proj, layer.k_proj, layer.v_proj)
        )
        outs = []
        for head in range(heads):
            weights = formulas.causal_map(
                formulas.rotate(q[head], rotary), formulas.rotate(k[head // group], rotary)
            )
            out = weights @ v[head // group]
            if eps is not None:
                weight = dict(layer.named_parameters()).get("head_norm.weight")
                out = formulas.rms_norm(out, weight, eps, 1.0)
            outs.append(out)
        return torch.cat(outs, dim=-1) @ layer.o_proj.weight.T

    return run


@pytest.mark.parametrize("kv_heads", [4, 2, 1], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("rotary", [False, True], ids=["no positions", "rotary"])
def test_equals_the_formula(kv_heads, rotary, formula, assert_matches_formula):
    layer = SoftmaxAttention(HIDDEN, 4, DIM, num_kv_heads=kv_heads)
    tables = rotary_embedding(torch.arange(LENGTH), DIM) if rotary else None
    assert_matches_formula(layer, formula, tables)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_head_norm_has_factor_one(affine, eps, formula, assert_matches_formula):
    layer = SoftmaxAttention(
        HIDDEN, 2, DIM, head_norm=True, head_norm_affine=affine, head_norm_eps=eps
    )
    if affine:
        torch.nn.init.uniform_(layer.head_norm.weight, 0.5, 2.0)
    assert_matches_formula(layer, lambda *args: formula(*args, eps=eps))


def test_parameter_count():
    hidden, heads, kv_heads, dim = 24, 4, 2, 5
    layer = SoftmaxAttention(hidden, heads, dim, num_kv_heads=kv_heads)
    count = sum(p.numel() for p in layer.parameters())
    assert count == 2 * hidden * heads * dim + 2 * hidden * kv_heads * dim
