"""The decode kernel in Triton's interpreter on CPU, and on a GPU where there is one."""

import pytest
import torch

from diffattn import diff_attention
from diffattn.errors import BackendError
from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.backends import custom_op
from diffattn.ops.inputs.masking import AttentionMask
from ops.paged_inputs import pages_of

from .kernel_calls import decode as run

pytest.importorskip("triton", reason="the kernels need triton")

V1 = {"head_dim": 32, "value_dim": 64}
V2 = {"head_dim": 32, "value_dim": 32, "shared_keys": True}
GQA = {"num_heads": 4, "num_kv_heads": 2}
CASES = [
    OpCase(name="v1-T1", num_queries=1, num_keys=70, **V1, **GQA),
    OpCase(name="v1-mha-T1-S1", num_queries=1, num_keys=1, lam_axes="h", **V1),
    OpCase(name="v1-T5", num_queries=5, num_keys=300, lam_axes="bth", **V1, **GQA),
    OpCase(name="v1-T16-noncausal", num_queries=16, num_keys=40, causal=False, batch=1, **V1,
           **GQA),
    OpCase(name="v1-mqa-T>S", num_queries=9, num_keys=5, batch=1, num_kv_heads=1, **V1),
    OpCase(name="v1-rows-in-blocks", num_queries=16, num_keys=40, num_heads=10, num_kv_heads=1,
           batch=1, **V1),
    OpCase(name="v2-T1", num_queries=1, num_keys=260, lam_axes="bth", **V2, **GQA),
    OpCase(name="v2-T3-window", num_queries=3, num_keys=80, window=17, lam_axes="t", **V2),
    OpCase(name="v1-window-noncausal", num_queries=4, num_keys=90, window=1, causal=False, **V1),
    OpCase(name="v1-kv_lengths", num_queries=2, num_keys=300, kv_lengths=(300, 140), **V1, **GQA),
    OpCase(name="v2-kv_lengths-short", num_queries=4, num_keys=50, kv_lengths=(0, 2), **V2),
    OpCase(name="v1-padding", num_queries=2, num_keys=70, padding=((33, 0), (0, 70)), **V1, **GQA),
    OpCase(name="v1-all-options", num_queries=3, num_keys=90, window=40, padding=((5, 0), (0, 2)),
           kv_lengths=(90, 61), lam_axes="bth", scale=0.3, **V1, **GQA),
    OpCase(name="d64-T5", num_queries=5, num_keys=150, head_dim=64, value_dim=128, batch=1,
           num_heads=5, num_kv_heads=1, lam_axes="bth"),
    OpCase(name="d96", num_queries=1, num_keys=40, head_dim=96, value_dim=192, batch=1, **GQA),
    OpCase(name="d128-shared-2d", num_queries=2, num_keys=40, head_dim=128, value_dim=256,
           shared_keys=True, batch=1, **GQA),
    OpCase(name="d64-own-keys-narrow-v", num_queries=2, num_keys=40, head_dim=64, value_dim=64,
           batch=1, **GQA),
]  # fmt: skip


@pytest.mark.sampled(one_of=10)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_decode_matches_reference(case, dtype, kernel_device):
    inputs = make_diff_attention_inputs(case, dtype=dtype, device=kernel_device)
    assert_close_to_reference(run, inputs, backend="decode", gradients=False)


@pytest.mark.parametrize("paged", [False, True])
def test_the_widest_window_of_a_short_row_does_not_wrap_around(paged, kernel_device):
    """Its first query stands before key 0: 2^31 tokens further back there is no int32."""
    case = OpCase(name="", num_queries=16, num_keys=20, window=2**31 - 1, kv_lengths=(1, 20),
                  num_heads=1, num_kv_heads=1, **V1)  # fmt: skip
    inputs = make_diff_attention_inputs(case, device=kernel_device)
    function, backend = (pages_of(16), "triton") if paged else (run, "decode")
    assert_close_to_reference(function, inputs, backend=backend, gradients=False)


@pytest.mark.parametrize("num_splits", [1, 2, 5, 19])
def test_the_number_of_parts_changes_rounding_only(num_splits, kernel_device):
    """Also more parts than a merge block holds, and parts without any key."""
    from diffattn.ops.triton import decode

    case = OpCase(name="", num_queries=2, num_keys=230, kv_lengths=(230, 40), num_heads=2,
                  num_kv_heads=1, **V1)  # fmt: skip
    inputs = make_diff_attention_inputs(case, device=kernel_device)

    def split(q, k, v, lam, *, backend, **options):
        if backend == "reference":
            return run(q, k, v, lam, backend=backend, **options)
        scale, mask = q.shape[-1] ** -0.5, AttentionMask(**options)
        return decode.decode(q, k, v, lam, scale=scale, mask=mask, num_splits=num_splits)

    assert_close_to_reference(split, inputs, backend="decode", gradients=False)


def test_unwritten_cache_and_strides(kernel_device):
    """A cache longer than its content, read in place: other heads' channels lie between."""
    case = OpCase(name="", num_queries=1, num_keys=60, **V1, **GQA)
    inputs = make_diff_attention_inputs(case, device=kernel_device).map_tensors(lambda x: x)
    plain = run(**inputs.tensors(), backend="decode")
    k = torch.full((2, 3, 90, 2, 2, 32), 1e30, device=kernel_device)
    v = torch.full((2, 90, 5, 64), 1e30, device=kernel_device)
    k[:, 1, :60], v[:, :60, 1:3] = inputs.k, inputs.v
    lengths = torch.tensor([60, 60], dtype=torch.int32, device=kernel_device)
    cached = run(inputs.q, k[:, 1], v[:, :, 1:3], inputs.lam, backend="decode", kv_lengths=lengths)
    assert torch.equal(plain, cached)


def test_a_gradient_is_refused(kernel_device):
    inputs = make_diff_attention_inputs(CASES[0], device=kernel_device)
    tensors = inputs.tensors().values()
    with pytest.raises(BackendError, match=r"'triton_decode' has no gradient on"):
        diff_attention(*tensors, backend="triton_decode")
    out = custom_op.triton_decode(*tensors, 0.1, True, None, None, None)
    with pytest.raises(RuntimeError, match=r"no autograd formula was registered"):
        out.sum().backward()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_queries": 17}, "needs at most 16 queries, got 17"),
        ({"head_dim": 16}, "needs head_dim in {32, 64, 96, 128} and Dv .* got head_dim 16"),
        ({"value_dim": 48}, "got head_dim 32 and Dv 48"),
        ({"batch": 1, "num_queries": 4, "documents": (2, 2)}, "got cu_seqlens"),
    ],
)
def test_what_the_kernel_is_not_built_for_is_refused(change, message, kernel_device):
    case = OpCase(**({"name": "", "num_queries": 1} | V1 | change))
    inputs = make_diff_attention_inputs(case, device=kernel_device)
    with torch.no_grad(), pytest.raises(BackendError, match=message):
        diff_attention(**inputs.tensors(), backend="triton_decode", **inputs.options)
