"""SwiGLU."""

import torch

from diffattn.layers.feed_forward import SwiGLU


def test_equals_the_formula(assert_matches_formula):
    def formula(layer, x, rotary):
        gate = x @ layer.gate_proj.weight.T
        swish = gate / (1 + torch.exp(-gate))
        return (swish * (x @ layer.up_proj.weight.T)) @ layer.down_proj.weight.T

    class TakesPositions(SwiGLU):
        """With the interface of an attention layer, for the assertion."""

        def forward(self, x, position_embeddings=None):
            return super().forward(x)

    assert_matches_formula(TakesPositions(12, 32), formula)


def test_parameter_count():
    assert sum(p.numel() for p in SwiGLU(12, 32).parameters()) == 3 * 12 * 32
