"""The Hopper backward: its source emulated on CPU, and the kernel itself on a Hopper GPU."""

import inspect

import pytest
import torch

from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops import attention
from diffattn.ops.backends import custom_op, reference
from diffattn.ops.inputs import backends, kernel_support
from diffattn.ops.inputs.masking import AttentionMask

from .gluon_emulation import emulate, put_into
from .hopper_cases import D64, D128, LONG, V2, broken_protocols, exact_forward, on_hopper

pytest.importorskip("triton.experimental.gluon", reason="the kernel is written in Gluon")
from diffattn.ops.hopper import backward as hopper
from diffattn.ops.hopper import backward_turns as turns
from diffattn.ops.hopper import by_map
from diffattn.ops.hopper import forward as hopper_forward
from diffattn.ops.triton import backward as triton_backward

KERNEL = "_diff_attention_bwd_hopper_kernel"
FUNCTIONS = (
    "_allocate", "_allocate_barriers", "_produce", "_load_numbers", "_number", "_limits",
    "_allocate_tiles", "_fold", "_fold_exchanging", "_consume", "_store", "_store_sums", "_tiles",
)  # fmt: skip
TURNS = (
    "_number", "_weights", "_seen", "_own_tiles", "_tile", "_fold", "_give", "_scores",
    "_fold_exchanging", "_multiply_keys", "_add", "_both_weights", "_put", "_announce",
)  # fmt: skip
CASES = [
    OpCase(name="d64-T1", num_queries=1, **D64),
    OpCase(name="d64-T200", num_queries=200, lam_axes="bth", **D64),
    OpCase(name="d64-T<S", num_queries=70, num_keys=300, lam_axes="h", **D64),
    OpCase(name="d64-T>S", num_queries=300, num_keys=140, **D64),
    OpCase(name="d64-gqa-batch", num_queries=65, num_keys=130, lam_axes="t", scale=0.3,
           **(D64 | {"batch": 2, "num_heads": 4, "num_kv_heads": 2})),
    OpCase(name="d64-full", num_queries=128, num_keys=256, causal=False, **D64),
    OpCase(name="d64-full-ragged", num_queries=70, num_keys=189, causal=False, **D64),
    OpCase(name="d64-full-steep", num_queries=33, num_keys=70, causal=False, **D64),
    OpCase(name="d64-narrow", num_queries=90, **(D64 | {"value_dim": 64})),
    OpCase(name="v2-gqa", num_queries=130, num_keys=160, num_kv_heads=2, lam_axes="bth", **V2),
    OpCase(name="v2-wide", num_queries=70, causal=False, **(V2 | {"value_dim": 128})),
    OpCase(name="d128-T129", num_queries=129, **D128),
    OpCase(name="d128-full-T<S", num_queries=10, num_keys=133, causal=False, **D128),
    OpCase(name="d128-gqa-batch", num_queries=65, num_keys=70, lam_axes="t",
           **(D128 | {"batch": 2, "num_heads": 2})),
    OpCase(name="d128-narrow", num_queries=140, **(D128 | {"value_dim": 128})),
    OpCase(name="v2-d128", num_queries=140, lam_axes="bth",
           **(D128 | {"value_dim": 128, "shared_keys": True, "num_heads": 2})),
    OpCase(name="v2-d128-wide", num_queries=70, **(D128 | {"shared_keys": True})),
]  # fmt: skip


def inputs_of(case, dtype=torch.bfloat16, device="cpu"):
    """In the steep case all logits lie near -128: past the last key a weight would be inf."""
    inputs = make_diff_attention_inputs(case, dtype=dtype, device=device)
    if "steep" in case.name:
        with torch.no_grad():
            inputs.q.div_(8).add_(4)
            inputs.k.div_(8).sub_(4)
    return inputs


def saved(q, k, v, lam, scale, causal):
    """O, O2 and the logarithms of the sums as a forward of the same dtype leaves them."""
    o, o2, lse = exact_forward(q, k, v, lam, scale, causal)
    return o.to(q.dtype).contiguous(), o2.to(q.dtype).contiguous(), lse.float().contiguous()


class Attention(torch.autograd.Function):
    """What a forward saves, from float64, and the gradients of the kernel."""

    @staticmethod
    def forward(ctx, q, k, v, lam, scale, causal):
        o, o2, lse = saved(q, k, v, lam, scale, causal)
        ctx.save_for_backward(q, k, v, lam, o, o2, lse)
        ctx.options = {"scale": scale, "causal": causal}
        return o

    @staticmethod
    def backward(ctx, grad):
        return *hopper.backward(grad, *ctx.saved_tensors, **ctx.options), None, None


def run(q, k, v, lam, *, backend, scale=None, causal=True):
    """The shape of ``diff_attention``, for the kernel and the reference."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if backend == "hopper":
        return Attention.apply(q, k, v, lam, scale, causal)
    return reference.forward(q, k, v, lam, scale=scale, mask=AttentionMask(causal))


def emulated(monkeypatch, seed):
    chip = emulate(monkeypatch, hopper, KERNEL, FUNCTIONS, seed)
    put_into(monkeypatch, turns, chip, TURNS)
    for name in ("gl", "mbarrier"):  # of the functions that both kernels call
        monkeypatch.setattr(hopper_forward, name, chip)
    return chip


def ask_for(monkeypatch, deterministic):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)


@pytest.mark.sampled(one_of=2)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(i, marks=pytest.mark.scheduled) for i in (1, 2))]
)
@pytest.mark.parametrize("deterministic", [False, True], ids=["any order", "deterministic"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_emulated_kernel_matches_reference(case, deterministic, seed, monkeypatch):
    """The kernel's source with its barriers, in another order of events for every seed."""
    emulated(monkeypatch, seed)
    ask_for(monkeypatch, deterministic)
    inputs = inputs_of(case)
    assert_close_to_reference(run, inputs, backend="hopper")


PLANTED = [
    ("_fold", "(b_p1 - b_p2)", "(b_p1 + b_p2)", "d64-T200"),
    ("_fold", "b_p2 * (b_delta2 - b_dp)", "b_p2 * (b_dp - b_delta2)", "d64-T200"),
    ("_fold", "warpgroup_mma(b_ds2, b_y2, b_x2", "warpgroup_mma(b_ds2, b_y1, b_x2", "d64-T200"),
    ("_fold", "warpgroup_mma(b_ds2, b_y2, b_x1", "warpgroup_mma(b_ds2, b_y1, b_x1", "v2-gqa"),
    ("_scores", "warpgroup_mma(own_tiles[1]", "warpgroup_mma(own_tiles[0]", "d64-T200"),
    ("_fold", "slot, 2, BY_KEYS", "slot, 3, BY_KEYS", "d64-T200"),
    ("_both_weights", "slot, 1, BY_KEYS", "slot, 0, BY_KEYS", "d64-T200"),
    ("_limits", "rows - ahead", "rows", "d64-T<S"),
    ("_seen", "b_own <= columns", "b_own < columns", "d64-T200"),
    ("_seen", "columns < b_own", "columns <= b_own", "d64-T200"),
    ("_tiles", "- ahead, 0) // BLOCK", "- ahead, 0) // BLOCK + 1", "d64-T200"),
    ("_tiles", "first_row + NUM_ROWS + ahead", "first_row + ahead", "d64-T200"),
    ("_tiles", "gl.cdiv(num_queries, BLOCK)", "num_queries // BLOCK", "d64-T200"),
    ("_tiles", "gl.cdiv(seen, BLOCK)", "seen // BLOCK", "d64-full-ragged"),
    ("_limits", "rows * 0 + num_keys", "rows * 0 + num_keys + 1", "d64-full-steep"),
    ("_consume", "offset = member * (end - begin) - begin", "offset = -begin", "d64-gqa-batch"),
    ("_consume", "b_x2 * _number", "0 * b_x2 + _number", "d64-T200"),
    ("_produce", "i_own * GROUP + member", "i_own * GROUP", "d64-gqa-batch"),
    ("_produce", "else i_own // GROUP", "else i_own", "d64-gqa-batch"),
    ("_produce", "start = j * BLOCK", "start = (j - begin) * BLOCK", "d64-T200"),
    ("_produce", "(step // STAGES & 1) ^ 1", "step // STAGES & 1", "d64-T200"),
    ("_load_numbers", "start % CHUNK", "0 * start", "d64-T200"),
    ("_store", "rows < num_rows", "rows < num_rows - 1", "d64-T200"),
    ("_fold", "mbarrier.wait(given", "(given", "d64-T200"),
    ("_fold", "4 * slot + I_GROUP", "4 * slot + 1 - I_GROUP", "d64-T200"),
    ("_fold", "4 * slot + 2", "0 * slot + 2", "d64-T200"),
    ("_fold", "p_dq += begin", "p_dq += 0 * begin", "d64-T200"),
    ("_fold", "p_dq += tile_sums", "p_dq += 0", "d64-T200"),
    ("_multiply_keys", "2 * I_GROUP + i", "2 * (1 - I_GROUP) + i", "d64-T200"),
    ("_multiply_keys", "(I_GROUP if", "(0 if", "d64-T200"),
    ("_add", "I_GROUP * head_dim +", "", "d64-T200"),
    ("_consume", "p_dq += head_sums", "p_dq += 0", "d64-gqa-batch"),
    ("_consume", "i_own * GROUP).to", "i_own).to", "d64-gqa-batch"),
    ("_fold_exchanging", "(b_p1 - b_p2)", "(b_p1 + b_p2)", "d128-T129"),
    ("_fold_exchanging", "b_p2 * (b_delta2 - b_dp)", "b_p2 * (b_dp - b_delta2)", "d128-T129"),
    ("_fold_exchanging", "(j + I_GROUP) * BLOCK,", "j * BLOCK,", "d128-T129"),
    ("_fold_exchanging", "b_q2 if I_GROUP else b_q1", "b_q1", "d128-T129"),
    ("_fold_exchanging", "(b_ds2, b_ds1) if", "(b_ds1, b_ds2) if not", "d128-T129"),
    ("_fold_exchanging", "b_do.slice(I_GROUP * width", "b_do.slice(0", "d128-T129"),
    ("_fold_exchanging", "]).slice(I_GROUP * width", "]).slice(0", "d128-T129"),
    ("_fold_exchanging", "2 * far + I_GROUP", "2 * near + I_GROUP", "d128-T129"),
    ("_fold_exchanging", "2 * far + I_GROUP", "2 * far", "d128-T129"),
    ("_fold_exchanging", "mma(given_bufs.index(1 -", "mma(given_bufs.index(0 *", "d128-T129"),
    ("_fold_exchanging", "mma(given_bufs.index(3 -", "mma(given_bufs.index(2 +", "d128-T129"),
    ("_fold_exchanging", "mbarrier.wait(given.index(1", "(given.index(1", "d128-T129"),
    ("_fold_exchanging", "mbarrier.wait(given.index(3", "(given.index(3", "d128-T129"),
    ("_fold_exchanging", "mbarrier.wait(empty.index(before", "(empty.index(before", "d128-T129"),
    ("_announce", "fence_async_shared()", "", "d128-T129"),
    ("_store_sums", "p_x += I_GROUP * head_dim", "p_x += 0", "d128-T129"),
    ("_store_sums", "p_v += I_GROUP * v_width", "p_v += 0", "d128-T129"),
]  # fmt: skip
"""One changed place of a function's source each, and the case that must notice it."""


@pytest.mark.sampled(one_of=5)
@pytest.mark.parametrize(
    ("function", "right", "wrong", "case"), PLANTED, ids=[f"{p[0]}: {p[2]}" for p in PLANTED]
)
def test_a_planted_error_is_noticed(function, right, wrong, case, monkeypatch):
    """A missing barrier shows in some orders of events."""
    module = turns if function in TURNS else hopper
    source = inspect.getsource(getattr(module, function).fn)
    assert source.count(right) == 1
    functions = {}
    exec(source.replace("@gluon.jit\n", "").replace(right, wrong), vars(module), functions)
    inputs = inputs_of(next(x for x in CASES if x.name == case))

    def run_in_many_orders():
        for seed in range(16):
            with monkeypatch.context() as patch:
                emulated(patch, seed)
                ask_for(patch, seed % 2 == 1)
                for user in {module, hopper}:
                    patch.setattr(user, function, functions[function], raising=False)
                assert_close_to_reference(run, inputs, backend="hopper")

    with pytest.raises(AssertionError):
        run_in_many_orders()


@broken_protocols
def test_the_emulation_notices_a_broken_protocol(break_it, error, monkeypatch):
    inputs = inputs_of(CASES[1])
    break_it(emulated(monkeypatch, 0))
    with pytest.raises(error):
        run(**inputs.tensors(), backend="hopper").sum().backward()


def test_auto_takes_the_hopper_backward_only_where_a_gpu_has_tested_it(monkeypatch):
    """A named backend takes it anyway."""
    asked = []

    def attend(q, k, v, lam, *, scale, mask, own_backward=True):
        asked.append(own_backward)
        return reference.forward(q, k, v, lam, scale=scale, mask=mask)

    monkeypatch.setitem(attention._FORWARD, "hopper", attend)
    monkeypatch.setattr(backends, "resolve", lambda *call: "hopper")
    tensors = inputs_of(CASES[0]).tensors()
    attention.diff_attention(**tensors)
    attention.diff_attention(**tensors, backend="hopper")
    minor = kernel_support.minor_of(kernel_support.installed_version())
    monkeypatch.setattr(kernel_support, "HOPPER_BACKWARD_TESTED", {minor: ((64, 128),)})
    attention.diff_attention(**tensors)
    assert asked == [False, True, True]


@pytest.mark.parametrize(
    ("form", "own_backward", "expected"),
    [(hopper_forward, True, "hopper"), (by_map, False, "triton")],
)
def test_the_operator_takes_what_is_asked_for(form, own_backward, expected, monkeypatch):
    """The form of the forward, what serves gradients only where they are wanted, the backward."""
    calls = []

    def forward(q, k, v, lam, *, scale, causal, inference):
        calls.append("inference" if inference else "forward")
        return saved(q, k, v, lam, scale, causal)

    def noted(name):
        def backward(grad, q, k, v, lam, *rest, **options):
            calls.append(name)
            return tuple(torch.zeros_like(x) for x in (q, k, v, lam))

        return backward

    monkeypatch.setattr(form, "forward", forward)
    monkeypatch.setenv(kernel_support.BY_MAP, str(int(form is by_map)))
    monkeypatch.setattr(hopper, "backward", noted("hopper"))
    monkeypatch.setattr(triton_backward, "backward", noted("triton"))
    q, k, v, lam = inputs_of(CASES[0]).tensors().values()
    out = custom_op.hopper_diff_attention(q, k, v, lam, scale=0.125, own_backward=own_backward)
    torch.autograd.grad(out.sum(), (q, k, v, lam))
    with torch.no_grad():
        out = custom_op.hopper_diff_attention(q, k, v, lam, scale=0.125)
    assert not out.requires_grad
    assert calls == ["forward", expected, "inference"]


@on_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("case", [*CASES, *LONG], ids=str)
@pytest.mark.parametrize("deterministic", [False, True], ids=["any order", "deterministic"])
def test_kernel_matches_reference(case, dtype, deterministic, monkeypatch):
    ask_for(monkeypatch, deterministic)
    inputs = inputs_of(case, dtype, "cuda")
    assert_close_to_reference(run, inputs, backend="hopper")


@on_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("widths", [D64, D128], ids=["d64", "d128"])
def test_kernel_gives_the_same_bits_again(widths, monkeypatch):
    """A race would show as a difference between runs."""
    ask_for(monkeypatch, True)
    case = OpCase(name="", num_queries=4096, **(widths | {"num_heads": 16, "num_kv_heads": 4}))
    inputs = inputs_of(case, device="cuda")
    saved_tensors = hopper_forward.forward(**inputs.tensors(), scale=0.125)
    call = (saved_tensors[0], *inputs.tensors().values(), *saved_tensors)
    with torch.no_grad():
        first = hopper.backward(*call, scale=0.125)
        for _ in range(20):
            for got, want in zip(hopper.backward(*call, scale=0.125), first, strict=True):
                assert torch.equal(got, want)
