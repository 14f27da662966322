"""Derivatives in forward mode and of higher order, and transforms: right at every length."""

import subprocess
import sys

import pytest
import torch
from torch.autograd import forward_ad

from diffattn.errors import BackendError
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention
from diffattn.ops.inputs import backends
from diffattn.ops.softmax_attention import softmax_attention

# PyTorch's own formulas of forward mode; its fused attention has no batching rule.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script:DeprecationWarning", "ignore:There is a performance drop"
)

LENGTHS = {"one row": (1, 40), "few": (6, 6), "short": (40, 40), "long": (380, 380)}
lengths = pytest.mark.parametrize(("num_queries", "num_keys"), LENGTHS.values(), ids=LENGTHS)
MASKS = {
    "causal": {},
    "window": {"window": 7},
    "padding": {"padding": ((2, 0), (0, 1))},
    "lengths": {"kv_lengths": (33, 40)},
    "documents": {"batch": 1, "documents": (3, 17, 20)},
}


def tensors_of(num_queries, num_keys, dtype=torch.float32, num_heads=2, **options):
    case = OpCase(name="", num_queries=num_queries, num_keys=num_keys, lam_axes="h",
                  num_heads=num_heads, num_kv_heads=1, **options)  # fmt: skip
    inputs = make_diff_attention_inputs(case, dtype=dtype)
    return [x.detach() for x in inputs.tensors().values()], inputs.options


def one_map(q, k, v, lam, **options):
    """Softmax attention of the first maps, λ unused."""
    return softmax_attention(q[..., 0, :], k[..., 0, :], v, **options)


OPERATORS = {"diff": diff_attention, "softmax": one_map}


def tangent(function, tensors, which, direction):
    with forward_ad.dual_level():
        duals = list(tensors)
        duals[which] = forward_ad.make_dual(tensors[which], direction)
        return forward_ad.unpack_dual(function(*duals)).tangent


@lengths
@pytest.mark.parametrize("which", [0, 1, 2], ids=["q", "k", "v"])
@pytest.mark.parametrize("op", OPERATORS)
def test_auto_gives_the_derivative_in_forward_mode(op, which, num_queries, num_keys):
    """Also of a model whose weights are frozen, where nothing requires a gradient."""
    tensors, _ = tensors_of(num_queries, num_keys)
    direction = torch.randn_like(tensors[which])
    actual = tangent(OPERATORS[op], tensors, which, direction)
    wide = [x.double() for x in tensors]
    ends = []
    for step in (1e-5, -1e-5):
        moved = list(wide)
        moved[which] = wide[which] + step * direction
        ends.append(OPERATORS[op](*moved, backend="reference"))
    torch.testing.assert_close(actual.double(), (ends[0] - ends[1]) / 2e-5, rtol=0, atol=1e-4)


@lengths
@pytest.mark.parametrize("backend", [b.name for b in backends.table("diff_attention")])
def test_a_named_backend_never_drops_a_derivative(backend, num_queries, num_keys):
    tensors, _ = tensors_of(num_queries, num_keys, head_dim=32, value_dim=64)
    for which, x in enumerate(tensors):
        direction = torch.randn_like(x)
        expected = tangent(lambda *a: diff_attention(*a, backend="reference"), tensors, which,
                           direction)  # fmt: skip
        try:
            actual = tangent(lambda *a: diff_attention(*a, backend=backend), tensors, which,
                             direction)  # fmt: skip
        except (BackendError, NotImplementedError):  # ours, and PyTorch's of its own kernels
            continue
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def test_an_operator_refuses_a_derivative_however_it_is_called():
    (q, k, v, lam), _ = tensors_of(9, 9)
    lam = lam.contiguous()
    with forward_ad.dual_level():
        for dual in (
            (forward_ad.make_dual(q, q), k, v, lam),
            (q, k, v, forward_ad.make_dual(lam, lam)),
        ):
            with pytest.raises(BackendError, match="diffattn::chunked: must be called outside"):
                torch.ops.diffattn.chunked(*dual, 0.5, True, None, None, None, None)
        with pytest.raises(BackendError, match="diffattn::realized: must be called outside"):
            torch.ops.diffattn.realized(forward_ad.make_dual(q, q))
        torch.ops.diffattn.chunked(q, k, v, lam, 0.5, True, None, None, None, None)


@pytest.mark.sampled(one_of=3)
@pytest.mark.sampled(one_of=4)
@lengths
@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_auto_takes_transforms_at_every_length(op, num_queries, num_keys, compiled):
    (q, k, v, lam), _ = tensors_of(num_queries, num_keys)
    function = OPERATORS[op]

    def output(q):
        return function(q, k, v, lam)

    def run(q):
        first = torch.func.grad(lambda q: output(q).square().sum())(q)
        return (
            torch.func.vmap(output)(torch.stack([q, 2 * q])),
            first,
            torch.func.jvp(output, (q,), (q,))[1],
        )

    torch._dynamo.reset()
    batched, first, forward = (
        torch.compile(run, backend="eager", fullgraph=True) if compiled else run
    )(q)
    leaf = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(
        function(leaf, k, v, lam, backend="reference").square().sum(), leaf
    )
    torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(batched, torch.stack([output(q), output(2 * q)]))
    torch.testing.assert_close(forward, tangent(lambda q: output(q), [q], 0, q))


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(
    ("op", "backend", "shared"),
    [("diff", "chunked", False), ("diff", "chunked", True), ("softmax", "chunked", False),
     ("softmax", "sdpa", False)],
)  # fmt: skip
def test_second_derivatives_of_fused_backends(op, backend, shared, options):
    """With an upstream gradient that depends on the inputs itself."""
    (q, k, v, lam), options = tensors_of(40, 40, dtype=torch.float64, **options)
    k = k[..., 0, :] if shared and op == "diff" else k
    tensors = [x.clone().requires_grad_() for x in (q, k, v, lam)]
    wanted = tensors if op == "diff" else tensors[:3]
    seconds = []
    for name in (backend, "reference"):
        out = OPERATORS[op](*tensors, backend=name, **options)
        firsts = torch.autograd.grad(out.square().sum(), wanted, create_graph=True)
        loss = sum(x.square().sum() for x in firsts)
        seconds.append(torch.autograd.grad(loss, wanted))
    torch.testing.assert_close(*seconds, rtol=1e-6, atol=1e-6)


def test_second_derivatives_without_differential_attention():
    """Of a process that imports softmax attention alone."""
    code = (
        "import torch; from diffattn import softmax_attention;"
        "q = torch.randn(1, 9, 2, 8, requires_grad=True);"
        "out = softmax_attention(q, q, q, backend='chunked').square().sum();"
        "first, = torch.autograd.grad(out, q, create_graph=True); first.sum().backward()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_third_derivatives_and_gradients_of_many_outputs_at_once():
    (q, k, v, lam), _ = tensors_of(11, 11, dtype=torch.float64)
    thirds, jacobians = [], []
    for backend in ("chunked", "reference"):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, lam)]
        grads = (diff_attention(*leaves, backend=backend).square().sum(),)
        for leaf in leaves[:3]:
            grads = torch.autograd.grad(grads[0].square().sum(), leaf, create_graph=True)
        thirds.append(grads[0].detach())
        jacobians.append(
            torch.autograd.functional.jacobian(
                lambda q, name=backend: diff_attention(q, k, v, lam, backend=name).sum((1, 2)),
                q, vectorize=True,
            )
        )  # fmt: skip
    torch.testing.assert_close(*thirds, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(*jacobians, rtol=1e-6, atol=1e-6)


class Attention(torch.nn.Module):
    def __init__(self, op, backend):
        super().__init__()
        self.op, self.backend = op, backend

    def forward(self, q, k, v, lam):
        return OPERATORS[self.op](q, k, v, lam, backend=self.backend)


@pytest.mark.sampled(one_of=3)
@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
@pytest.mark.parametrize("example", [7, 90, 400])
@pytest.mark.parametrize("op", OPERATORS)
def test_an_exported_length_is_not_narrowed(op, example, strict):
    """Whatever length the example has, and whatever lengths would choose."""
    tensors, _ = tensors_of(example, example, batch=1)
    length = torch.export.Dim("T", min=2, max=4096)
    shapes = {name: {1: length} for name in ("q", "k", "v")} | {"lam": None}
    program = torch.export.export(
        Attention(op, "auto"), tuple(tensors), dynamic_shapes=shapes, strict=strict
    ).module()
    for other in (2, 9, 65, 700):
        tensors, _ = tensors_of(other, other, batch=1)
        expected = OPERATORS[op](*tensors, backend="reference")
        torch.testing.assert_close(program(*tensors), expected, rtol=1e-4, atol=1e-5)
