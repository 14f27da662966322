"""The λ that V1 and V2 start with, and its gradient."""

import pytest
import torch

from diffattn.layers.diff_attention import DiffAttention
from diffattn.layers.diff_attention_v2 import DiffAttentionV2

HIDDEN, LENGTH, DIM = 12, 6, 4


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


def test_lambda_of_v2_starts_at_one_half_with_a_live_gradient():
    layer = DiffAttentionV2(HIDDEN, 2, DIM)
    seen = []

    def attend(q, k, v, lam):
        seen.append(lam)
        return (q[:, :, :, 0] + q[:, :, :, 1] * lam[..., None])[..., :DIM]

    layer(torch.zeros(2, LENGTH, HIDDEN), attend=attend)
    assert torch.equal(seen[0], torch.full((2, LENGTH, 2), 0.5))
    layer(torch.randn(2, LENGTH, HIDDEN)).square().sum().backward()
    assert (layer.lambda_proj.weight.grad.abs().amax(-1) > 1e-5).all()  # of every head
