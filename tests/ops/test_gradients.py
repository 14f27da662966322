"""The closed-form gradients against automatic differentiation, and every backend against them."""

import pytest
import torch

from diffattn.layers.diff_attention import DiffAttention
from diffattn.layers.softmax_attention import SoftmaxAttention
from diffattn.ops import backends
from diffattn.ops.diff_attention.api import diff_attention
from diffattn.ops.diff_attention.gradients import (
    AttentionWeights,
    HeadNormTerms,
    diff_attention_gradients,
    diff_attention_weight_gradients,
    head_norm_gradients,
    softmax_attention_weight_gradients,
)
from diffattn.ops.head_norm import head_norm
from diffattn.ops.masking import AttentionMask
from diffattn.testing.assertions import assert_close_to_reference
from diffattn.testing.inputs import OP_CASES, make_diff_attention_inputs
from diffattn.testing.marks import require_backend

WIDTH, HEADS, DIM, TOKENS = 24, 3, 4, 7
LAMBDA_INIT = 0.5
# A head norm with a learned scale, without one, and none at all: the printed form.
NORMS = [
    pytest.param(True, True, id="exact-affine"),
    pytest.param(True, False, id="exact"),
    pytest.param(False, False, id="printed"),
]


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def assert_near(actual, expected, message=""):
    """1e-10 of the largest entry."""
    assert actual.shape == expected.shape
    error = (actual.double() - expected).abs().max() / expected.abs().max()
    assert error <= 1e-10, f"{message}: {error:.1e}"


def diff_layer(norm, affine):
    layer = DiffAttention(
        WIDTH, HEADS, DIM, lambda_init=LAMBDA_INIT, head_norm=norm, head_norm_affine=affine
    ).double()
    weights = AttentionWeights(
        q=layer.q_proj.weight.view(HEADS, 2, DIM, WIDTH).permute(3, 0, 1, 2),
        k=layer.k_proj.weight.view(HEADS, 2, DIM, WIDTH).permute(3, 0, 1, 2),
        v=layer.v_proj.weight.view(HEADS, 2 * DIM, WIDTH).permute(2, 0, 1),
        o=layer.o_proj.weight.view(WIDTH, HEADS, 2 * DIM).permute(1, 2, 0),
    )
    return layer, weights


def softmax_layer(norm, affine):
    layer = SoftmaxAttention(
        WIDTH, HEADS, 2 * DIM, head_norm=norm, head_norm_affine=affine
    ).double()
    weights = AttentionWeights(
        q=layer.q_proj.weight.view(HEADS, 2, DIM, WIDTH).permute(3, 0, 1, 2),
        k=layer.k_proj.weight.view(HEADS, 2, DIM, WIDTH).permute(3, 0, 1, 2),
        v=layer.v_proj.weight.view(HEADS, 2 * DIM, WIDTH).permute(2, 0, 1),
        o=layer.o_proj.weight.view(WIDTH, HEADS, 2 * DIM).permute(1, 2, 0),
    )
    return layer, weights


def norm_terms(layer):
    if isinstance(layer.head_norm, torch.nn.Identity):
        return None
    weight = layer.head_norm.weight
    if weight is not None:
        torch.nn.init.normal_(weight, 1.0, 0.3)
        weight = weight.detach()
    return HeadNormTerms(factor=layer.head_norm.factor, weight=weight, eps=layer.head_norm.eps)


def by_autograd(layer, weights, x, grad_y, lam, causal):
    """The layer itself, whose attention call is given λ and the mask."""

    def attend(q, k, v, *_):
        if lam is None:
            map_ = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * q.shape[-1] ** -0.5
            hidden = torch.ones(map_.shape[-2:], dtype=torch.bool).triu(1)
            map_ = (map_.masked_fill(hidden, -torch.inf) if causal else map_).softmax(-1)
            return (map_ @ v.transpose(1, 2)).transpose(1, 2)
        return diff_attention(q, k, v, lam, causal=causal, backend="reference")

    y = layer(x if x.ndim == 3 else x[None], attend=attend).view(x.shape)
    tensors = {"x": x, "q": weights.q, "k": weights.k, "v": weights.v, "o": weights.o}
    if lam is not None:
        tensors["lam"] = lam
    if getattr(layer.head_norm, "weight", None) is not None:
        tensors["norm_weight"] = layer.head_norm.weight
    leaves = {name: layer.get_parameter(f"{name}_proj.weight") for name in "qkvo"}
    grads = torch.autograd.grad(y, [leaves.get(n, t) for n, t in tensors.items()], grad_y)
    return dict(zip(tensors, grads, strict=True))


def in_our_shapes(expected):
    """The layer's matrices ``[out, in]`` to those with head, map and channel axes."""
    q, k = (expected[n].view(HEADS, 2, DIM, WIDTH).permute(3, 0, 1, 2) for n in "qk")
    v = expected["v"].view(HEADS, 2 * DIM, WIDTH).permute(2, 0, 1)
    o = expected["o"].view(WIDTH, HEADS, 2 * DIM).permute(1, 2, 0)
    return expected | {"q": q, "k": k, "v": v, "o": o}


def named(gradients):
    """Every gradient by name, the maps' matrices apart."""
    weights = gradients.weights
    result = {"v": weights.v, "o": weights.o, "x": gradients.x}
    for index in (0, 1):
        result |= {f"{n}{index + 1}": getattr(weights, n)[:, :, index] for n in "qk"}
    optional = {"lam": gradients.lam, "norm_weight": gradients.norm_weight}
    return result | {name: x for name, x in optional.items() if x is not None}


def expected_by_name(expected):
    expected = in_our_shapes(expected)
    for name in "qk":
        both = expected.pop(name)
        expected |= {f"{name}{index + 1}": both[:, :, index] for index in (0, 1)}
    return expected


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", [(TOKENS,), (2, TOKENS)], ids=["N", "B,N"])
@pytest.mark.parametrize(("norm", "affine"), NORMS)
@pytest.mark.parametrize("kind", ["diff", "softmax"])
def test_every_weight_matrix_equals_autograd(kind, norm, affine, shape, causal):
    layer, weights = (diff_layer if kind == "diff" else softmax_layer)(norm, affine)
    x, grad_y = double(*shape, WIDTH).requires_grad_(), double(*shape, WIDTH)
    terms = norm_terms(layer)
    lam = torch.tensor(0.37, dtype=torch.float64, requires_grad=True) if kind == "diff" else None
    expected = expected_by_name(by_autograd(layer, weights, x, grad_y, lam, causal))
    with torch.no_grad():
        if kind == "diff":
            actual = diff_attention_weight_gradients(
                x, weights, lam, grad_y, norm=terms, causal=causal
            )
        else:
            actual = softmax_attention_weight_gradients(
                x, weights, grad_y, norm=terms, causal=causal
            )
    actual = named(actual)
    assert actual.keys() == expected.keys()
    for name, want in expected.items():
        assert_near(actual[name], want, name)


def test_the_printed_form_misses_the_norm():
    """With head norm and factor on, every matrix is off by more than 10 % of its norm."""
    layer, weights = diff_layer(True, False)
    x, grad_y = double(TOKENS, WIDTH).requires_grad_(), double(TOKENS, WIDTH)
    lam = torch.tensor(0.37, dtype=torch.float64, requires_grad=True)
    expected = expected_by_name(by_autograd(layer, weights, x, grad_y, lam, True))
    with torch.no_grad():
        printed = named(diff_attention_weight_gradients(x, weights, lam, grad_y))
    for name in ("q1", "q2", "k1", "k2", "v", "o"):
        assert (printed[name] - expected[name]).norm() > 0.1 * expected[name].norm(), name


@pytest.mark.parametrize("affine", [True, False])
def test_head_norm_gradients(affine):
    x, grad_y = double(2, 3, 4, 8).requires_grad_(), double(2, 3, 4, 8)
    weight = double(8).requires_grad_() if affine else None
    y = head_norm(x, weight, eps=1e-3, factor=0.7)
    grad, grad_weight = head_norm_gradients(
        x.detach(), grad_y, HeadNormTerms(factor=0.7, weight=weight, eps=1e-3)
    )
    expected = torch.autograd.grad(y, [x, weight] if affine else [x], grad_y)
    assert_near(grad, expected[0])
    if affine:
        assert_near(grad_weight, expected[1])
    else:
        assert grad_weight is None


def test_head_norm_lets_nothing_through_along_its_input():
    """What the paper's Θ(1) leaves out: a change of length changes no output."""
    x = double(5, 8)
    grad, _ = head_norm_gradients(x, double(5, 8), HeadNormTerms(eps=0.0))
    assert ((grad * x).sum(-1).abs() < 1e-12).all()


@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_operator_equals_autograd(case):
    inputs = make_diff_attention_inputs(case, dtype=torch.float64)
    out = diff_attention(*inputs.tensors().values(), backend="reference", **inputs.options)
    grad_out = torch.randn_like(out)
    expected = torch.autograd.grad(out, list(inputs.tensors().values()), grad_out)
    with torch.no_grad():
        actual = closed_form(*inputs.tensors().values(), grad_out, **inputs.options)
    for name, got, want in zip(inputs.tensors(), actual, expected, strict=True):
        if want.abs().max() > 1e-12:
            assert_near(got, want, name)
        else:  # one visible key: dS = 0
            assert got.abs().max() < 1e-12, name


def closed_form(*tensors, scale=None, **options):
    """The closed form with the options of ``diff_attention``."""
    return diff_attention_gradients(*tensors, scale=scale, mask=AttentionMask(**options))


class WithClosedForm(torch.autograd.Function):
    """The reference, whose gradient is the closed form."""

    @staticmethod
    def forward(ctx, q, k, v, lam, options):
        ctx.save_for_backward(q, k, v, lam)
        ctx.options = options
        return diff_attention(q, k, v, lam, backend="reference", **options)

    @staticmethod
    def backward(ctx, grad_out):
        tensors = ctx.saved_tensors
        grads = closed_form(*tensors, grad_out, **ctx.options)
        return *(g.to(x.dtype) for g, x in zip(grads, tensors, strict=True)), None


def op(q, k, v, lam, *, backend, **options):
    if backend == "reference":
        return WithClosedForm.apply(q, k, v, lam, options)
    backend = "reference" if backend == "itself" else backend
    return diff_attention(q, k, v, lam, backend=backend, **options)


@pytest.mark.sampled(one_of=4)
@pytest.mark.parametrize("backend", ["itself", *backends.names("diff_attention")[1:]])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64], ids=["fp32", "bf16", "fp64"]
)
@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_backends_agree_with_the_closed_form(backend, dtype, case, device):
    """The same budget as against the reference, which here differentiates by the formulas."""
    name = "reference" if backend == "itself" else backend
    require_backend("diff_attention", name, device=device, dtype=dtype, case=case)
    inputs = make_diff_attention_inputs(case, dtype=dtype, device=device)
    assert_close_to_reference(op, inputs, backend=backend)
