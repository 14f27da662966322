"""A form of call is checked once, its values every time."""

import sys

import pytest
import torch

from diffattn.errors import ShapeError
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops import attention as api
from diffattn.ops import softmax_attention as softmax_module
from diffattn.ops.attention import diff_attention
from diffattn.ops.inputs import call_forms
from diffattn.ops.softmax_attention import softmax_attention

CACHE = OpCase(name="", num_queries=2, num_keys=4, kv_lengths=(4, 3), padding=((1, 0), (0, 0)))
PACKED = OpCase(name="", num_queries=4, batch=1, documents=(1, 3))
MOST_EVENTS = 33
"""Calls of functions, of Python and of C, around the kernel of a call whose form is known."""


@pytest.fixture(autouse=True)
def forms(monkeypatch):
    """Nothing has been checked yet."""
    checked = {}
    monkeypatch.setattr(api, "_CHECKED", checked)
    monkeypatch.setattr(softmax_module, "_CHECKED", {})
    return checked


def passed(case, forms, **changes):
    """Arguments of a call whose form is known, with ``changes`` that the form does not show."""
    inputs = make_diff_attention_inputs(case)
    arguments = inputs.tensors() | inputs.options
    diff_attention(**arguments)
    assert len(forms) == 1
    return arguments | changes


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        (CACHE, {"lam": torch.tensor(float("nan"))}, "lam must not be NaN"),
        (CACHE, {"kv_lengths": torch.tensor([4, 5], dtype=torch.int32)}, "kv_lengths must lie in"),
        (PACKED, {"cu_seqlens": torch.tensor([0, 4, 3], dtype=torch.int32)}, "must rise from 0"),
    ],
)
def test_values_are_looked_at_every_time(case, changes, message, forms):
    arguments = passed(case, forms, **changes)
    with pytest.raises(ShapeError, match=message):
        diff_attention(**arguments)
    assert len(forms) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"causal": 1}, "causal must be True or False, got 1"),
        ({"window": True}, "window must be an integer"),
        ({"window": 1.0}, "window must be an integer"),
        ({"scale": True}, "scale must be a finite real number"),
        ({"kv_lengths": torch.tensor([4, 3])}, "kv_lengths must be torch.int32"),
        ({"lam": torch.zeros(3)}, "lam must be broadcastable"),
        ({"q": [1.0]}, "q must be a tensor"),
        ({"v": torch.zeros(2, 4, 4, 16, dtype=torch.float64)}, "v must have q's dtype"),
        ({"v": torch.zeros(2, 4, 4, 16, device="meta")}, "v must be on cpu like q"),
        ({"k": torch.zeros(2, 4, 4, 2, 8).to_sparse()}, "k must be a dense tensor"),
    ],
)
def test_whatever_else_differs_is_another_form(changes, message, forms):
    """True, 1 and 1.0 are one key of a dictionary: their types are part of the form."""
    arguments = passed(CACHE, forms)
    diff_attention(**arguments | {"window": 1, "scale": 1.0})
    with pytest.raises(ShapeError, match=message):
        diff_attention(**arguments | changes)


def test_the_scale_in_force_is_that_of_the_call(forms):
    arguments = passed(CACHE, forms)
    default, other = diff_attention(**arguments), diff_attention(**arguments, scale=0.9)
    for _ in range(2):
        assert torch.equal(diff_attention(**arguments), default)
        assert torch.equal(diff_attention(**arguments, scale=0.9), other)
    assert torch.equal(diff_attention(**arguments, scale=8**-0.5), default)
    assert not torch.equal(default, other)


def test_forms_do_not_pile_up(forms, monkeypatch):
    monkeypatch.setattr(call_forms, "_MOST", 3)
    for num_keys in range(2, 12):
        inputs = make_diff_attention_inputs(OpCase(name="", num_queries=1, num_keys=num_keys))
        diff_attention(**inputs.tensors())
        assert 1 <= len(forms) <= 3


def test_an_empty_call_stays_empty(forms):
    inputs = make_diff_attention_inputs(OpCase(name="", num_queries=0))
    for _ in range(2):
        assert diff_attention(**inputs.tensors()).shape == (2, 0, 4, 16)
    assert not forms


def events(call):
    """Function calls, of Python and of C, in the second call: the same at every run."""
    seen = []

    def note(frame, event, argument):
        if event in ("call", "c_call"):
            seen.append(event)

    call()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return len(seen)


@pytest.mark.parametrize(
    ("backend", "case"),
    [
        ("auto", OpCase(name="", num_queries=16)),
        ("composed", OpCase(name="", num_queries=16)),
        ("reference", OpCase(name="", num_queries=16)),
        ("auto", OpCase(name="", num_queries=2, num_keys=4, kv_lengths=(4, 3))),
    ],
    ids=("auto", "composed", "reference", "kv_lengths"),
)
def test_little_is_done_around_the_kernel(backend, case, monkeypatch):
    def nothing(q, *rest, **options):
        return q

    for table in (api._FORWARD, softmax_module._FORWARD):
        for name in table:
            monkeypatch.setitem(table, name, nothing)
    inputs = make_diff_attention_inputs(case)
    q, k, v, lam = (x.detach() for x in inputs.tensors().values())
    options = inputs.options
    assert events(lambda: diff_attention(q, k, v, lam, backend=backend, **options)) <= MOST_EVENTS
    q, k = q[:, :, :, 0], k[:, :, :, 0]
    name = "sdpa" if backend == "composed" else backend
    assert events(lambda: softmax_attention(q, k, v, backend=name, **options)) <= MOST_EVENTS


@pytest.mark.parametrize("wanted", ["gradient", "no gradient"])
def test_a_form_says_whether_a_gradient_is_wanted(wanted, forms, monkeypatch):
    """What is chosen by it is chosen again for a call that differs in that alone."""
    seen = []
    monkeypatch.setattr(
        api.backends, "resolve", lambda op, name, inputs: seen.append(inputs) or "reference"
    )
    inputs = make_diff_attention_inputs(OpCase(name="", num_queries=2))
    tensors = list(inputs.tensors().values())
    calls = [lambda: diff_attention(*tensors),
             lambda: diff_attention(*(x.detach() for x in tensors)),
             lambda: torch.no_grad()(diff_attention)(*tensors)]  # fmt: skip
    for call in calls if wanted == "gradient" else calls[::-1]:
        call()
        call()
    needs = [x.needs_gradient for x in seen]
    assert sorted(needs) == [False] * 4 + [True] * 2
    assert needs[0] is (wanted == "gradient")
    assert len(forms) == 3
