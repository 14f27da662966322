"""Wrong arguments of every public function of ``ops``: one line that names them, nothing else."""

import warnings
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch

from diffattn.errors import BackendError, ConfigError, ShapeError
from diffattn.ops.attention import diff_attention, diff_attention_maps, paged_decode
from diffattn.ops.backends.flex import flex_diff_attention
from diffattn.ops.inputs import backends
from diffattn.ops.inputs.formulas import (
    apply_rotary,
    diff_lambda,
    head_norm,
    lambda_init,
    rotary_embedding,
    sigmoid_lambda,
)
from diffattn.ops.softmax_attention import softmax_attention, softmax_attention_maps
from tally import trial

B, T, S, H, HKV, D, DV = 2, 3, 5, 4, 2, 4, 8


class Foreign:
    """What no function knows, with a name of several lines."""

    def __repr__(self):
        return "two\nlines"

    shape, dtype, ndim = (1, 2), torch.float32, 2


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


NO_TENSORS = {
    "list": [1.0], "dict": {"q": 1}, "str": "q", "long str": "q" * 9999, "two lines": "q\nq",
    "bytes": b"q", "int": 3, "huge int": 10**5000, "float": 0.5, "bool": True, "complex": 1j,
    "array": np.zeros((2, 3)), "foreign": Foreign(), "class": torch.Tensor,
    "function": torch.zeros, "dtype": torch.float32, "Decimal": Decimal(1),
}  # fmt: skip
NO_NUMBERS = {name: x for name, x in NO_TENSORS.items() if name not in ("int", "float")} | {
    "NaN": float("nan"), "inf": float("inf"), "-huge int": -(10**5000),
    "NaN of numpy": np.float32("nan"), "tensor": torch.tensor(0.5),
    "large tensor": torch.zeros(40, 40), "missing": ...,
}  # fmt: skip
NO_COUNTS = NO_NUMBERS | {
    "0": 0, "-1": -1, "float": 2.0, "half": 0.5, "fraction": Fraction(3),
    "2**31": 2**31, "2**63": 2**63, "-2**63": -(2**63), "0 of numpy": np.int64(0),
    "float of numpy": np.float64(2.0), "bool of numpy": np.bool_(True), "one row": np.array([2]),
}  # fmt: skip
NO_FLAGS = {name: x for name, x in NO_NUMBERS.items() if name != "bool"} | {
    "0": 0, "1": 1, "None": None, "int64": np.int64(1),
}  # fmt: skip
NO_NAMES = {name: x for name, x in NO_NUMBERS.items() if name != "missing"} | {
    "None": None, "empty": "", "near": "referense", "case": "Reference", "space": "reference ",
    "NUL": "\0", "int": 3, "names": ("reference", "decode"), "every": "all",
}  # fmt: skip
NO_FUNCTIONS = {
    name: x for name, x in NO_TENSORS.items() if name not in ("class", "function", "dtype")
}


DTYPES = (
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64,
    torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
)  # fmt: skip


def odd_dtypes(x, floating=()):
    """Dtypes that no argument of this one's kind may have."""
    wrong = [dtype for dtype in DTYPES if dtype != x.dtype and dtype not in floating]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complex numbers lose their imaginary part
        return {str(dtype): x.to(dtype) for dtype in wrong}


def odd_layouts(x):
    """The numbers of ``x`` where no kernel reads them."""
    made = {"meta": x.to("meta")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own: beta, a prototype, deprecated
        if x.ndim:
            made["sparse"] = x.to_sparse()
        if x.ndim > 1:
            made["nested"] = torch.nested.nested_tensor(list(x))
        if x.dtype == torch.float32:
            made["quantised"] = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    return made


def odd_shapes(x):
    """Other numbers of axes, other lengths."""
    made = {"one axis more": x[None], "no numbers": x[..., :0] if x.ndim else None}
    if x.ndim:
        made["one axis less"] = x[0]
        made["longer"] = torch.cat([x, x], -1)
        made["longer first"] = torch.cat([x, x, x])
        made["scalar"] = x.flatten()[0]
    return {name: value for name, value in made.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Function:
    """A valid call, and for every argument what is wrong."""

    call: object
    valid: dict
    tensors: tuple
    optional: tuple = ()
    """Tensors that are left out of the valid call, and what they would be."""
    floats: tuple = ()
    """Floating dtypes that all tensors may have, each its own."""
    any_shape: tuple = ()
    """Tensors whose odd shapes are right, or refused with another one's name."""
    options: dict = field(default_factory=dict)


def attention(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": (B, T, H, 2, D), "k": (B, S, HKV, 2, D), "v": (B, S, HKV, DV), "lam": (B, T, H)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def one_map():
    given = attention()
    return {"q": given["q"][:, :, :, 0], "k": given["k"][:, :, :, 0], "v": given["v"]}


def pages():
    """Five pages of four tokens; the first sequence has two of them, the second one."""
    made = attention(seed=1)
    generator = torch.Generator().manual_seed(2)
    shapes = {"k_pages": (5, 4, HKV, 2, D), "v_pages": (5, 4, HKV, DV)}
    pools = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    table = torch.tensor([[3, 0], [4, 1]], dtype=torch.int32)
    return {"q": made["q"], **pools, "lam": made["lam"], "block_table": table,
            "kv_lengths": int32(7, 4)}  # fmt: skip


def without(name, given):
    return {key: x for key, x in given.items() if key != name}


NO_SCALES = NO_NUMBERS | {"1e300": 1e300, "-1e39": -1e39}
MASK = {"key_padding_mask": torch.ones(B, S, dtype=torch.bool), "kv_lengths": int32(5, 3)}
ROWS = MASK | {"rows": torch.tensor([0, 2])}
MASK_OPTIONS = {"scale": NO_SCALES, "window": NO_COUNTS, "causal": NO_FLAGS}
NAMED = MASK_OPTIONS | {"backend": NO_NAMES}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
VECTORS = {f"lambda_{name}": torch.randn(D) for name in ("q1", "k1", "q2", "k2")}
COS = torch.ones(B, T, D)
QKVL, QKV = ("q", "k", "v", "lam"), ("q", "k", "v")
FUNCTIONS = {
    **{
        f"diff_attention {backend}": Function(
            call=partial(diff_attention, backend=backend), valid=attention(), tensors=QKVL,
            optional=MASK, options=NAMED if backend == "auto" else MASK_OPTIONS,
        )
        for backend in ("auto", "reference", "chunked", "decode", "composed", "flash_diff_attn_1",
                        "flash_diff_attn_2", "flex")
    },
    "diff_attention_maps": Function(
        call=diff_attention_maps, valid=without("v", attention()), tensors=("q", "k", "lam"),
        optional=ROWS, options=MASK_OPTIONS,
    ),
    **{
        f"softmax_attention {backend}": Function(
            call=partial(softmax_attention, backend=backend), valid=one_map(), tensors=QKV,
            optional=MASK, options=NAMED if backend == "auto" else MASK_OPTIONS,
        )
        for backend in ("auto", "reference", "sdpa", "chunked", "decode")
    },
    "softmax_attention_maps": Function(
        call=softmax_attention_maps, valid=without("v", one_map()), tensors=("q", "k"),
        optional=ROWS, options=MASK_OPTIONS,
    ),
    **{
        f"paged_decode {backend}": Function(
            call=partial(paged_decode, backend=backend), valid=pages(), tensors=tuple(pages()),
            options=NAMED if backend == "auto" else MASK_OPTIONS,
        )
        for backend in ("auto", "reference", "gathered")
    },
    "flex_diff_attention": Function(
        call=flex_diff_attention, valid=attention(), tensors=QKVL,
        options={"scale": NO_SCALES, "mask_mod": NO_FUNCTIONS, "score_mod": NO_FUNCTIONS,
                 "block_mask": NO_TENSORS | {"tensor": torch.ones(T, S)}},
    ),
    "rotary_embedding": Function(
        call=partial(rotary_embedding, head_dim=D), valid={"positions": torch.arange(T)},
        tensors=("positions",), any_shape=("positions",),
        floats=(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
        options={"head_dim": NO_COUNTS | {"odd": 7}, "theta": NO_NUMBERS | {"0": 0.0, "-1": -1.0}},
    ),
    "apply_rotary": Function(
        call=apply_rotary, floats=FLOATS, any_shape=("x",), tensors=("x", "cos", "sin"),
        valid={"x": torch.randn(B, T, H, D), "cos": COS, "sin": COS},
    ),
    "head_norm": Function(
        call=head_norm, valid={"x": torch.randn(B, T, H, D)}, tensors=("x",), floats=FLOATS,
        optional={"weight": torch.ones(D)}, any_shape=("x",),
        options={"eps": NO_NUMBERS | {"-1": -1.0}, "factor": NO_NUMBERS},
    ),
    "diff_lambda": Function(
        call=partial(diff_lambda, lambda_init=0.2), valid=VECTORS, tensors=tuple(VECTORS),
        floats=FLOATS, options={"lambda_init": NO_NUMBERS},
    ),
    "sigmoid_lambda": Function(
        call=sigmoid_lambda, valid={"logits": torch.randn(B, T, H)}, tensors=("logits",),
        floats=FLOATS, any_shape=("logits",),
    ),
    "lambda_init": Function(
        call=lambda_init, valid={"layer_idx": 0}, tensors=(),
        options={"layer_idx": without("0", without("0 of numpy", NO_COUNTS))},
    ),
    "backends": Function(
        call=backends.names, valid={"op": "diff_attention"}, tensors=(), options={"op": NO_NAMES}
    ),
}  # fmt: skip
VALUES = [
    ("diff_attention auto", {"lam": torch.full((), torch.nan)}),
    *[("diff_attention auto", {"kv_lengths": lengths})
      for lengths in (int32(-1, 2), int32(0, S + 1), int32(-(2**31), 0), int32(0, 2**31 - 1))],
    *[("paged_decode auto", {"kv_lengths": lengths}) for lengths in (int32(-1, 2), int32(0, 9))],
    *[("paged_decode auto", {"block_table": torch.tensor(table, dtype=torch.int32)})
      for table in ([[3, 5], [4, 1]], [[-1, 0], [4, 1]], [[0, 0], [2**31 - 1, 0]])],
    *[(f"{kind}_attention_maps", {"rows": torch.tensor(rows)})
      for kind in ("diff", "softmax") for rows in ([-1], [T], [0, 2**62], [-(2**63)], 3)],
    ("paged_decode auto", {"k_pages": pages()["k_pages"].mT.contiguous().mT}),
    *[(f"{name} auto", {"q": call()["q"][:, :, :3]})  # 3 heads of queries, 2 of keys
      for name, call in (("diff_attention", attention), ("softmax_attention", one_map),
                         ("paged_decode", pages))],
    *[("diff_attention auto", {"cu_seqlens": borders}) for borders in (int32(0, S), 3, [0, S])],
]  # fmt: skip
DOCUMENTED = (ShapeError, BackendError, ConfigError)
BEFORE_OTHERS = ("q", "k_pages", "block_table")
"""Arguments that others must fit, which are named then."""


def wrong_calls():
    """``(label, function, arguments)``."""
    for label, function in FUNCTIONS.items():
        for name in (*function.tensors, *function.optional):
            x = function.valid[name] if name in function.tensors else function.optional[name]
            wrong = NO_TENSORS | odd_dtypes(x, function.floats) | odd_layouts(x)
            if name in function.tensors:
                wrong = wrong | {"None": None}
            if name not in function.any_shape:
                wrong = wrong | odd_shapes(x)
            if name in ("v", "v_pages", "block_table"):  # of any width
                wrong = without("longer", wrong)
            if name == "rows":
                wrong = without("no numbers", without("longer", without("longer first", wrong)))
            if name in ("x", "logits", "positions"):  # nothing else says where they must lie
                wrong = (
                    wrong if name == "x" and "cos" in function.tensors else without("meta", wrong)
                )
            if name == "lam":  # broadcast, or one number
                taken = ("scalar", "one axis less", "int", "float")
                wrong = {what: value for what, value in wrong.items() if what not in taken}
            for what, value in wrong.items():
                yield f"{label}: {name} = {what}", function, {name: value}
        for name, wrong in function.options.items():
            for what, value in wrong.items():
                yield f"{label}: {name} = {what}", function, {name: value}
    for label, arguments in VALUES:
        yield f"{label}: {arguments}", FUNCTIONS[label], arguments


def fault(function, arguments):
    """What is wrong with the refusal."""
    try:
        function.call(**(function.valid | arguments))
    except DOCUMENTED as error:
        text = str(error)
        if "\n" in text or len(text) > 500 or ": " not in text:
            return f"must be one short line, got {text!r}"
        name = getattr(function.call, "func", function.call).__name__
        if not text.startswith((f"{name}: ", "backends: ")):
            return f"must say where, got {text!r}"
        (argument,) = arguments
        is_named = argument in text or argument in BEFORE_OTHERS or "query heads" in text
        return None if is_named else f"must name {argument}, got {text!r}"
    except Exception as error:  # any other kind is what is looked for
        return f"raised {type(error).__name__}: {str(error)[:100]}"
    return "raised nothing"


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


def test_valid_calls_are_valid():
    """Each of the calls that the others differ from by one argument."""
    for label, function in FUNCTIONS.items():
        if "flex" in label:  # slow, and compared in its own test
            continue
        function.call(**function.valid)
        for name in function.optional:
            function.call(**function.valid, **{name: function.optional[name]})


def test_wrong_arguments():
    with trial("wrong arguments of operators", minimum=6_000) as tally:
        for label, function, arguments in wrong_calls():
            tally.check(label, fault(function, arguments))
