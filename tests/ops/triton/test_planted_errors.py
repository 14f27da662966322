"""An error planted in each kernel is caught by the assertion that every kernel test makes.

An error is one changed place in the source, at which a copy of the kernels is defined anew. In
bfloat16, whose tolerance is the widest, at lengths of two or three of the interpreter's tiles.
"""

import importlib
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OpCase
from diffattn.ops import triton as kernels
from diffattn.ops.inputs.masking import AttentionMask
from diffattn.ops.triton import configs
from ops.paged_inputs import pages_of

from .kernel_calls import decode, differential, inputs_of, softmax, softmax_decode
from .planted_table import ALL

pytestmark = pytest.mark.skipif(
    not configs.interpreted(), reason="copies of the kernels are defined for the interpreter"
)

EVERY_PUSH = (
    "mask one key short", "sign of λ", "accumulator not rescaled", "heads", "no scale of dQ",
    "store for the atomic add", "order of the maps", "one part left out",
    "place in the page ignored", "every part the first",
)  # fmt: skip
"""Errors by name, of whichever kernel; the others are planted in the scheduled tier."""
MODULES = ("tiles", "launch", "forward", "backward_keys", "backward", "decode")
"""What is copied, each after what it imports."""


def decode_in_19_parts(q, k, v, lam, *, backend, **options):
    """More parts than the merge takes at once; 1,200 keys leave none of them empty."""
    if backend == "reference":
        return decode(q, k, v, lam, backend=backend, **options)
    scale, mask = q.shape[-1] ** -0.5, AttentionMask(**options)
    return kernels.decode.decode(q, k, v, lam, scale=scale, mask=mask, num_splits=19)


@dataclass(frozen=True, slots=True)
class Call:
    """What is computed, and the form of the kernels that computes it."""

    op: Callable[..., torch.Tensor]
    options: dict
    gap: bool = False
    """Whether one key in the middle is padding; those of ``OpCase`` are at the ends."""
    form: dict = field(default_factory=dict)
    """Attributes of ``configs`` by name, which choose the launches."""


def any_order(q):
    """In place of ``adds_in_order``, for the tests of this folder ask for one order."""
    return False


V1 = {"batch": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 32, "value_dim": 64,
      "num_queries": 18, "num_keys": 41, "lam_axes": "bth"}  # fmt: skip
V2 = V1 | {"value_dim": 32, "shared_keys": True}
BAND = V1 | {"num_queries": 70, "num_keys": 70, "window": 40}
TWICE = {"num_heads": 4, "num_kv_heads": 2}
"""The least in which a wrong head may come from a wrong quotient or remainder."""
FEW = V1 | TWICE | {"num_queries": 3, "num_keys": 300}
ONE_KERNEL = {"adds_in_order": any_order}
IN_PARTS = {"num_multiprocessors": lambda device: 132}
CALLS = {
    "v1": Call(differential, V1),
    "v1-heads": Call(differential, V1 | TWICE),
    "v1-cross": Call(differential, V1 | {"causal": False}),
    "v1-T>S": Call(differential, V1 | {"num_queries": 35, "num_keys": 20}),
    "v1-window": Call(differential, V1 | {"window": 20}),
    "v1-band": Call(differential, BAND),
    "v1-gap": Call(differential, V1 | {"num_keys": 73, "padding": ((0, 0),)}, gap=True),
    "v1-by-map": Call(differential, V1, form={"FORWARD_FORMS": (("fwd_by_map",),)}),
    "v1-one-kernel": Call(differential, V1, form=ONE_KERNEL),
    "v1-one-kernel-heads": Call(differential, V1 | TWICE, form=ONE_KERNEL),
    "v1-steep": Call(
        differential, V1 | {"num_keys": 2, "scale": 50.0, "causal": False}, form=ONE_KERNEL
    ),
    "v1-dk": Call(differential, V1, form={"BACKWARD_FORMS": (("dk", "dv", "dq"),)}),
    "v1-parts": Call(differential, V1, form=IN_PARTS),
    "v1-parts-heads": Call(differential, V1 | TWICE, form=IN_PARTS),
    "v2": Call(differential, V2),
    "v2-one-kernel": Call(differential, V2, form=ONE_KERNEL),
    "softmax": Call(softmax, V2),
    "softmax-heads": Call(softmax, V2 | TWICE),
    "softmax-one-kernel-heads": Call(softmax, V2 | TWICE, form=ONE_KERNEL),
    "softmax-parts": Call(softmax, V2 | TWICE, form=IN_PARTS),
    "decode": Call(decode, FEW),
    "decode-window": Call(decode, FEW | {"window": 140}),
    "decode-padded": Call(decode, FEW | {"padding": ((130, 3),)}),
    "decode-parts": Call(decode_in_19_parts, FEW | {"num_keys": 1200}),
    "decode-softmax": Call(softmax_decode, FEW | {"value_dim": 32, "shared_keys": True}),
    "decode-paged": Call(pages_of(16), FEW | {"batch": 2, "num_keys": 70}),
}


def plant(monkeypatch, folder, call, planted=None):
    """Let the operators run copies of the kernels in the form of a call, perhaps with an error."""
    for name, value in CALLS[call].form.items():
        monkeypatch.setattr(configs, name, value)
    importlib.import_module(f"{kernels.__name__}.launch")  # repairs the interpreter: once is enough
    package = f"kernels_{uuid.uuid4().hex}"
    home = folder / package
    home.mkdir()
    for name in MODULES:
        source = Path(kernels.__path__[0], f"{name}.py").read_text(encoding="utf-8")
        if planted and planted.module == name:
            source = planted.in_source(source)
        for other in MODULES:
            source = source.replace(f"from {kernels.__name__}.{other} ", f"from {package}.{other} ")
        source = source.replace("interpreter.repair()", "pass")
        (home / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    for name in MODULES:
        module = importlib.import_module(f"{package}.{name}")
        monkeypatch.setattr(kernels, name, module, raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def check(call):
    case = CALLS[call]
    inputs = inputs_of(case.op, OpCase(name=call, **case.options), dtype=torch.bfloat16)
    if case.gap:
        inputs.options["key_padding_mask"][:, 5] = False
    gradients = case.op in (differential, softmax)
    with np.errstate(all="ignore"):  # of which a GPU knows nothing either
        assert_close_to_reference(case.op, inputs, backend="triton", gradients=gradients)


def calls():
    pushed = {x.call for x in ALL if x.name in EVERY_PUSH}
    return [pytest.param(x, marks=() if x in pushed else pytest.mark.scheduled) for x in CALLS]


@pytest.mark.sampled(one_of=6)
@pytest.mark.parametrize("call", calls())
def test_copies_without_an_error_pass(call, monkeypatch, tmp_path):
    plant(monkeypatch, tmp_path, call)
    check(call)


def errors():
    marks = [() if x.name in EVERY_PUSH else pytest.mark.scheduled for x in ALL]
    return [pytest.param(x, id=str(x), marks=mark) for x, mark in zip(ALL, marks, strict=True)]


@pytest.mark.sampled(one_of=6)
@pytest.mark.parametrize("planted", errors())
def test_a_planted_error_is_caught(planted, monkeypatch, tmp_path):
    plant(monkeypatch, tmp_path, planted.call, planted)
    with pytest.raises(AssertionError, match="further from the float64 reference"):
        check(planted.call)
