"""DiffAttentionV2 against the formula of the note."""

import pytest
import torch

from diffattn.layers.diff_attention_v2 import DiffAttentionV2
from diffattn.ops.inputs.rotary import rotary_embedding

HIDDEN, LENGTH, DIM = 12, 6, 4


@pytest.fixture
def formula(formulas):
    """Query heads 2i and 2i + 1 share one key and value head; λ per token and head."""

    def run(layer, x, rotary, *, eps=None):
        heads, dim = layer.num_heads, layer.head_dim
        group = heads // layer.num_kv_heads
        q = (x @ layer.q_proj.weight.T).split(dim, dim=-1)
        k = (x @ layer.k_proj.weight.T).split(dim, dim=-1)
        v = (x @ layer.v_proj.weight.T).split(dim, dim=-1)
        logits = x @ layer.lambda_proj.weight.T
        if layer.lambda_proj.bias is not None:
            logits = logits + layer.lambda_proj.bias
        lam = 1 / (1 + torch.exp(-logits))  # [B, T, H]
        outs = []
        for head in range(heads):
            key = formulas.rotate(k[head // group], rotary)
            maps = [
                formulas.causal_map(formulas.rotate(q[2 * head + i], rotary), key) for i in (0, 1)
            ]
            out = (maps[0] - lam[..., head, None] * maps[1]) @ v[head // group]
            if eps is not None:
                weight = dict(layer.named_parameters()).get("head_norm.weight")
                out = formulas.rms_norm(out, weight, eps, 1.0)
            outs.append(out)
        return torch.cat(outs, dim=-1) @ layer.o_proj.weight.T

    return run


@pytest.mark.parametrize("kv_heads", [4, 2, 1], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("rotary", [False, True], ids=["no positions", "rotary"])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_the_formula(kv_heads, rotary, bias, formula, assert_matches_formula):
    layer = DiffAttentionV2(HIDDEN, 4, DIM, num_kv_heads=kv_heads, lambda_bias=bias, layer_idx=5)
    tables = rotary_embedding(torch.arange(LENGTH), DIM) if rotary else None
    assert_matches_formula(layer, formula, tables)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_head_norm_has_factor_one(affine, eps, formula, assert_matches_formula):
    layer = DiffAttentionV2(
        HIDDEN, 2, DIM, head_norm=True, head_norm_affine=affine, head_norm_eps=eps
    )
    if affine:
        torch.nn.init.uniform_(layer.head_norm.weight, 0.5, 2.0)
    assert_matches_formula(layer, lambda *args: formula(*args, eps=eps))


@pytest.mark.parametrize("bias", [False, True])
def test_parameter_count(bias):
    """hidden² more than softmax attention with the same heads, and the λ projection."""
    hidden, heads, kv_heads, dim = 24, 4, 2, 6  # hidden = heads · dim
    layer = DiffAttentionV2(hidden, heads, dim, num_kv_heads=kv_heads, lambda_bias=bias)
    softmax = 2 * hidden * heads * dim + 2 * hidden * kv_heads * dim
    count = sum(p.numel() for p in layer.parameters())
    assert count == softmax + hidden**2 + heads * hidden + (heads if bias else 0)


def test_lambda_starts_near_one_half_with_a_live_gradient():
    layer = DiffAttentionV2(HIDDEN, 2, DIM)
    seen = []

    def attend(q, k, v, lam):
        seen.append(lam)
        return (q[:, :, :, 0] + q[:, :, :, 1] * lam[..., None])[..., :DIM]

    layer(torch.zeros(2, LENGTH, HIDDEN), attend=attend)
    assert torch.equal(seen[0], torch.full((2, LENGTH, 2), 0.5))
    layer(torch.randn(2, LENGTH, HIDDEN)).square().sum().backward()
    assert (layer.lambda_proj.weight.grad.abs().amax(-1) > 1e-5).all()  # of every head
