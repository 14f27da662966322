"""The capability table: what it lists, what it chooses, and how it refuses."""

import re
import warnings
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from diffattn.errors import BackendError
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops import attention as api
from diffattn.ops import softmax_attention as softmax_api
from diffattn.ops.attention import diff_attention
from diffattn.ops.backends import reference
from diffattn.ops.backends.composed import flash_diff_attn_1, flash_diff_attn_2, one_call
from diffattn.ops.inputs import backends, kernel_support

OP = "diff_attention"
V2 = OpCase(name="v2", num_queries=3, shared_keys=True, value_dim=8)


def facts(**changes):
    usual = {"device": "cpu", "dtype": torch.float32, "batch": 2, "num_heads": 4}
    usual |= {"num_queries": 5, "num_keys": 5, "head_dim": 8, "value_dim": 16}
    return backends.Inputs(**(usual | changes))


def raises(message):
    return pytest.raises(BackendError, match="^" + re.escape(message) + "$")


@pytest.mark.parametrize(
    ("op", "table"), [("diff_attention", api._FORWARD), ("softmax_attention", softmax_api._FORWARD)]
)
def test_a_name_runs_its_own_function(op, table, monkeypatch):
    """The named backend runs and no other one does."""
    called = []

    def spy(backend):
        return lambda q, *_, **__: called.append(backend) or q.new_zeros(())

    for name in backends.names(op):
        monkeypatch.setitem(table, name, spy(name))
    monkeypatch.setattr(backends.Backend, "refuses", lambda self, inputs: None)
    q, k, v, lam = make_diff_attention_inputs(OpCase(name="", num_queries=3)).tensors().values()
    for name in backends.names(op):
        if op == OP:
            diff_attention(q, k, v, lam, backend=name)
        else:
            softmax_api.softmax_attention(q[:, :, :, 0], k[:, :, :, 0], v, backend=name)
    assert called == list(backends.names(op))


@pytest.mark.parametrize(
    ("name", "form", "num_calls"),
    [
        ("reference", reference.forward, 0),
        ("composed", one_call, 1),
        ("flash_diff_attn_1", flash_diff_attn_1, 2),
        ("flash_diff_attn_2", flash_diff_attn_2, 4),
    ],
)
def test_a_name_makes_its_number_of_attention_calls(name, form, num_calls, monkeypatch):
    assert api._FORWARD[name] is form
    calls = []
    attention = functional.scaled_dot_product_attention

    def counted(*args, **options):
        calls.append(args)
        return attention(*args, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    inputs = make_diff_attention_inputs(OpCase(name="", num_queries=3, num_kv_heads=2))
    diff_attention(*inputs.tensors().values(), backend=name)
    assert len(calls) == num_calls
    if name == "composed":  # keys of both maps side by side, not repeated
        assert calls[0][1].shape == (2, 2, 3, 16)


@pytest.mark.parametrize(
    ("num_queries", "num_keys", "chosen"),
    [(1, 9, "decode"), (8, 4096, "decode"), (9, 9, "reference"), (9, 1024, "chunked")],
)
def test_auto_is_one_rule(num_queries, num_keys, chosen):
    inputs = facts(num_queries=num_queries, num_keys=num_keys)
    assert backends.resolve(OP, "auto", inputs) == chosen
    case = OpCase(name="", num_queries=num_queries, num_keys=num_keys)
    inputs = make_diff_attention_inputs(case)
    tensors = inputs.tensors().values()
    assert torch.equal(diff_attention(*tensors), diff_attention(*tensors, backend=chosen))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
@pytest.mark.parametrize("widths", [(8, 16), (8, 8), (80, 3)])
@pytest.mark.parametrize("num_queries", [0, 1, 100])
def test_auto_never_chooses_what_refuses(dtype, device, widths, num_queries):
    head_dim, value_dim = widths
    inputs = facts(dtype=dtype, device=device, head_dim=head_dim, value_dim=value_dim,
                   num_queries=num_queries)  # fmt: skip
    chosen = backends.resolve(OP, "auto", inputs)
    assert backends.resolve(OP, chosen, inputs) == chosen


@pytest.mark.parametrize(
    ("facts_of_call", "chosen"),
    [
        ({"num_keys": 9}, "triton_decode"),
        ({"num_keys": 5}, "triton"),  # may be a packed row, which is no cache
        ({"num_keys": 9, "needs_gradient": True}, "triton"),
    ],
)
def test_auto_decodes_on_a_gpu_only_what_the_kernel_takes(facts_of_call, chosen, on_gpus):
    on_gpus(verified=True)
    assert backends.resolve(OP, "auto", facts(**H100, **facts_of_call)) == chosen


HOPPER_WIDTHS = ((64, 128), (128, 256), (64, 64))
H100 = {"device": "cuda", "dtype": torch.bfloat16, "head_dim": 64, "value_dim": 128,
        "capability": (9, 0)}  # fmt: skip


@pytest.fixture
def on_gpus(monkeypatch):
    """The table of a machine with GPUs, on which the kernels have passed or not."""

    def build(*, verified):
        kernels = ("triton", "triton_decode", "hopper")
        for op in ("diff_attention", "softmax_attention"):
            rows = [
                replace(
                    row, available=lambda: None, devices=("cuda",),
                    dtypes=("float16", "bfloat16", "float32"),
                    no_gradient_on=("cuda",) * (row.gradient == "none"),
                ) if row.name in kernels else row
                for row in backends.table(op)
            ]  # fmt: skip
            monkeypatch.setitem(backends._TABLE, op, tuple(rows))
        monkeypatch.delenv(kernel_support.VARIABLE, raising=False)
        monkeypatch.setattr(kernel_support, "_WARNED", set())
        monkeypatch.setattr(kernel_support, "TESTED", {(9, 0): ("3.7",)} if verified else {})
        monkeypatch.setattr(kernel_support, "_INSTALLED", "3.7.0")

    return build


@pytest.mark.parametrize(
    ("verified", "capability", "chosen"),
    [
        (True, (9, 0), "triton"),
        (True, (8, 0), "untested"),  # of another family there is no record
        (False, (9, 0), "untested"),
        (False, (12, 0), "untested"),
        (True, (7, 5), "composed"),
        (True, None, "composed"),
    ],
)
def test_auto_takes_kernels_on_every_new_gpu_and_warns_once_of_an_untested_one(
    verified, capability, chosen, on_gpus, monkeypatch
):
    on_gpus(verified=verified)
    inputs = facts(**H100 | {"capability": capability, "num_queries": 100, "num_keys": 100})
    few = replace(inputs, num_queries=1)
    kernels = ("composed", "decode") if chosen == "composed" else ("triton", "triton_decode")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert backends.resolve(OP, "auto", replace(inputs, head_dim=80)) == "composed"
        assert not caught  # kernels that cannot run are not chosen
        for _ in range(2):
            assert backends.resolve(OP, "auto", inputs) == kernels[0]
            assert backends.resolve(OP, "auto", few) == kernels[1]
    if chosen != "untested":
        assert not caught
        return
    (warning,) = caught
    dotted = ".".join(map(str, capability))
    assert str(warning.message).startswith(
        f"diffattn: auto chooses the Triton kernels: they were not tested on compute capability "
        f"{dotted}. 'diffattn check' compares them"
    )
    monkeypatch.setenv(kernel_support.VARIABLE, "0")
    assert backends.resolve(OP, "auto", inputs) == "composed"
    monkeypatch.setenv(kernel_support.VARIABLE, "1")
    monkeypatch.setattr(kernel_support, "_WARNED", set())
    assert backends.resolve(OP, "auto", inputs) == "triton"  # a warning would fail the test


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, "hopper"),
        ({"head_dim": 128, "value_dim": 256}, "hopper"),
        ({"value_dim": 64}, "hopper"),
        ({"head_dim": 128, "value_dim": 128}, "triton"),  # never run
        ({"at_most_causal": False}, "triton"),
        ({"in_groups": True}, "triton"),  # in two calls, the subtracted maps once
        ({"num_queries": 511}, "triton"),
        ({"dtype": torch.float32}, "composed"),
        ({"capability": (8, 0)}, "triton"),
    ],
)
def test_auto_takes_the_hopper_kernel_where_it_was_right(changes, chosen, on_gpus, monkeypatch):
    on_gpus(verified=True)
    monkeypatch.setenv(kernel_support.VARIABLE, "1")
    inputs = facts(**H100 | {"num_queries": 512, "num_keys": 512} | changes)
    assert backends.resolve(OP, "auto", inputs) in (chosen, "triton")
    monkeypatch.setattr(kernel_support, "HOPPER_TESTED", {"3.7": HOPPER_WIDTHS})
    assert backends.resolve(OP, "auto", inputs) == chosen


@pytest.mark.parametrize(
    ("op", "name", "capability", "needs"),
    [
        ("diff_attention", "triton", (7, 5), "8.0 or above, got 7.5"),
        ("softmax_attention", "triton", None, "8.0 or above, got none"),
        ("diff_attention", "hopper", (8, 9), "9.0, got 8.9"),
        ("diff_attention", "hopper", (10, 0), "9.0, got 10.0"),
    ],
)
def test_a_name_asks_for_a_chip_that_can_and_for_no_record(op, name, capability, needs, on_gpus):
    on_gpus(verified=False)
    assert backends.resolve(op, name, facts(**H100)) == name
    message = f"{op}: backend {name!r} needs compute capability {needs}. Usable here:"
    with pytest.raises(BackendError, match=re.escape(message)):
        backends.resolve(op, name, facts(**H100 | {"capability": capability}))


def test_another_machine_is_taken_as_verified(on_gpus):
    on_gpus(verified=False)
    planned = facts(**H100 | {"capability": None, "elsewhere": True, "num_queries": 100})
    assert backends.resolve(OP, "auto", planned) == "triton"


def test_facts_are_read_off_the_tensors():
    case = OpCase(name="", num_queries=3, num_keys=7, head_dim=6, value_dim=10, num_kv_heads=2)
    inputs = make_diff_attention_inputs(case, dtype=torch.bfloat16)
    wanted = backends.Inputs(
        device="cpu", dtype=torch.bfloat16, batch=2, num_heads=4, num_queries=3, num_keys=7,
        head_dim=6, value_dim=10, needs_gradient=True,
    )  # fmt: skip
    assert backends.describe(inputs.q, inputs.k, inputs.v) == wanted
    groups = inputs.q.new_zeros(2, 3, 2, 3, 6)
    assert backends.describe(groups, inputs.k, inputs.v) == replace(wanted, in_groups=True)
    with torch.no_grad():
        assert not backends.describe(inputs.q, inputs.k, inputs.v).needs_gradient
    plain = [x.detach() for x in (inputs.q, inputs.k, inputs.v)]
    assert not backends.describe(*plain).needs_gradient
    assert backends.describe(*plain, inputs.lam).needs_gradient


def test_unknown_names():
    known = ", ".join(("auto", *backends.names(OP)))
    inputs = make_diff_attention_inputs(OpCase(name="", num_queries=3))
    tensors = inputs.tensors().values()
    with raises(
        f"diff_attention: backend must be in {{{known}}}, got 'compsed'. Did you mean 'composed'?"
    ):
        diff_attention(*tensors, backend="compsed")
    empty = make_diff_attention_inputs(OpCase(name="", num_queries=0)).tensors().values()
    for arguments in (tensors, empty):
        with raises(f"diff_attention: backend must be in {{{known}}}, got 'zzz'."):
            diff_attention(*arguments, backend="zzz")
    known = "diff_attention, softmax_attention, paged_decode"
    with raises(f"backends: op must be in {{{known}}}, got 'attention'."):
        backends.names("attention")


def test_a_named_backend_never_falls_back():
    inputs = make_diff_attention_inputs(V2)
    with raises(
        "diff_attention: backend 'flash_diff_attn_2' needs Dv = 2 head_dim, got head_dim 8 and "
        "Dv 8. Usable here: reference, chunked, decode, composed, flash_diff_attn_1."
    ):
        diff_attention(*inputs.tensors().values(), backend="flash_diff_attn_2")


@pytest.mark.parametrize(
    ("limits", "changes", "reason"),
    [
        ({"available": lambda: "needs the package 'fast'"}, {}, "needs the package 'fast'"),
        ({"devices": ("cuda", "xpu")}, {}, "needs device in {cuda, xpu}, got cpu"),
        ({"dtypes": ("float16", "bfloat16")}, {},
         "needs dtype in {float16, bfloat16}, got float32"),
        ({"widths": "head_dim in {32, 64}", "accepts_widths": lambda d, dv: d in (32, 64)},
         {"head_dim": 80}, "needs head_dim in {32, 64}, got head_dim 80 and Dv 16"),
        ({"no_gradient_on": ("cpu",)}, {"needs_gradient": True},
         "has no gradient on cpu: detach q, k and v or use torch.no_grad()"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_needed_and_what_is_usable(limits, changes, reason, monkeypatch):
    fast = backends.Backend(name="fast", summary="made up", **limits)
    reference = backends.table(OP)[0]
    monkeypatch.setitem(backends._TABLE, OP, (reference, fast))
    assert fast.refuses(facts(**changes)) == reason
    with raises(f"diff_attention: backend 'fast' {reason}. Usable here: reference."):
        backends.resolve(OP, "fast", facts(**changes))
