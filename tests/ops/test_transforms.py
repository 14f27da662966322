"""The operator under compilation, export, vmap and tensors without values.

Derivatives in forward mode, of higher order, and at every length: ``test_derivatives.py``.
"""

from functools import partial

import pytest
import torch

from diffattn.errors import BackendError, ShapeError
from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention
from diffattn.ops.inputs import backends
from ops.backend_cases import assert_same

# Kernels of fixed widths have these tests in tests/ops/triton.
BACKENDS = [b.name for b in backends.table("diff_attention") if b.accepts_widths(8, 16)]

OPAQUE = ("chunked", "flex")
TRANSFORMED = [name for name in BACKENDS if name not in OPAQUE]
CASE = OpCase(name="", num_queries=6, num_keys=9, num_kv_heads=2, lam_axes="h",
              kv_lengths=(9, 4), padding=((1, 0), (0, 0)))  # fmt: skip
PACKED = OpCase(name="", num_queries=6, batch=1, documents=(2, 4))


def call(backend, q, k, v, lam, options):
    return diff_attention(q, k, v, lam, backend=backend, **options)


# PyTorch's fused CPU attention has no batching rule and says so.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("backend", TRANSFORMED)
def test_vmap_equals_a_loop(backend, device):
    """Over λ and key lengths too, whose values cannot be looked at there."""
    inputs = [make_diff_attention_inputs(CASE, device=device, seed=seed) for seed in range(3)]
    stacked = [torch.stack(xs) for xs in zip(*(x.tensors().values() for x in inputs), strict=True)]
    lengths = torch.tensor([[9, 4], [0, 1], [3, 7]], dtype=torch.int32, device=device)
    mask = inputs[0].options["key_padding_mask"]

    def call_one(q, k, v, lam, kv_lengths):
        options = {"kv_lengths": kv_lengths, "key_padding_mask": mask}
        return call(backend, q, k, v, lam, options)

    actual = torch.vmap(call_one)(*stacked, lengths)
    for index, x in enumerate(inputs):
        assert_same(actual[index], call_one(*x.tensors().values(), lengths[index]), x)


@pytest.mark.parametrize("backend", OPAQUE)
def test_an_opaque_backend_refuses_transforms_by_name(backend):
    inputs = make_diff_attention_inputs(CASE)
    q, k, v = (x.detach() for x in (inputs.q, inputs.k, inputs.v))

    def loss(lam):
        return call(backend, q, k, v, lam, inputs.options).sum()

    message = f"backend '{backend}' must be called outside torch.func transforms"
    no_gradient = f"backend '{backend}' has no gradient on cpu"  # said first, where it is so
    with pytest.raises(BackendError, match=f"{message}|{no_gradient}"):
        torch.func.grad(loss)(inputs.lam.detach())
    with pytest.raises(BackendError, match=message):
        torch.vmap(loss)(inputs.lam.detach().expand(3, -1))


@pytest.mark.parametrize("backend", TRANSFORMED)
def test_functional_gradient_equals_autograd_and_still_looks_at_lambda(backend):
    inputs = make_diff_attention_inputs(CASE)

    def loss(lam):
        return call(backend, inputs.q, inputs.k, inputs.v, lam, inputs.options).sum()

    actual = torch.func.grad(loss)(inputs.lam)
    (expected,) = torch.autograd.grad(loss(inputs.lam), inputs.lam)
    assert torch.equal(actual, expected)
    with pytest.raises(ShapeError, match="lam must not be NaN"):
        torch.func.grad(loss)(torch.full_like(inputs.lam, float("nan")))


class Operator(torch.nn.Module):
    """The operator as a module, for export."""

    def __init__(self, backend):
        super().__init__()
        self.backend = backend

    def forward(self, q, k, v, lam, options):
        return call(self.backend, q, k, v, lam, options)


@pytest.mark.sampled(one_of=3)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_export(backend, strict):
    inputs = make_diff_attention_inputs(CASE)
    arguments = (*(x.detach() for x in inputs.tensors().values()), inputs.options)
    program = torch.export.export(Operator(backend), arguments, strict=strict).module()
    assert_same(program(*arguments), call(backend, *arguments), inputs)
    shorter = inputs.options | {"kv_lengths": inputs.options["kv_lengths"] - 3}
    arguments = (*arguments[:-1], shorter)  # lengths are inputs, not constants of the graph
    assert_same(program(*arguments), call(backend, *arguments), inputs)


# Inductor itself still uses what PyTorch has deprecated.
@pytest.mark.sampled(one_of=3)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "compiler", ["eager", pytest.param("inductor", marks=pytest.mark.scheduled)]
)
@pytest.mark.parametrize("case", [CASE, PACKED], ids=["cache", "packed"])
def test_compiles_to_one_graph(backend, compiler, case):
    torch.compiler.reset()
    compiled = torch.compile(partial(call, backend), fullgraph=True, backend=compiler)

    def op(*tensors, backend, **options):
        if backend == "compiled":
            return compiled(*tensors, options)
        return diff_attention(*tensors, backend=backend, **options)

    assert_close_to_reference(op, make_diff_attention_inputs(case), backend="compiled")
