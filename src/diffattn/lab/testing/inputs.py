"""Deterministic inputs of ``diff_attention``: one table of cases for every backend."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class OpCase:
    """Shapes and options of one call of :func:`diffattn.diff_attention`."""

    name: str
    num_queries: int
    num_keys: int | None = None
    """S. Default: T."""
    batch: int = 2
    num_heads: int = 4
    num_kv_heads: int = 4
    head_dim: int = 8
    value_dim: int = 16
    shared_keys: bool = False
    lam_axes: str = ""
    """Axes of λ that have their full size, of b, t and h: ``""`` is a scalar, ``"t"`` [T, 1]."""
    scale: float | None = None
    causal: bool = True
    window: int | None = None
    padding: tuple[tuple[int, int], ...] | None = None
    """Padded keys on the left and on the right, for each batch row."""
    kv_lengths: tuple[int, ...] | None = None
    documents: tuple[int, ...] | None = None
    """Lengths of the packed documents in tokens; they sum to the number of queries and of keys."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffAttentionInputs:
    """Arguments of one call; ``q, k, v, lam`` are leaves that require a gradient."""

    q: Tensor
    k: Tensor
    v: Tensor
    lam: Tensor
    options: dict[str, Any]

    def tensors(self) -> dict[str, Tensor]:
        """The differentiable arguments by name, in the order of the call."""
        return {"q": self.q, "k": self.k, "v": self.v, "lam": self.lam}

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> "DiffAttentionInputs":
        """Apply ``change`` to the value of each tensor; the results are new leaves."""
        leaves: dict[str, Any] = {
            name: change(x.detach()).requires_grad_(x.requires_grad)
            for name, x in self.tensors().items()
        }
        return replace(self, **leaves)


def make_diff_attention_inputs(
    case: OpCase,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
    drawn_on: torch.device | str = "cpu",
) -> DiffAttentionInputs:
    """Draw normal random tensors in the shapes of ``case``. λ has mean 0.4 and deviation 0.6.

    ``drawn_on`` is the device of the random generator: a CPU takes seconds for long sequences.
    """
    generator = torch.Generator(drawn_on).manual_seed(seed)
    batch, num_queries, num_heads, dim = case.batch, case.num_queries, case.num_heads, case.head_dim
    num_keys = num_queries if case.num_keys is None else case.num_keys
    keys = (batch, num_keys, case.num_kv_heads)
    lam_shape = [
        size if axis in case.lam_axes else 1
        for axis, size in zip("bth", (batch, num_queries, num_heads), strict=True)
    ]
    while lam_shape and lam_shape[0] == 1:
        del lam_shape[0]  # λ comes in its smallest shape: [], [H], [T, 1], ...
    shapes = {
        "q": (batch, num_queries, num_heads, 2, dim),
        "k": (*keys, dim) if case.shared_keys else (*keys, 2, dim),
        "v": (*keys, case.value_dim),
        "lam": tuple(lam_shape),
    }
    lam_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    leaves = {}
    for name, shape in shapes.items():
        x = torch.randn(shape, generator=generator, dtype=torch.float64, device=drawn_on)
        x = (0.4 + 0.6 * x).to(lam_dtype) if name == "lam" else x.to(dtype)
        leaves[name] = x.to(device).requires_grad_()
    return DiffAttentionInputs(**leaves, options=_options(case, num_keys, torch.device(device)))


def _options(case: OpCase, num_keys: int, device: torch.device) -> dict[str, Any]:
    options: dict[str, Any] = {"scale": case.scale, "window": case.window}
    options["causal"] = None if case.causal else False
    options = {name: value for name, value in options.items() if value is not None}
    if case.padding is not None:
        column = torch.arange(num_keys)
        real = [(column >= left) & (column < num_keys - right) for left, right in case.padding]
        options["key_padding_mask"] = torch.stack(real).to(device)
    if case.kv_lengths is not None:
        options["kv_lengths"] = torch.tensor(case.kv_lengths, dtype=torch.int32, device=device)
    if case.documents is not None:
        borders = torch.tensor((0, *case.documents)).cumsum(0)
        options["cu_seqlens"] = borders.to(device, torch.int32)
    return options


_V2: dict[str, Any] = {"shared_keys": True, "value_dim": 8}
_GQA: dict[str, Any] = {"num_kv_heads": 2}
_MQA: dict[str, Any] = {"num_kv_heads": 1}

OP_CASES: tuple[OpCase, ...] = (
    OpCase("v1-mha-T1", 1),
    OpCase("v1-mha-T63", 63, lam_axes="h"),
    OpCase("v1-gqa-T100", 100, **_GQA),
    OpCase("v1-mqa-T128", 128, batch=1, lam_axes="bth", **_MQA),
    OpCase("v2-mha-T63", 63, lam_axes="bth", **_V2),
    OpCase("v2-gqa-T128", 128, batch=1, lam_axes="bth", **_V2, **_GQA),
    OpCase("v2-mqa-T100", 100, lam_axes="t", **_V2, **_MQA),
    OpCase("v1-odd-widths", 17, head_dim=6, value_dim=10, scale=0.7, **_GQA),
    OpCase("v1-decode", 1, 63, **_GQA),
    OpCase("v2-decode", 1, 100, lam_axes="bth", **_V2, **_GQA),
    OpCase("v1-T<S", 63, 100, lam_axes="t", **_GQA),
    OpCase("v2-T>S", 100, 63, **_V2),
    OpCase("v1-cross-T<S", 17, 63, causal=False, **_MQA),
    OpCase("v1-cross-T>S", 63, 17, causal=False, lam_axes="bh"),
    OpCase("v1-window", 63, window=9, **_GQA),
    OpCase("v2-window-noncausal", 63, 70, causal=False, window=9, **_V2),
    OpCase("v1-window-1", 17, window=1),
    OpCase("v1-padding", 63, padding=((11, 0), (0, 7)), **_GQA),
    OpCase("v2-padding-noncausal", 63, causal=False, padding=((63, 0), (3, 4)), **_V2),
    OpCase("v1-kv_lengths", 17, 63, kv_lengths=(63, 40), **_GQA),
    OpCase("v1-kv_lengths-short", 17, 30, kv_lengths=(0, 9), lam_axes="h"),
    OpCase("v2-kv_lengths-decode", 1, 63, kv_lengths=(1, 50), **_V2),
    OpCase("v1-kv_lengths-noncausal", 5, 9, causal=False, kv_lengths=(0, 6)),
    OpCase("v1-packed", 100, batch=1, documents=(1, 30, 0, 63, 6), **_GQA),
    OpCase("v2-packed-noncausal", 63, batch=1, causal=False, documents=(20, 43), **_V2),
    OpCase(
        "v1-window-padding-kv_lengths",
        17,
        40,
        window=12,
        padding=((5, 0), (0, 2)),
        kv_lengths=(40, 21),
        lam_axes="bth",
        **_GQA,
    ),
    OpCase(
        "v2-packed-window-padding",
        63,
        batch=1,
        window=7,
        padding=((2, 5),),
        documents=(31, 32),
        lam_axes="th",
        **_V2,
        **_GQA,
    ),
    OpCase(
        "v1-padding-kv_lengths-noncausal",
        17,
        40,
        causal=False,
        padding=((5, 0), (0, 2)),
        kv_lengths=(4, 33),
        **_MQA,
    ),
)
