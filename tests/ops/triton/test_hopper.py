"""The Hopper forward: its source emulated on CPU, and the kernel itself on a Hopper GPU."""

import math
from dataclasses import replace

import pytest
import torch

from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.backends import reference
from diffattn.ops.inputs import backends
from diffattn.ops.inputs.masking import AttentionMask

from .gluon_emulation import emulate
from .hopper_cases import D64, D128, LONG, V2, broken_protocols, exact_forward, on_hopper

pytest.importorskip("triton.experimental.gluon", reason="the kernel is written in Gluon")
from diffattn.ops.hopper import by_map
from diffattn.ops.hopper import forward as hopper
from rounding_bounds import assert_equal_to_rounding, rounding_steps

FORMS = {"hopper": hopper, "by_map": by_map}
KERNELS = {
    "hopper": "_diff_attention_fwd_hopper_kernel", "by_map": "_diff_attention_fwd_by_map_kernel",
}  # fmt: skip
COMMON = ("_allocate", "_allocate_barriers", "_attend", "_produce", "_consume", "_run_warps")
FUNCTIONS = {"hopper": (*COMMON, "_weights", "_first_block", "_fold", "_store"), "by_map": COMMON}
CASES = [
    OpCase(name="d64-T1", num_queries=1, **D64),
    OpCase(name="d64-T200", num_queries=200, lam_axes="bth", **D64),
    OpCase(name="d64-T<S", num_queries=70, num_keys=700, lam_axes="h", **D64),
    OpCase(name="d64-T>S", num_queries=300, num_keys=140, **D64),
    OpCase(name="d64-gqa-batch", num_queries=65, num_keys=130, lam_axes="t", scale=0.3,
           **(D64 | {"batch": 2, "num_heads": 4, "num_kv_heads": 2})),
    OpCase(name="d64-full", num_queries=64, num_keys=512, causal=False, **D64),
    OpCase(name="d64-full-ragged", num_queries=70, num_keys=389, causal=False, **D64),
    OpCase(name="v2-gqa", num_queries=130, num_keys=260, num_kv_heads=2, lam_axes="bth", **V2),
    OpCase(name="d128-T129", num_queries=129, **D128),
    OpCase(name="d128-full-T<S", num_queries=10, num_keys=333, causal=False, **D128),
]  # fmt: skip


@torch.no_grad()
def run(q, k, v, lam, *, backend, scale=None, **options):
    """The shape of ``diff_attention``, for the kernels and the reference."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if backend in FORMS:
        return FORMS[backend].forward(q, k, v, lam, scale=scale, **options)[0]
    return reference.forward(q, k, v, lam, scale=scale, mask=AttentionMask(**options))


def emulated(monkeypatch, form, seed):
    """Either form runs in Python; ``by_map`` takes functions of the other."""
    chip = emulate(monkeypatch, hopper, KERNELS["hopper"], FUNCTIONS["hopper"], seed)
    if form == "by_map":
        emulate(monkeypatch, by_map, KERNELS[form], FUNCTIONS[form], seed, chip)
    return chip


@torch.no_grad()
def assert_saved_tensors(inputs, form):
    """O2 and the row sums, which the backward needs, against float64."""
    options = {"scale": inputs.q.shape[-1] ** -0.5, "causal": True} | inputs.options
    _, out_2, lse = FORMS[form].forward(**inputs.tensors(), **options)
    _, expected_2, expected_lse = exact_forward(**inputs.tensors(), **options)
    # The weights and the result are rounded to the dtype of q: two roundings of at most |V|.
    magnitude = float(inputs.v.abs().max())
    assert_equal_to_rounding(out_2, expected_2, steps=2, magnitude=magnitude)
    steps, _ = rounding_steps(inputs)
    nothing = expected_lse == math.inf
    assert torch.equal(lse == math.inf, nothing)
    lse, expected_lse = (x.masked_fill(nothing, 0) for x in (lse, expected_lse))
    assert_equal_to_rounding(lse, expected_lse, steps=steps, magnitude=1.0)


@pytest.mark.sampled(one_of=2)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(i, marks=pytest.mark.scheduled) for i in (1, 2))]
)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_emulated_kernel_matches_reference(case, form, seed, monkeypatch):
    """The kernel's source with its barriers, in another order of events for every seed."""
    emulated(monkeypatch, form, seed)
    inputs = make_diff_attention_inputs(case, dtype=torch.bfloat16)
    assert_close_to_reference(run, inputs, backend=form, gradients=False)
    if seed == 0:
        assert_saved_tensors(inputs, form)


@pytest.mark.parametrize("l2_bytes", [0, 140_000])
def test_programs_cover_all_heads_in_any_sections(l2_bytes, monkeypatch):
    """Sections of one key/value head; sections of two, of which the last has one."""
    emulated(monkeypatch, "by_map", 0)
    monkeypatch.setattr(by_map, "L2_BYTES", l2_bytes)
    case = OpCase(name="", num_queries=200, num_keys=130, **(D64 | {"batch": 3, "num_heads": 2,
                  "num_kv_heads": 1}))  # fmt: skip
    inputs = make_diff_attention_inputs(case, dtype=torch.bfloat16)
    assert_close_to_reference(run, inputs, backend="by_map", gradients=False)


@pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", id="emulated"), pytest.param("cuda", marks=[on_hopper, pytest.mark.gpu])],
)
@pytest.mark.parametrize("form", FORMS)
def test_inference_writes_the_output_alone(form, device, monkeypatch):
    """What serves the gradients has no memory then, where a store could not go unseen."""
    if device == "cpu":
        emulated(monkeypatch, form, 0)
    inputs = make_diff_attention_inputs(CASES[2], dtype=torch.bfloat16, device=device)
    with torch.no_grad():
        expected, *_ = FORMS[form].forward(**inputs.tensors(), scale=0.125)
        out, *rest = FORMS[form].forward(**inputs.tensors(), scale=0.125, inference=True)
    assert torch.equal(out, expected)
    assert [x.numel() for x in rest] == [0, 0]


def test_emulated_kernel_reads_strides_in_place(monkeypatch):
    """Heads and rows of a larger tensor; odd strides and an expanded batch are copied."""
    emulated(monkeypatch, "hopper", 0)
    inputs = make_diff_attention_inputs(CASES[1], dtype=torch.bfloat16)
    plain = run(**inputs.tensors(), backend="hopper")
    wide = torch.full((1, 200, 3, 1, 2, 64), math.nan, dtype=torch.bfloat16)
    wide[:, :, 1] = inputs.k.detach()
    odd = torch.full((1, 200, 1, 131), math.nan, dtype=torch.bfloat16)
    odd[..., 2:130] = inputs.v.detach()
    strided = run(inputs.q, wide[:, :, 1], odd[..., 2:130], inputs.lam, backend="hopper")
    assert torch.equal(plain, strided)
    twice = [x.detach().expand(2, *x.shape[1:]) for x in (inputs.q, inputs.k, inputs.v)]
    lam = inputs.lam.detach()
    both = run(*twice, lam.expand(2, *lam.shape[-2:]), backend="hopper")
    assert torch.equal(both, plain.expand_as(both))


@broken_protocols
@pytest.mark.parametrize("form", FORMS)
def test_the_emulation_notices_a_broken_protocol(form, break_it, error, monkeypatch):
    inputs = make_diff_attention_inputs(CASES[5], dtype=torch.bfloat16)
    chip = emulated(monkeypatch, form, 0)
    break_it(chip)
    with pytest.raises(error):
        run(**inputs.tensors(), backend=form, causal=False)


@on_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("case", [*CASES, *LONG], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_kernel_matches_reference(form, case, dtype):
    inputs = make_diff_attention_inputs(case, dtype=dtype, device="cuda")
    assert_close_to_reference(run, inputs, backend=form, gradients=False)
    assert_saved_tensors(inputs, form)


@on_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_kernel_gives_the_same_bits_again(form):
    """A race would show as a difference between runs."""
    case = OpCase(name="", num_queries=4096, **(D128 | {"num_heads": 16}))
    inputs = make_diff_attention_inputs(case, dtype=torch.bfloat16, device="cuda")
    first = run(**inputs.tensors(), backend=form)
    for _ in range(50):
        assert torch.equal(run(**inputs.tensors(), backend=form), first)


def test_what_the_kernel_is_not_built_for():
    inputs = backends.Inputs(
        device="cuda", dtype=torch.bfloat16, batch=1, num_heads=2, num_queries=2, num_keys=2,
        head_dim=64, value_dim=128, elsewhere=True,
    )  # fmt: skip
    row = backends.row("diff_attention", "hopper")
    assert row.refuses(inputs) is None
    refusal = row.refuses(replace(inputs, at_most_causal=False))
    assert refusal == "needs a scale above 0 and no mask besides causal"
