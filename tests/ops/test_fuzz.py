"""Random calls of every backend, and proof that they would notice what is wrong."""

from dataclasses import replace

import pytest
import torch

from diffattn.errors import ShapeError
from diffattn.ops import attention as api
from ops.plain_attention import plain_attention
from tools import fuzz
from tools.fuzz_calls import BROKEN, DTYPES, LAYOUTS, VALUES, draw_call, make_inputs


def assert_all_right(report):
    assert not report.failures, "\n".join(report.failures)
    assert report.outcomes.total() == report.num_calls
    assert report.outcomes["right"] > report.outcomes["refused"] > 0


def run(num_calls, seed, device):
    """Against the second oracle where its tensors lie."""
    oracle = plain_attention if device.type == "cpu" else None
    return fuzz.run(num_calls, seed=seed, device=device.type, oracle=oracle)


def test_random_calls(device):
    report = run(75 if device.type == "cuda" else 30, 7, device)
    assert_all_right(report)
    assert set(report.by_backend) == set(fuzz.usable_backends(device.type))
    assert len(report.by_dtype) == 4


@pytest.mark.scheduled
def test_ten_thousand_random_calls(device):
    report = run(10_000, 0, device)
    assert_all_right(report)
    assert {f"values: {name}" for name in VALUES} <= set(report.by_facet)
    assert set(BROKEN) <= set(report.by_refusal)


def test_draws_reach_every_corner():
    calls = [draw_call(seed) for seed in range(3000)]
    assert {call.broken for call in calls} == {None, *BROKEN}
    assert {call.values for call in calls} == set(VALUES)
    assert {layout for call in calls for layout in call.layouts} == {"dense", *LAYOUTS}
    assert len({facet for call in calls for facet in call.facets()}) == 15 + len(VALUES)
    lengths = {length for call in calls for length in call.case.kv_lengths or ()}
    assert {0, 1} <= lengths
    assert {1, 3, 7, 33} <= {call.case.head_dim for call in calls}


def test_a_seed_is_a_call():
    """The same numbers whatever backend runs them."""
    for seed in range(40):
        call = draw_call(seed)
        assert draw_call(seed) == call
        first, second = make_inputs(call), make_inputs(call)
        for name, x in first.tensors().items():
            assert torch.equal(x, second.tensors()[name])
            assert x.requires_grad == (name in call.differentiate)


def faulty(change):
    """The reference, but for one fault, as the backend ``composed``."""
    right = api._FORWARD["reference"]

    def forward(q, k, v, lam, **options):
        return change(right, q, k, v, lam, options)

    return forward


def masked(options, **changes):
    """The options with another mask."""
    return options | {"mask": replace(options["mask"], **changes)}


FAULTS = {
    "λ rounded": lambda f, q, k, v, lam, o: f(q, k, v, lam.bfloat16().to(lam), **o),
    "window off by one": lambda f, q, k, v, lam, o: f(
        q, k, v, lam, **masked(o, window=o["mask"].window and o["mask"].window + 1)
    ),
    "padding forgotten": lambda f, q, k, v, lam, o: f(
        q, k, v, lam, **masked(o, key_padding_mask=None)
    ),
    "λ clamped": lambda f, q, k, v, lam, o: f(q, k, v, lam.clamp(0, 1), **o),
    "no gradient of λ": lambda f, q, k, v, lam, o: f(q, k, v, lam.detach() + 0 * lam, **o),
    "other heads' keys": lambda f, q, k, v, lam, o: f(q, k.roll(1, 2), v.roll(1, 2), lam, **o),
    "strides ignored": lambda f, q, k, v, lam, o: f(
        q, k if k.is_contiguous() else k.flip(1), v, lam, **o
    ),
    "an exception": lambda f, q, k, v, lam, o: 1 / 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [
        fault if fault in ("padding forgotten", "an exception")
        else pytest.param(fault, marks=pytest.mark.scheduled)
        for fault in FAULTS
    ],
)  # fmt: skip
def test_a_fault_is_found_and_can_be_repeated(fault, monkeypatch, capsys):
    monkeypatch.setitem(api._FORWARD, "composed", faulty(FAULTS[fault]))
    report = fuzz.run(150, seed=7, backends=["composed"])
    assert report.outcomes["wrong"] == len(report.failures)
    for dtype in DTYPES[::3] if fault == "λ rounded" else DTYPES:
        assert any(f"{dtype}:" in failure for failure in report.failures), dtype
    command = report.failures[0].split(" | ")[1]
    module, *arguments = command.removeprefix("python -m ").split()
    assert module == "tools.fuzz"
    assert fuzz.main(arguments) == 1
    assert report.failures[0] in capsys.readouterr().out


def rounded_once_more(right, q, k, v, lam, options):
    """√s on queries and keys alike, as some kernels have it, and O1 and O2 rounded apart."""
    scale = options["scale"]
    q, k = q * abs(scale) ** 0.5, k * abs(scale) ** 0.5 * (1 if scale > 0 else -1)
    zero, unit = torch.zeros_like(lam), torch.ones_like(lam)
    options = options | {"scale": 1.0}
    out_1 = right(q, k, v, zero, **options)
    out_2 = right(q.flip(3), k.flip(3) if k.ndim == 5 else k, v, zero, **options)
    return (out_1 - (lam * unit).expand(q.shape[:3])[..., None] * out_2).to(q.dtype)


def test_another_order_of_rounding_is_no_fault(monkeypatch):
    """Logits of 1e4 in float16: another order of rounding lets another key win a row."""
    monkeypatch.setitem(api._FORWARD, "composed", faulty(rounded_once_more))
    report = fuzz.FuzzReport(num_calls=1, seed=0, backends=("composed",))
    for seed in (5_002_618, 5_002_949, 5_003_810, 5_003_902):
        fuzz.run_call(seed, ("composed",), report)
    assert not report.failures
    assert report.outcomes == {"right": 4}


def test_invalid_calls_must_raise_the_right_error(monkeypatch):
    """Neither another error nor silence is enough."""
    for wrong, raised in ((lambda *_, **__: None, "raised nothing"), (_type_error, "TypeError")):
        monkeypatch.setattr(fuzz, "diff_attention", wrong)
        report = fuzz.FuzzReport(num_calls=1, seed=0, backends=("auto",))
        seed = next(seed for seed in range(1000) if draw_call(seed).broken)
        fuzz.run_call(seed, ("auto",), report)
        assert raised in report.failures[0]
        assert report.outcomes == {"wrong": 1}


def _type_error(*_, **__):
    raise TypeError("unexpected")


@pytest.mark.parametrize("broken", BROKEN)
def test_every_broken_call_is_broken(broken):
    """On a call that is valid before."""
    call = next(
        call
        for call in map(draw_call, range(1000))
        if call.broken is None and call.case.batch == 2 and 0 < call.case.num_queries < 9
        and call.case.num_keys > 2 and call.case.head_dim > 1
    )  # fmt: skip
    inputs = make_inputs(call)
    arguments = inputs.tensors() | {"backend": "auto"} | inputs.options
    api.diff_attention(**arguments)
    with pytest.raises((ShapeError, api.backends.BackendError)):
        api.diff_attention(**(arguments | BROKEN[broken](arguments)))
