"""What is not finite reaches only who sees it; scores beyond float16; float32 under autocast."""

import pytest
import torch

from backend_skips import require_backend
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention, diff_attention_maps
from diffattn.ops.inputs import backends
from diffattn.ops.softmax_attention import softmax_attention

BACKENDS = [b.name for b in backends.table("diff_attention") if b.accepts_widths(8, 16)]
SOFTMAX = [b.name for b in backends.table("softmax_attention") if b.accepts_widths(8, 16)]
# Shape, what is spoilt of the first row, and the queries that see none of it.
CASES = {
    "the document before": ({"num_queries": 30, "batch": 1, "documents": (9, 6, 15)}, 3, (9, 30)),
    "the document after": ({"num_queries": 30, "batch": 1, "documents": (9, 6, 15)}, 20, (0, 15)),
    "behind the window": ({"num_queries": 30, "window": 4}, 11, (15, 30)),
    "behind the cache's window": ({"num_queries": 2, "num_keys": 30, "window": 4}, 9, (0, 2)),
    "padding": ({"num_queries": 20, "padding": ((4, 0), (0, 0))}, 2, (4, 20)),
    "unwritten": ({"num_queries": 1, "num_keys": 30, "kv_lengths": (12, 30)}, 20, (0, 1)),
}
case = pytest.mark.parametrize(("shape", "place", "unseen"), CASES.values(), ids=CASES)


def spoilt(shape, place, value):
    """Inputs, options, and inputs with a value in keys, values and a packed row's queries."""
    inputs = make_diff_attention_inputs(OpCase(name="", **shape))
    tensors = [x.detach() for x in inputs.tensors().values()]
    changed = [x.clone() for x in tensors]
    for x in changed[1:3] if "documents" not in shape else changed[:3]:
        x[0, place, 0, 0] = value
    return tensors, inputs.options, changed


@case
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_outputs_and_gradients_are_those_of_a_finite_neighbour(
    backend, value, shape, place, unseen
):
    tensors, options, changed = spoilt(shape, place, value)
    begin, end = unseen
    for wants_gradient in (False, True):
        if wants_gradient and backend == "flex":
            continue
        grads = []
        for given, name in ((changed, backend), (tensors, "reference")):
            leaves = [x.clone().requires_grad_(wants_gradient) for x in given]
            out = diff_attention(*leaves, backend=name, **options)[0, begin:end]
            loss = out.square().sum()
            grads.append(
                [out.detach(), *(torch.autograd.grad(loss, leaves) if wants_gradient else ())]
            )
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@case
@pytest.mark.parametrize("backend", ["auto", *SOFTMAX])
def test_softmax_attention_likewise(backend, shape, place, unseen):
    tensors, options, changed = spoilt(shape, place, torch.nan)
    outs = [
        softmax_attention(x[0][..., 0, :], x[1][..., 0, :], x[2], backend=name, **options)
        for x, name in ((changed, backend), (tensors, "reference"))
    ]
    torch.testing.assert_close(*(x[0, slice(*unseen)] for x in outs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "reference", "chunked", "composed"])
def test_compiled_code_keeps_documents_apart(backend):
    tensors, options, changed = spoilt(*CASES["the document before"][:2], torch.nan)
    torch._dynamo.reset()
    compiled = torch.compile(diff_attention, fullgraph=True, backend="aot_eager")
    actual = compiled(*changed, backend=backend, **options)[0, 9:]
    torch.testing.assert_close(actual, diff_attention(*tensors, **options)[0, 9:])


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_who_sees_it_gets_nan(backend):
    _, options, changed = spoilt(*CASES["the document before"][:2], torch.nan)
    out = diff_attention(*changed, backend=backend, **options)
    assert out[0, 3:9, 0].isnan().any(-1).all()


@pytest.mark.parametrize("num_queries", [1, 5, 40])
@pytest.mark.parametrize("size", [200.0, 2000.0])
def test_scores_beyond_float16(num_queries, size):
    case = OpCase(name="", num_queries=num_queries, num_keys=40, head_dim=64, value_dim=128)
    inputs = make_diff_attention_inputs(case)
    q, k, v = (x.detach().half() for x in (inputs.q * size, inputs.k * size, inputs.v))
    lam = inputs.lam.detach()
    expected = diff_attention(q.double(), k.double(), v.double(), lam)
    for backend in ("auto", "reference", "decode", "composed", "flash_diff_attn_1",
                    "flash_diff_attn_2", "flex"):  # fmt: skip
        actual = diff_attention(q, k, v, lam, backend=backend)
        torch.testing.assert_close(actual.double(), expected, rtol=5e-3, atol=5e-3)
    one = q[..., 0, :], k[..., 0, :]
    expected = softmax_attention(*(x.double() for x in one), v.double())
    for backend in ("auto", "reference", "sdpa", "decode"):
        actual = softmax_attention(*one, v, backend=backend)
        torch.testing.assert_close(actual.double(), expected, rtol=5e-3, atol=5e-3)
    assert all(x.isfinite().all() for x in diff_attention_maps(q, k, lam))


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
@pytest.mark.parametrize("num_queries", [1, 20])
def test_autocast_rounds_no_float32(backend, num_queries, device):
    """Neither λ, nor a map, nor the output."""
    if backend != "auto":
        require_backend("diff_attention", backend, device=device, dtype=torch.float32)
    tensors, _, _ = spoilt({"num_queries": num_queries, "num_keys": 30}, 0, 0.0)
    tensors = [x.to(device) for x in tensors]
    expected = diff_attention(*tensors, backend=backend)
    q, k, _, lam = tensors
    maps = torch.stack(diff_attention_maps(q, k, lam))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert torch.equal(diff_attention(*tensors, backend=backend), expected)
        assert torch.equal(torch.stack(diff_attention_maps(q, k, lam)), maps)
