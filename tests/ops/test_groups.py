"""Grouped differential attention: R added maps share one subtracted map, keys and values."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.autograd import gradgradcheck

from backend_skips import require_backend
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops import attention
from diffattn.ops.attention import diff_attention, diff_attention_maps, paged_decode
from diffattn.ops.backends import composed
from diffattn.ops.inputs.masking import paired
from ops.backend_cases import every_backend
from ops.plain_attention import plain_attention, plain_maps
from ops.test_reference import DIFFERENCES
from rounding_bounds import rounding_steps

R = 3
CASES = (
    OpCase(name="causal", num_queries=19, num_kv_heads=2, lam_axes="bth"),
    OpCase(name="shared-keys", num_queries=19, num_heads=2, num_kv_heads=2, value_dim=8,
           shared_keys=True, lam_axes="h"),
    OpCase(name="decode", num_queries=1, num_keys=21, num_heads=2, num_kv_heads=1),
    OpCase(name="window-padding", num_queries=17, num_heads=2, num_kv_heads=2, window=5,
           padding=((3, 0), (0, 4))),
    OpCase(name="packed", num_queries=20, batch=1, documents=(7, 13), lam_axes="th"),
)  # fmt: skip


def grouped_inputs(case, dtype=torch.float64):
    """Inputs with H = R groups: the groups of ``case`` are its heads."""
    inputs = make_diff_attention_inputs(replace(case, lam_axes=""), dtype=dtype)
    torch.manual_seed(1)
    q = torch.randn(*inputs.q.shape[:3], R + 1, inputs.q.shape[-1], dtype=torch.float64)
    sizes = (q.shape[0], q.shape[1], R * q.shape[2])
    shape = [n if axis in case.lam_axes else 1 for axis, n in zip("bth", sizes, strict=True)]
    lam = (0.4 + 0.6 * torch.randn(shape, dtype=torch.float64)).to(inputs.lam.dtype)
    return replace(inputs, q=q.to(dtype).requires_grad_(), lam=lam.requires_grad_())


@torch.enable_grad()
def results(function, inputs):
    """The output and the gradients of one weighted sum of it."""
    leaves = inputs.tensors()
    out = function(*leaves.values(), **inputs.options)
    torch.manual_seed(2)
    weights = torch.randn(out.shape, dtype=torch.float64)
    gradients = torch.autograd.grad((out.double() * weights).sum(), list(leaves.values()))
    return dict(zip(("output", *leaves), (out.detach(), *gradients), strict=True))


def formula(q, k, v, lam, **options):
    """Eq. (1) for every added map, its subtracted one beside it, in float64."""
    return plain_attention(paired(q), k, v, lam, **options)


@every_backend(*CASES, dtypes=(torch.float64, torch.float32, torch.bfloat16))
def test_backend_equals_formula(backend, dtype, case):
    require_backend("diff_attention", backend, device="cpu", dtype=dtype)
    inputs = grouped_inputs(case, dtype)
    exact = results(formula, inputs.map_tensors(torch.Tensor.double))

    def by(name):
        def call(*tensors, **options):
            return diff_attention(*tensors, backend=name, **options)

        return call

    if backend in ("flex", "triton_decode"):  # no gradient on a CPU
        with torch.no_grad():
            actual = {"output": by(backend)(*inputs.tensors().values(), **inputs.options)}
    else:
        actual = results(by(backend), inputs)
    rounded = results(by("reference"), inputs)
    steps, magnitude = rounding_steps(inputs)
    eps = torch.finfo(dtype).eps
    for name, x in actual.items():
        error = (rounded[name].double() - exact[name]).abs().max()
        scale = max(magnitude, float(exact[name].abs().max()))
        budget = 2 * error + (steps if dtype == torch.float64 else 2) * eps * scale
        assert x.shape == exact[name].shape
        assert (x.double() - exact[name]).abs().max() <= budget, name


def test_maps_show_the_shared_map_beside_each_added_one():
    inputs = grouped_inputs(CASES[0])
    map_1, map_2, signed = diff_attention_maps(inputs.q, inputs.k, inputs.lam)
    expected, lam = plain_maps(paired(inputs.q), inputs.k, inputs.lam)
    torch.testing.assert_close(torch.stack([map_1, map_2]), expected)
    torch.testing.assert_close(signed, expected[0] - lam * expected[1])
    groups = map_2.unflatten(1, (-1, R))
    assert torch.equal(groups, groups[:, :, :1].expand_as(groups))


@pytest.mark.parametrize(
    "form", [composed.one_call, composed.flash_diff_attn_1, *attention._ONE_MAP]
)
def test_subtracted_map_is_computed_once(form, monkeypatch):
    """R + 1 softmax heads per group, and keys and values as they came."""
    shapes = []

    def attend(q, k, v, **options):
        shapes.append((q.shape[2], k.shape[2], v.shape[2]))
        return q.new_zeros(*q.shape[:3], v.shape[-1])

    monkeypatch.setattr(composed, "attend", attend)
    inputs = grouped_inputs(replace(CASES[0], head_dim=32, value_dim=64), torch.float32)
    if isinstance(form, str):
        require_backend("diff_attention", form, device="cpu", dtype=torch.float32)
        monkeypatch.setitem(attention._ONE_MAP, form, attend)
        form = partial(diff_attention, backend=form)
    form(*inputs.tensors().values(), scale=1.0)
    assert sum(heads for heads, _, _ in shapes) == (R + 1) * inputs.q.shape[2]
    assert {kv for _, *kv_heads in shapes for kv in kv_heads} == {inputs.k.shape[2]}


def test_not_finite_values_stay_where_they_are_seen():
    inputs = grouped_inputs(CASES[4], torch.float32).map_tensors(torch.clone)
    clean = diff_attention(*inputs.tensors().values(), **inputs.options)
    q = inputs.q.detach().clone()
    q[0, 3, 1, 0] = torch.nan  # an added query of group 1
    v = inputs.v.detach().clone()
    v[0, 2] = torch.inf  # a key of the first document
    out = diff_attention(q, inputs.k, v, inputs.lam, **inputs.options)
    assert not out[0, 2:7].isfinite().any()
    assert torch.equal(out[0, 7:], clean[0, 7:])
    out = diff_attention(q, inputs.k, inputs.v, inputs.lam, **inputs.options)
    assert out[0, 3, R].isnan().all()
    assert out[0, 3, R + 1 :].isfinite().all()


@pytest.mark.parametrize("backend", ["reference", "gathered"])
def test_paged_decode_equals_dense(backend):
    inputs = grouped_inputs(CASES[2])
    pages = {"block_table": torch.arange(6, dtype=torch.int32).view(2, 3)}
    pages["kv_lengths"] = torch.tensor([21, 21], dtype=torch.int32)
    k, v = (x.detach().flatten(0, 1).unflatten(0, (6, 7)) for x in (inputs.k, inputs.v))
    paged = paged_decode(inputs.q, k, v, inputs.lam, backend=backend, **pages)
    torch.testing.assert_close(paged, diff_attention(*inputs.tensors().values()))


@pytest.mark.parametrize("backend", ["reference", "chunked", "decode"])
def test_second_derivatives(backend):
    case = OpCase(name="", num_queries=4, num_heads=1, num_kv_heads=1, head_dim=2, value_dim=3)
    inputs = grouped_inputs(case)
    function = partial(diff_attention, backend=backend)
    assert gradgradcheck(function, tuple(inputs.tensors().values()), **DIFFERENCES)
