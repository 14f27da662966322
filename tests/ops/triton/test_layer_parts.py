"""Kernels of rotation, head norm and λ, against their formulas in float64."""

from unittest.mock import patch

import pytest
import torch

from diffattn.errors import ShapeError
from diffattn.ops import layer_parts
from diffattn.ops.inputs.formulas import (
    apply_rotary,
    diff_lambda,
    head_norm,
    rotary_embedding,
    sigmoid_lambda,
)

pytest.importorskip("triton")
chosen = layer_parts.kernels_run_on
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


@pytest.fixture(autouse=True)
def kernels():
    """The kernels are chosen here, as on a GPU, and called."""
    from diffattn.ops.triton import layer_parts as kernels

    with (
        patch.object(layer_parts, "kernels_run_on", lambda device: True),
        patch.object(kernels, "run_kernel", wraps=kernels.run_kernel) as started,
        patch.object(kernels.launch, "num_multiprocessors", lambda device: 1),
    ):
        yield started


def rotated(tables):
    return lambda q, k: layer_parts.rotate_both(q, k, *tables)


def assert_like_formula(call, formula, inputs, *, steps, twice=False):
    """Values and gradients, off by ``steps`` roundings of float32 and two of the dtype at most."""
    upstream = None
    results = []
    for function, dtype in ((call, None), (formula, torch.float64)):
        leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in inputs]
        out = function(*leaves)
        out = out if isinstance(out, tuple) else (out,)
        if upstream is None:
            upstream = [torch.randn_like(x) for x in out]
        grads = torch.autograd.grad(
            out, leaves, [g.to(x.dtype) for g, x in zip(upstream, out, strict=True)],
            create_graph=twice,
        )  # fmt: skip
        second = torch.autograd.grad(sum(g.sin().sum() for g in grads), leaves) if twice else ()
        results.append((*out, *grads, *second))
    for actual, expected in zip(*results, strict=True):
        eps = torch.finfo(torch.float32).eps * steps
        if actual.dtype != torch.float32:
            eps += torch.finfo(actual.dtype).eps
        assert actual.isfinite().all()
        assert (actual.double() - expected).abs().max() <= eps * expected.abs().max().clamp(min=1)


@dtypes
@pytest.mark.parametrize("dim", [8, 12])
@pytest.mark.parametrize("rows", [(), (1,), (2,)], ids=["[T]", "[1, T]", "[B, T]"])
def test_queries_and_keys_turn_in_one_launch(rows, dim, dtype, kernel_device, kernels):
    positions = torch.randint(50, (*rows, 5), device=kernel_device)
    cos, sin = (x * torch.rand_like(x) for x in rotary_embedding(positions, dim))  # unequal halves
    q = torch.randn(2, 5, 3, 2, dim, device=kernel_device).to(dtype)
    k = torch.randn(2, 5, 2, 2 * dim, device=kernel_device).to(dtype)[..., ::2]  # strided

    def formula(q, k):
        return tuple(apply_rotary(x, cos.double(), sin.double()) for x in (q, k))

    with torch.no_grad():
        layer_parts.rotate_both(q, k, cos, sin)
    assert kernels.call_count == 1
    assert_like_formula(rotated((cos, sin)), formula, (q, k), steps=4)
    assert kernels.call_count == 3


@dtypes
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("width", [8, 12])
def test_heads_are_normalised_in_one_launch(width, affine, dtype, kernel_device, kernels):
    x = torch.randn(2, 7, 3, width, device=kernel_device).to(
        dtype
    )  # 42 rows: the last program has 10
    weight = (1 + torch.rand(width, device=kernel_device)).to(dtype)
    inputs = (x, weight) if affine else (x,)

    def call(x, weight=None):
        return layer_parts.normalise_heads(x, weight, 0.1, 0.3)

    def formula(x, weight=None):
        return head_norm(x, weight, eps=0.1, factor=0.3)

    # Sums of 12 squares and of 42 rows, a root, quotients and products.
    assert_like_formula(call, formula, inputs, steps=64)
    assert kernels.call_count == (3 if affine else 2)


@pytest.mark.parametrize("width", [5, 64])
def test_lambda_is_made_in_one_launch(width, kernel_device, kernels):
    vectors = [0.3 * torch.randn(width, device=kernel_device) for _ in range(4)]

    def call(*vectors):
        return layer_parts.lambda_of_vectors(*vectors, lambda_init=0.2)

    # A product of 64 terms of about 0.1; exp multiplies its rounding by at most itself, below 32.
    assert_like_formula(call, lambda *xs: diff_lambda(*xs, 0.2), vectors, steps=64)
    assert kernels.call_count == 2


@dtypes
def test_lambda_of_logits_is_made_in_one_launch(dtype, kernel_device, kernels):
    logits = (8 * torch.randn(3, 400, 2, device=kernel_device)).to(dtype)[:, ::2]
    # A logit of 32 at most times log2(e), rounded; its exponential, a sum, a quotient, products.
    assert_like_formula(layer_parts.lambda_of_logits, sigmoid_lambda, (logits,), steps=64)
    assert kernels.call_count == 2


def test_derivatives_of_derivatives(kernel_device, kernels):
    x, weight = torch.randn(2, 3, 2, 4, device=kernel_device), torch.rand(4, device=kernel_device)
    q, tables = torch.randn(1, 3, 2, 4, device=kernel_device), rotary_embedding(torch.arange(3), 4)
    tables = tuple(x.to(kernel_device) for x in tables)
    wide = [x.double() for x in tables]
    assert_like_formula(
        lambda x, w: layer_parts.normalise_heads(x, w, 0.1, 0.3),
        lambda x, w: head_norm(x, w, eps=0.1, factor=0.3), (x, weight), steps=64, twice=True,
    )  # fmt: skip
    assert_like_formula(
        lambda q, k: tuple(x.sin() for x in layer_parts.rotate_both(q, k, *tables)),
        lambda q, k: tuple(apply_rotary(x, *wide).sin() for x in (q, k)), (q, q), steps=16,
        twice=True,
    )  # fmt: skip
    assert_like_formula(
        lambda *xs: layer_parts.lambda_of_vectors(*xs, lambda_init=0.2),
        lambda *xs: diff_lambda(*xs, 0.2), list(0.3 * x.flatten(0, 2)[:4]), steps=64, twice=True,
    )  # fmt: skip
    assert_like_formula(layer_parts.lambda_of_logits, sigmoid_lambda, (x,), steps=64, twice=True)
    assert kernels.call_count >= 3


def test_gradients_of_many_outputs_at_once(kernel_device):
    """Under ``vmap`` the numbers are not at a tensor's address: the formulas serve."""
    tables = tuple(x.to(kernel_device) for x in rotary_embedding(torch.arange(3), 4))
    x = torch.randn(1, 3, 2, 4, device=kernel_device, requires_grad=True)
    weight = torch.rand(4, device=kernel_device, requires_grad=True)
    vectors = [(0.3 * torch.randn(4, device=kernel_device)).requires_grad_() for _ in range(4)]
    calls = {
        layer_parts.rotate_both(x, x, *tables)[0]: [x],
        layer_parts.normalise_heads(x, weight, 0.1, 0.3): [x, weight],
        layer_parts.lambda_of_vectors(*vectors, lambda_init=0.2): vectors,
        layer_parts.lambda_of_logits(x): [x],
    }
    for out, inputs in calls.items():
        many = torch.stack([torch.ones_like(out), torch.randn_like(out)])
        batched = torch.autograd.grad(out, inputs, many, is_grads_batched=True, retain_graph=True)
        for index, grad in enumerate(many):
            one = torch.autograd.grad(out, inputs, grad, retain_graph=True)
            for whole, part in zip(batched, one, strict=True):
                torch.testing.assert_close(whole[index], part)


def test_formulas_refuse_what_does_not_fit(kernel_device, kernels):
    x = torch.randn(1, 3, 2, 4, device=kernel_device)
    tables = rotary_embedding(torch.arange(4), 4)
    with pytest.raises(ShapeError, match="cos and sin must be"):
        layer_parts.rotate_both(x, x, *(y.to(kernel_device) for y in tables))
    with pytest.raises(ShapeError, match="weight must be"):
        layer_parts.normalise_heads(x, torch.rand(3, device=kernel_device), 0.1, 0.3)
    with pytest.raises(ShapeError, match="lambda_k1 must be"):
        layer_parts.lambda_of_vectors(x[0, 0, 0], *x[0, :, 0, :3], lambda_init=0.2)
    kernels.assert_not_called()


@pytest.mark.parametrize("asked", ["", "0", "1"])
def test_no_gpu_has_run_these_kernels_so_they_are_asked_for(asked, monkeypatch):
    support = layer_parts.kernel_support
    monkeypatch.setenv(support.VARIABLE, asked)
    monkeypatch.setattr(support, "compute_capability", lambda device: (9, 0))
    monkeypatch.setattr(support, "why_unavailable", lambda: None)
    assert chosen(torch.device("cuda")) is (asked == "1")
