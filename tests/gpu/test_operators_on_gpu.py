"""Forward and all gradients of every backend against float64, at the sizes of GPUs."""

from functools import partial

import pytest
import torch

from backend_skips import require_backend
from diffattn import diff_attention
from diffattn.errors import BackendError
from diffattn.lab.benchmark.checking import Exact
from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import make_diff_attention_inputs
from diffattn.ops.inputs import backends
from diffattn.ops.softmax_attention import softmax_attention

from . import gpu_cases


def check(backend, dtype, case, device):
    """Within the budget; or refused by the backend's own check of what it is not built for."""
    row = backends.row("diff_attention", backend)
    differentiable = device.type not in row.no_gradient_on
    with torch.set_grad_enabled(differentiable):
        require_backend("diff_attention", backend, device=device, dtype=dtype, case=case)
        inputs = make_diff_attention_inputs(case, dtype=dtype, device=device)
        refusal = None
        if backend == "hopper" and not {"causal"}.issuperset(inputs.options):
            refusal = r"backend 'hopper' needs .* no mask besides"
        if backend == "triton_decode" and case.documents is not None:
            refusal = "needs a cache without document borders"
        if refusal is None:
            assert_close_to_reference(diff_attention, inputs, backend=backend)
            return
        with pytest.raises(BackendError, match=refusal):
            diff_attention(**inputs.tensors(), backend=backend, **inputs.options)


@pytest.mark.parametrize("case", list(gpu_cases.cases()), ids=str)
@pytest.mark.parametrize("dtype", gpu_cases.DTYPES)
@pytest.mark.parametrize("backend", gpu_cases.BACKENDS)
def test_every_case(backend, dtype, case, kernel_device):
    check(backend, dtype, case, kernel_device)


@pytest.mark.parametrize("case", list(gpu_cases.long_cases()), ids=str)
@pytest.mark.parametrize("dtype", gpu_cases.DTYPES)
@pytest.mark.parametrize("backend", [b for b in gpu_cases.BACKENDS if b != "triton_decode"])
def test_many_tiles(backend, dtype, case, kernel_device):
    if backend in gpu_cases.HOLDS_MAPS and case.num_queries > 1_024:
        pytest.skip(f"{backend!r} would hold maps of {case.num_queries} tokens")
    check(backend, dtype, case, kernel_device)


@pytest.mark.parametrize("case", list(gpu_cases.decode_cases()), ids=str)
@pytest.mark.parametrize("dtype", gpu_cases.DTYPES)
@pytest.mark.parametrize("backend", ["triton_decode", "decode", "triton"])
def test_long_cache(backend, dtype, case, kernel_device):
    check(backend, dtype, case, kernel_device)


@pytest.mark.parametrize("case", [c for c in gpu_cases.long_cases() if c.name.startswith("v1-N")],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", gpu_cases.DTYPES)
@pytest.mark.parametrize("backend", ["triton", "sdpa"])
def test_softmax_baseline(backend, dtype, case, kernel_device):
    """What DIFF is compared with computes what it should."""
    inputs = make_diff_attention_inputs(case, dtype=dtype, device=kernel_device)
    q, k, v = (x.detach() for x in (inputs.q, inputs.k, inputs.v))
    heads = (q.flatten(2, 3), k.flatten(2, 3), v.unflatten(-1, (2, -1)).flatten(2, 3))
    leaves = tuple(x.contiguous().requires_grad_() for x in heads)
    row = backends.row("softmax_attention", backend)
    if reason := row.refuses(backends.describe(*leaves)):
        pytest.skip(f"softmax_attention: backend {backend!r} {reason}")
    call = partial(softmax_attention, *leaves, backend=backend)
    verdict = Exact.softmax(leaves).check(call, True)
    assert verdict["passed"], verdict
