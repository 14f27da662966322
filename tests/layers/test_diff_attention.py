"""DiffAttention against Eq. (1) to (3), and what it starts with."""

import pytest
import torch

from diffattn.layers.diff_attention import DiffAttention
from diffattn.ops.inputs.lambda_param import lambda_init
from diffattn.ops.inputs.rotary import rotary_embedding

HIDDEN, LENGTH, DIM = 12, 6, 4


@pytest.fixture
def formula(formulas):
    """Head by head, map by map; columns of the projections in the order [head, map, channel]."""

    def run(layer, x, rotary, *, factor=None, eps=None):
        heads, dim = layer.num_heads, layer.head_dim
        group = heads // layer.num_kv_heads
        q = (x @ layer.q_proj.weight.T).split(dim, dim=-1)  # 2 H blocks: maps of a head adjacent
        k = (x @ layer.k_proj.weight.T).split(dim, dim=-1)
        v = (x @ layer.v_proj.weight.T).split(2 * dim, dim=-1)
        lam = formulas.lam(layer)
        outs = []
        for head in range(heads):
            kv_head = head // group
            maps = [
                formulas.causal_map(
                    formulas.rotate(q[2 * head + i], rotary),
                    formulas.rotate(k[2 * kv_head + i], rotary),
                )
                for i in (0, 1)
            ]
            out = (maps[0] - lam * maps[1]) @ v[kv_head]
            if factor is not None:
                weight = dict(layer.named_parameters()).get("head_norm.weight")
                out = formulas.rms_norm(out, weight, eps, factor)
            outs.append(out)
        return torch.cat(outs, dim=-1) @ layer.o_proj.weight.T

    return run


@pytest.mark.parametrize("kv_heads", [4, 2, 1], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("rotary", [False, True], ids=["no positions", "rotary"])
def test_equals_equations_1_to_3(kv_heads, rotary, formula, assert_matches_formula):
    layer = DiffAttention(HIDDEN, 4, DIM, num_kv_heads=kv_heads, layer_idx=2)
    tables = rotary_embedding(torch.arange(LENGTH), DIM) if rotary else None
    factor = 1 - lambda_init(2)
    assert_matches_formula(layer, lambda *args: formula(*args, factor=factor, eps=1e-5), tables)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_head_norm_options(affine, eps, formula, assert_matches_formula):
    layer = DiffAttention(
        HIDDEN, 2, DIM, head_norm_affine=affine, head_norm_eps=eps, lambda_init=0.9
    )
    if affine:
        torch.nn.init.uniform_(layer.head_norm.weight, 0.5, 2.0)
    assert_matches_formula(layer, lambda *args: formula(*args, factor=1 - 0.9, eps=eps))


def test_without_head_norm_there_is_no_factor(formula, assert_matches_formula):
    layer = DiffAttention(HIDDEN, 2, DIM, head_norm=False, lambda_init=0.9)
    assert "head_norm.weight" not in dict(layer.named_parameters())
    assert_matches_formula(layer, formula)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 0.2), ({"layer_idx": 2}, 0.4707), ({"layer_idx": 2, "lambda_init": -0.0099}, -0.0099)],
)
def test_lambda_init_follows_the_schedule_unless_given(options, expected):
    layer = DiffAttention(HIDDEN, 2, DIM, **options)
    assert layer.lambda_init == pytest.approx(expected, abs=5e-5)
    assert layer.head_norm.factor == 1 - layer.lambda_init
    for name in ("lambda_q1", "lambda_q2"):
        torch.nn.init.zeros_(getattr(layer, name))
    assert float(layer.lam().detach()) == pytest.approx(layer.lambda_init, rel=1e-7)


def test_parameter_count_and_twin():
    """Twice the heads of softmax attention, 4 D + 2 D more parameters."""
    hidden, heads, kv_heads, dim = 24, 4, 2, 6
    layer = DiffAttention(hidden, heads, dim, num_kv_heads=kv_heads)
    count = sum(p.numel() for p in layer.parameters())
    twin = 2 * hidden * (2 * heads) * dim + 2 * hidden * (2 * kv_heads) * dim
    assert count == twin + 6 * dim


def test_lambda_at_the_start_lies_near_lambda_init():
    """std 0.01 √(2 D): each dot product sums D products of two N(0, 0.1²)."""
    dim, num_layers = 64, 400
    lams = torch.stack([DiffAttention(8, 1, dim).lam().detach() for _ in range(num_layers)])
    expected = 0.01 * (2 * dim) ** 0.5
    # exp widens it by about 1 %; n draws show it to 1 / √(2 n). Five such deviations.
    assert abs(lams.std() / (1.01 * expected) - 1) < 5 * (2 * num_layers) ** -0.5
    assert abs(lams.mean() - 0.2) < 5 * expected * num_layers**-0.5
    assert lams.dtype == torch.float32


def test_gradient_of_lambda_starts_alive():
    layer = DiffAttention(HIDDEN, 2, DIM)
    layer(torch.randn(2, LENGTH, HIDDEN)).square().sum().backward()
    for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
        assert getattr(layer, name).grad.abs().max() > 1e-4
