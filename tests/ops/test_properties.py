"""What must hold for every backend whatever the numbers are."""

from dataclasses import replace

import pytest
import torch

from backend_skips import require_backend
from diffattn.lab.testing.inputs import OP_CASES, OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention, diff_attention_maps
from diffattn.ops.inputs.masking import AttentionMask
from diffattn.ops.softmax_attention import softmax_attention
from ops.backend_cases import assert_same, every_backend
from rounding_bounds import assert_equal_to_rounding

CASES = [
    case
    for case in OP_CASES
    if case.name
    in ("v1-gqa-T100", "v2-gqa-T128", "v1-T<S", "v2-T>S", "v1-cross-T<S", "v1-packed",
        "v2-decode", "v1-window-padding-kv_lengths", "v2-padding-noncausal")
]  # fmt: skip
# Small enough for Triton's interpreter.
V1 = OpCase(name="v1", num_queries=6, num_heads=2, num_kv_heads=1, lam_axes="bth")
V2 = replace(V1, name="v2", shared_keys=True, value_dim=8)
DOCUMENTS = (2, 1, 0, 3)


def make(case, backend, device, dtype):
    require_backend("diff_attention", backend, device=device, dtype=dtype, case=case)
    return make_diff_attention_inputs(case, dtype=dtype, device=device)


def run(inputs, backend, **changes):
    arguments = inputs.tensors() | inputs.options | changes
    return diff_attention(**arguments, backend=backend)


@every_backend(*CASES)
def test_lambda_zero_is_softmax_attention(backend, dtype, case, device):
    inputs = make(case, backend, device, dtype)
    keys = inputs.k if case.shared_keys else inputs.k[:, :, :, 0]
    expected = softmax_attention(inputs.q[:, :, :, 0], keys, inputs.v, **inputs.options)
    actual = run(inputs, backend, lam=torch.zeros_like(inputs.lam))
    assert_same(actual, expected, inputs)


@every_backend(*CASES)
def test_equal_maps_give_one_minus_lambda_times_softmax_attention(backend, dtype, case, device):
    inputs = make(case, backend, device, dtype)
    q = inputs.q[:, :, :, 1]
    k = inputs.k if case.shared_keys else inputs.k[:, :, :, 1]
    both_k = k if case.shared_keys else torch.stack([k, k], dim=3)
    lam = inputs.lam.expand(inputs.q.shape[:3])[..., None]
    expected = (1 - lam) * softmax_attention(q, k, inputs.v, **inputs.options)
    actual = run(inputs, backend, q=torch.stack([q, q], dim=3), k=both_k)
    assert_same(actual, expected, inputs)


@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_rows_of_the_map_sum_to_one_minus_lambda(case, device):
    inputs = make_diff_attention_inputs(case, device=device)
    lam = inputs.lam.detach()
    maps = diff_attention_maps(inputs.q.detach(), inputs.k.detach(), lam, **inputs.options)
    options = {name: x for name, x in inputs.options.items() if name != "scale"}
    num_queries, num_keys = maps[0].shape[-2:]
    visible = AttentionMask(**options).visible_keys(num_queries, num_keys, device=device)
    sees = torch.ones((), device=device) if visible is None else visible.any(-1)[:, None].float()
    lam = lam.expand(inputs.q.shape[:3]).transpose(1, 2)  # [B, H, T]
    for weights, total in zip(maps, (1.0, 1.0, 1.0 - lam), strict=True):
        expected = (total * sees).expand(weights.shape[:-1])
        # S terms and the normaliser's S terms, whatever the logits are.
        assert_equal_to_rounding(
            weights.sum(-1), expected, steps=2 * num_keys + 4, magnitude=1 + float(lam.abs().max())
        )
    assert (maps[0] >= 0).all()
    assert (maps[1] >= 0).all()


@every_backend(V1, V2, dtypes=(torch.float32, torch.bfloat16))
@pytest.mark.parametrize("num_queries", [3, 6], ids=["T<S", "T=S"])
def test_a_future_token_changes_nothing(backend, dtype, num_queries, case, device):
    """Bit for bit: a weight of exactly 0 times a finite number is 0."""
    case = replace(case, num_queries=num_queries, num_keys=6, lam_axes="h")
    inputs = make(case, backend, device, dtype)
    before = run(inputs, backend)
    for query in range(num_queries):
        future = query + 6 - num_queries + 1
        k, v, q = inputs.k.detach().clone(), inputs.v.detach().clone(), inputs.q.detach().clone()
        k[:, future:], v[:, future:], q[:, query + 1 :] = 300.0, -3e4, -40.0
        after = run(inputs, backend, q=q, k=k, v=v)
        assert torch.equal(after[:, : query + 1], before[:, : query + 1])
    k, v = inputs.k.detach().clone(), inputs.v.detach().clone()
    k[:, -1], v[:, -1] = 300.0, -3e4  # the last query does see the last key
    assert not torch.equal(run(inputs, backend, k=k, v=v)[:, -1], before[:, -1])


@every_backend(replace(V1, num_keys=12, padding=((3, 0), (0, 2)), kv_lengths=(9, 11), lam_axes=""))
@pytest.mark.parametrize("causal", [True, False])
def test_hidden_keys_hold_anything_finite(backend, dtype, causal, case, device):
    """Padding and the unwritten end of a cache, bit for bit, and their gradients are 0."""
    inputs = make(replace(case, causal=causal), backend, device, dtype)
    hidden = ~inputs.options["key_padding_mask"]
    hidden |= torch.arange(12, device=device) >= inputs.options["kv_lengths"][:, None]
    before = run(inputs, backend)
    k, v = inputs.k.detach().clone(), inputs.v.detach().clone()
    k[hidden], v[hidden] = 1e6, -1e6
    assert torch.equal(run(inputs, backend, k=k, v=v), before)
    if not before.requires_grad:  # the backend has none here
        return
    for grad in torch.autograd.grad(before.square().sum(), [inputs.k, inputs.v]):
        assert (grad[hidden] == 0).all()
        assert (grad[~hidden] != 0).any()


@every_backend(
    replace(V1, batch=4, kv_lengths=(6, 2, 0, 5), padding=((0, 0), (1, 0), (0, 3), (2, 2)))
)
def test_order_of_the_batch_changes_nothing(backend, dtype, case, device):
    inputs = make(case, backend, device, dtype)
    order = torch.tensor([2, 0, 3, 1], device=device)
    tensors = inputs.tensors() | inputs.options
    shuffled = {name: x[order] for name, x in tensors.items()}
    actual = diff_attention(**shuffled, backend=backend)
    assert_same(actual, run(inputs, backend)[order], inputs)


@every_backend(V1, V2)
@pytest.mark.parametrize("num_kv_heads", [1, 2, 3])
def test_gqa_equals_repeated_heads(backend, dtype, num_kv_heads, case, device):
    """Query head i reads key/value head i // (H // Hkv), each map its own keys of it."""
    case = replace(case, batch=1, num_heads=6, num_kv_heads=num_kv_heads, lam_axes="h")
    inputs = make(case, backend, device, dtype)
    heads = [i // (6 // num_kv_heads) for i in range(6)]
    repeated = run(inputs, backend, k=inputs.k[:, :, heads], v=inputs.v[:, :, heads])
    assert_same(run(inputs, backend), repeated, inputs)


@every_backend(V1, V2)
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("cache", ["growing", "preallocated"])
def test_decode_equals_the_full_pass(backend, dtype, window, cache, case, device):
    """A prefill of 3 tokens, then one token at a time."""
    inputs = make(case, backend, device, dtype)
    expected = run(inputs, backend, window=window)
    for start, end in [(0, 3), *((i, i + 1) for i in range(3, 6))]:
        k, v, options = inputs.k[:, :end], inputs.v[:, :end], {}
        if cache == "preallocated":
            k, v = inputs.k.detach().clone(), inputs.v.detach().clone()
            k[:, end:], v[:, end:] = 1e6, -1e6
            options["kv_lengths"] = torch.full((2,), end, dtype=torch.int32, device=device)
        actual = run(
            inputs, backend, q=inputs.q[:, start:end], lam=inputs.lam[:, start:end], k=k, v=v,
            window=window, **options,
        )  # fmt: skip
        assert_same(actual, expected[:, start:end], inputs)


@every_backend(*(replace(base, batch=1, documents=DOCUMENTS, lam_axes="th") for base in (V1, V2)))
@pytest.mark.parametrize("options", [{}, {"causal": False}, {"window": 3}], ids=str)
def test_packed_row_equals_separate_documents(backend, dtype, options, case, device):
    inputs = make(case, backend, device, dtype)
    packed = run(inputs, backend, **options)
    tensors = inputs.tensors() | {"lam": inputs.lam[None]}
    pieces = [x.split(DOCUMENTS, dim=1) for x in tensors.values()]
    separate = [diff_attention(*xs, backend=backend, **options) for xs in zip(*pieces, strict=True)]
    assert_same(packed, torch.cat(separate, dim=1), inputs)


@every_backend(V1, dtypes=(torch.bfloat16,))
def test_lambda_is_float32_to_the_end(backend, dtype, case, device):
    """λ = 1 + 2⁻¹², which bfloat16 rounds to 1, times two equal maps: −2⁻¹² A V, not 0."""
    inputs = make(case, backend, device, dtype)
    q = inputs.q[:, :, :, :1].expand_as(inputs.q)
    k = inputs.k[:, :, :, :1].expand_as(inputs.k)
    plain = run(inputs, backend, q=q, k=k, lam=torch.zeros_like(inputs.lam))
    tiny = run(inputs, backend, q=q, k=k, lam=torch.full_like(inputs.lam, 1 + 2.0**-12))
    # Map and output are rounded once in each call.
    assert_equal_to_rounding(
        -tiny * 2**12, plain, steps=2, magnitude=float(inputs.v.detach().abs().max())
    )
    assert plain.abs().max() > 0.1
