"""The operator over what a cache may hold."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch

from diffattn.errors import DiffAttnError
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention, diff_attention_maps
from diffattn.ops.inputs import backends
from diffattn.ops.softmax_attention import softmax_attention, softmax_attention_maps
from ops.plain_attention import visible
from tally import sample, trial

SAMPLE = 83
"""Every push takes each 83rd case: a prime, so that no axis of a product is left out."""

WIDTHS = {"head_dim": 32, "num_heads": 4, "num_kv_heads": 2}
FORMS = {
    "V1": {"value_dim": 64, "lam_axes": "h"},
    "V2": {"value_dim": 32, "lam_axes": "bth", "shared_keys": True},
    "shared keys": {"value_dim": 64, "shared_keys": True},
}
MASKS = {
    "cache": {"num_queries": 5, "num_keys": 12, "kv_lengths": (9, 7)},
    "cache, not causal": {"num_queries": 5, "num_keys": 12, "kv_lengths": (9, 7), "causal": False},
    "empty cache": {"num_queries": 3, "num_keys": 12, "kv_lengths": (0, 2)},
    "one query": {"num_queries": 1, "num_keys": 12, "kv_lengths": (9, 1)},
    "long cache": {"num_queries": 20, "num_keys": 70, "kv_lengths": (40, 21)},
    "padding": {"num_queries": 12, "padding": ((3, 0), (0, 5))},
    "padded row": {"num_queries": 5, "padding": ((5, 0), (1, 0)), "causal": False},
    "window": {"num_queries": 2, "num_keys": 12, "window": 3},
    "all": {"num_queries": 5, "num_keys": 12, "window": 4, "padding": ((2, 0), (0, 1)),
            "kv_lengths": (10, 6)},
}  # fmt: skip
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def alternating(x, value):
    odd = torch.arange(x.numel()).view(x.shape) % 2 == 1
    return torch.full_like(x, value).masked_fill(odd, -value)


def most(x):
    return torch.finfo(x.dtype).max


FINITE = {
    "largest": lambda x: torch.full_like(x, most(x)),
    "denormal": lambda x: torch.full_like(x, torch.finfo(x.dtype).smallest_normal / 4),
    "alternating": lambda x: alternating(x, most(x)),
    "random": lambda x: (torch.rand(x.shape).double() * 2 - 1).mul(most(x)).to(x),
}
NOT_FINITE = {
    "inf": lambda x: torch.full_like(x, torch.inf),
    "NaN": lambda x: torch.full_like(x, torch.nan),
    "±inf": lambda x: alternating(x, torch.inf),
}


def softmax(q, k, v, lam, **options):
    """Softmax attention with the keys of one map."""
    return softmax_attention(q[:, :, :, 0], k if k.ndim == 4 else k[:, :, :, 0], v, **options)


def softmax_maps(q, k, v, lam, **options):
    return softmax_attention_maps(q[:, :, :, 0], k if k.ndim == 4 else k[:, :, :, 0], **options)


def all_maps(q, k, v, lam, **options):
    return torch.cat(diff_attention_maps(q, k, lam, **options))


CALLS = {
    **{f"diff {x}": (partial(diff_attention, backend=x), "diff_attention", x)
       for x in backends.names("diff_attention")},
    **{f"softmax {x}": (partial(softmax, backend=x), "softmax_attention", x)
       for x in backends.names("softmax_attention")},
    "diff maps": (all_maps, "diff_attention", "reference"),
    "softmax maps": (softmax_maps, "softmax_attention", "reference"),
}  # fmt: skip
SLOW = {"flex": 11, "triton": 23, "triton_decode": 23}
"""A hundred times slower than the others: one case in so many."""


def row_of(call):
    """The backend in the table of its operator."""
    _, op, backend = CALLS[call]
    return next(row for row in backends.table(op) if row.name == backend)


def unwritten_cases(fills):
    """What can run here, each with and without a gradient where there is one."""
    axes = (CALLS, FORMS, DTYPES, MASKS, fills, (False, True))
    for number, case in enumerate(itertools.product(*axes)):
        call, form, dtype, mask, _, gradient = case
        if number % SLOW.get(CALLS[call][2], 1):
            continue
        row, shape = row_of(call), FORMS[form] | MASKS[mask]
        facts = backends.Inputs(
            device="cpu", dtype=dtype, batch=2, num_heads=4, num_queries=shape["num_queries"],
            num_keys=12, head_dim=32, value_dim=shape["value_dim"], needs_gradient=gradient,
        )  # fmt: skip
        if row.refuses(facts) is None and not (gradient and row.gradient == "none"):
            yield case


def results(call, inputs, gradient):
    """Output, and the gradients of a fixed sum of it."""
    tensors = [x.detach().requires_grad_(gradient) for x in inputs]
    with torch.set_grad_enabled(gradient):
        out = call(*tensors)
    if not gradient:
        return {"output": out}
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out)
    grads = torch.autograd.grad(out, tensors, weights, allow_unused=True)
    named = zip(("q", "k", "v", "lam"), grads, strict=True)
    return {"output": out} | {name: x for name, x in named if x is not None}


def unwritten_fault(case, fill):
    """What is wrong with the results of one call over garbage, compared with the same over 0."""
    name, form, dtype, mask, _, gradient = case
    shape = OpCase(name="", **WIDTHS, **FORMS[form], **MASKS[mask])
    inputs = make_diff_attention_inputs(shape, dtype=dtype)
    q, k, v, lam = inputs.tensors().values()
    unseen = ~visible(2, q.shape[1], k.shape[1], **inputs.options).any(1)
    assert unseen.any()
    runs = []
    for value in (torch.zeros_like, fill):
        held = [x.detach().clone() for x in (k, v)]
        for x in held:
            x[unseen] = value(x)[unseen]
        try:
            call = partial(CALLS[name][0], **inputs.options)
            # Triton's interpreter multiplies with numpy, which warns of what hidden keys give.
            with np.errstate(over="ignore", invalid="ignore"):
                runs.append(results(call, (q, *held, lam), gradient))
        except DiffAttnError as error:
            return f"{type(error).__name__}: {error}"
    clean, dirty = runs
    for part, x in dirty.items():
        if not x.isfinite().all():
            return f"{part} is not finite"
        if not torch.equal(x, clean[part]):
            return f"{part} is not that over 0"
        if part in ("k", "v") and (x[unseen] != 0).any():
            return f"gradient of {part} where no query looks"
    return None


def try_unwritten(tally, fills, step=1):
    for case in itertools.islice(unwritten_cases(fills), 0, None, step):
        if step > 1 and CALLS[case[0]][2] in SLOW:
            continue
        if fills is NOT_FINITE and not case[-1] and row_of(case[0]).reads_in_place:
            continue  # documented: without a gradient these need finite numbers
        tally.check(", ".join(map(str, case)), unwritten_fault(case, fills[case[4]]))


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.scheduled), SAMPLE])
def test_unwritten_cache(step):
    for kind, fills, minimum in (
        ("finite values", FINITE, 8_500),
        ("inf and NaN", NOT_FINITE, 6_000),
    ):
        with trial(
            f"{kind} in unwritten cache{sample(step > 1)}", minimum=minimum // step
        ) as tally:
            try_unwritten(tally, fills, step)
