"""A layer against its formula, written head by head without our operators."""

import copy

import pytest
import torch

from diffattn.lab.testing.assertions import compare, measured_errors

LENGTH = 6
HIDDEN = 12


@pytest.fixture
def assert_matches_formula():
    """Output and gradient of every parameter, in float64, against a function of the layer."""
    return _assert_matches_formula


def _call(layer, x, rotary):
    return layer(x, rotary)


def _assert_matches_formula(
    layer, formula, position_embeddings=None, *, call=_call, gradients=True
):
    """Rounding grows with eps: it is measured on the formula in float32 and scaled to float64."""
    layer = layer.double()
    narrow = copy.deepcopy(layer).float()
    # Numbers that float32 holds too, as the layer's weights and the tables are.
    x, weights = torch.randn(2, 2, LENGTH, HIDDEN).double().unbind(0)

    def run(layer, function=formula):
        dtype = next(layer.parameters()).dtype
        tables = position_embeddings and tuple(t.to(dtype) for t in position_embeddings)
        return _evaluate(layer, function, x.to(dtype), tables, weights if gradients else None)

    actual, exact = run(layer, call), run(layer)
    ratio = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    off = measured_errors(run, narrow, exact)
    for name, want in exact.items():
        problem = compare(actual[name], want, ratio * off[name]).problem
        assert problem is None, f"{name}: {problem}"


def _evaluate(layer, function, x, rotary, weights):
    """The output, and the gradients of its weighted sum."""
    out = function(layer, x, rotary)
    results = {"output": out.detach()}
    if weights is not None:
        names, parameters = zip(*layer.named_parameters(), strict=True)
        grads = torch.autograd.grad(out, parameters, weights.to(out))
        results |= dict(zip(names, grads, strict=True))
    return results


class Formulas:
    """The pieces of the papers' formulas, one head and one map at a time."""

    @staticmethod
    def rotate(x, rotary):
        """``[B, T, D]`` by the tables' angles, channel c with channel c + D/2."""
        if rotary is None:
            return x
        cos, sin = (table[..., : x.shape[-1] // 2] for table in rotary)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    @staticmethod
    def causal_map(q, k):
        """softmax(q kᵀ / √d) over the past, ``[B, T, T]``."""
        scores = torch.einsum("btd,bsd->bts", q, k) / q.shape[-1] ** 0.5
        past = torch.ones(scores.shape[-2:]).tril().bool()
        return torch.where(past, scores, -torch.inf).softmax(-1)

    @staticmethod
    def rms_norm(x, weight, eps, factor):
        """(1 − λ_init) times RMSNorm over the channels of one head."""
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        return factor * normed * (1.0 if weight is None else weight)

    @staticmethod
    def lam(layer):
        """Eq. (2)."""
        first = (layer.lambda_q1 * layer.lambda_k1).sum().exp()
        second = (layer.lambda_q2 * layer.lambda_k2).sum().exp()
        return first - second + layer.lambda_init


@pytest.fixture
def formulas():
    """Pieces of the papers' formulas."""
    return Formulas
