"""Random calls of ``diff_attention``, valid ones and broken ones, each drawn from one number."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from diffattn.lab.testing.inputs import DiffAttentionInputs, OpCase, make_diff_attention_inputs

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
MAX_BATCH = 65_536  # more than the 65,535 blocks of a CUDA grid's second axis


@dataclass(frozen=True, kw_only=True, slots=True)
class FuzzCall:
    """The parts of one call. Its numbers come from ``seed`` too."""

    seed: int
    case: OpCase
    dtype: torch.dtype
    values: str
    """The kind of numbers; see :data:`VALUES`."""
    lam: float | None
    """One value for all of λ; ``None``: normal deviates around 0.4."""
    layouts: tuple[str, ...]
    """Memory layouts of q, k, v, λ and the gradient of the output; see :data:`LAYOUTS`."""
    random_padding: bool
    """Padding anywhere instead of at the ends."""
    differentiate: tuple[str, ...]
    """Names of the tensors that require a gradient."""
    broken: str | None
    """The fault of an invalid call; see :data:`BROKEN`."""

    def facets(self) -> list[str]:
        """Features that the call exercises, for the counts of a report."""
        case = self.case
        num_keys = case.num_queries if case.num_keys is None else case.num_keys
        odd = case.head_dim % 2 or case.value_dim % 2
        facets = {
            "causal": case.causal,
            "window": case.window is not None,
            "padding": case.padding is not None or self.random_padding,
            "kv_lengths": case.kv_lengths is not None,
            "packed": case.documents is not None,
            "scale": case.scale is not None,
            "shared keys": case.shared_keys,
            "grouped heads": case.num_kv_heads < case.num_heads,
            "odd widths": bool(odd),
            "one query": case.num_queries == 1,
            "T > S": case.num_queries > num_keys,
            "empty": 0 in (case.batch, case.num_queries, num_keys),
            "batch of thousands": case.batch > 1000,
            "strided": self.layouts != ("dense",) * 5,
            "λ outside [0, 1]": self.lam is not None and not 0 <= self.lam <= 1,
            f"values: {self.values}": True,
        }
        return [name for name, is_present in facets.items() if is_present]


def draw_call(seed: int) -> FuzzCall:
    """The call of this seed: the same on every machine, whatever backends there are."""
    random = Random(seed)
    maybe = lambda probability: random.random() < probability  # noqa: E731
    size = lambda: random.choice((1, 2, 3, 5, 8, 17, random.randint(1, 40)))  # noqa: E731
    batch, num_queries, num_keys = random.randint(1, 3), size(), size()
    num_kv_heads, group = random.randint(1, 3), random.choice((1, 1, 2, 3))
    head_dim = random.choice((1, 2, 3, 4, 6, 7, 8, 10, 16, 32, 33))
    value_dim = random.choice((2 * head_dim,) * 4 + (head_dim, random.randint(1, 20)))
    if maybe(0.4):
        num_keys = num_queries
    if maybe(0.02):  # over the edges of tiles
        num_queries, num_keys = random.randint(60, 140), random.randint(60, 140)
    if maybe(0.003):
        batch, num_queries, num_kv_heads, group = MAX_BATCH, 1, 1, 1
        num_keys, head_dim, value_dim = random.randint(1, 2), 2, random.choice((2, 4))
    if maybe(0.01):
        batch, num_queries, num_keys = random.choice(
            ((0, num_queries, num_keys), (batch, 0, num_keys), (batch, num_queries, 0))
        )
    documents = kv_lengths = padding = None
    if batch == 1 and num_queries == num_keys > 0 and maybe(0.5):
        cuts = sorted(random.randint(0, num_keys) for _ in range(random.randint(0, 3)))
        documents = tuple(b - a for a, b in zip([0, *cuts], [*cuts, num_keys], strict=True))
    elif maybe(0.25):
        lengths = (0, 1, num_keys, random.randint(0, num_keys))
        kv_lengths = tuple(min(random.choice(lengths), num_keys) for _ in range(batch))
    if 0 < batch < MAX_BATCH and maybe(0.15):
        lefts = [random.choice((0, random.randint(0, num_keys), num_keys)) for _ in range(batch)]
        padding = tuple((left, random.choice((0, 0, num_keys // 3))) for left in lefts)
    case = OpCase(
        name=f"call {seed}", batch=batch, num_queries=num_queries, num_keys=num_keys,
        num_heads=num_kv_heads * group, num_kv_heads=num_kv_heads, head_dim=head_dim,
        value_dim=value_dim, shared_keys=maybe(0.35),
        lam_axes="".join(axis for axis in "bth" if maybe(0.5)),
        scale=random.choice((0.3, 1.0, 0.02, -0.5, 0.0)) if maybe(0.2) else None,
        causal=maybe(0.7), window=random.randint(1, num_keys + 3) if maybe(0.25) else None,
        padding=padding, kv_lengths=kv_lengths, documents=documents,
    )  # fmt: skip
    empty = 0 in (batch, num_queries, num_keys)
    leaves = tuple(name for name in ("q", "k", "v", "lam") if maybe(0.9))
    return FuzzCall(
        seed=seed, case=case, dtype=random.choice(DTYPES),
        values=random.choice(("normal",) * 6 + tuple(VALUES)),
        lam=random.choice((-3.0, -0.7, 0.0, 1.0, 1 + 2.0**-12, 1.8, 10.0)) if maybe(0.3) else None,
        layouts=tuple(random.choice(("dense",) * 4 + tuple(LAYOUTS)) for _ in range(5)),
        random_padding=maybe(0.1), differentiate=leaves or ("q",),
        broken=random.choice(tuple(BROKEN)) if maybe(0.06) and not empty else None,
    )  # fmt: skip


def make_inputs(call: FuzzCall, *, device: torch.device | str = "cpu") -> DiffAttentionInputs:
    """Arguments of the call as if nothing were broken."""
    inputs = make_diff_attention_inputs(call.case, dtype=call.dtype, device=device, seed=call.seed)
    generator = torch.Generator().manual_seed(call.seed + 1)
    with torch.no_grad():
        if inputs.q.numel() and inputs.k.numel():
            VALUES[call.values](inputs, generator)
        if call.lam is not None:
            inputs.lam.fill_(call.lam)
    if call.random_padding:
        shape = inputs.k.shape[:2]
        real = torch.rand(shape, generator=generator) < 0.6
        inputs.options["key_padding_mask"] = real.to(device)
    layouts = iter(call.layouts)
    inputs = inputs.map_tensors(lambda x: lay_out(next(layouts), x))
    for name, x in inputs.tensors().items():
        x.requires_grad_(name in call.differentiate)
    return inputs


def lay_out(layout: str, x: Tensor) -> Tensor:
    """The numbers of ``x`` (of its first row, for ``expanded``) in that layout."""
    return LAYOUTS.get(layout, _dense)(x)


def _scale_logits(inputs: DiffAttentionInputs, limit: float, signs_only: bool = False) -> None:
    scale = abs(inputs.options.get("scale", inputs.q.shape[-1] ** -0.5)) or 1.0
    limit = min(limit, 1e4) / scale
    if inputs.q.dtype == torch.float16:
        limit = min(limit, 3e4)  # of the products before the scale
    size = (limit / inputs.q.shape[-1]) ** 0.5
    for x in (inputs.q, inputs.k):
        shape = x[..., :1].sign() if signs_only else x / x.abs().max().clamp(min=1e-3)
        x.copy_(shape * size)


def _equal_maps(inputs: DiffAttentionInputs, generator: torch.Generator) -> None:
    """The output is (1 − λ) times softmax attention, however it cancels."""
    inputs.q.copy_(inputs.q[:, :, :, :1].clone().expand_as(inputs.q))
    if inputs.k.ndim == 5:
        inputs.k.copy_(inputs.k[:, :, :, :1].clone().expand_as(inputs.k))


VALUES: dict[str, Callable[[DiffAttentionInputs, torch.Generator], object]] = {
    "normal": lambda inputs, _: None,
    # Logits of ±1e4 and nothing between, as in a map that looks at one kind of key only.
    "largest logits": lambda inputs, _: _scale_logits(inputs, 1e4, signs_only=True),
    # Up to a limit drawn from 10 to 1e4: one-hot rows, and ties that rounding decides.
    "large logits": lambda inputs, generator: _scale_logits(
        inputs, float(10 ** (1 + 3 * torch.rand((), generator=generator)))
    ),
    "equal maps": _equal_maps,
    "zero queries": lambda inputs, _: inputs.q.zero_(),  # every weight is the same
    "tiny keys": lambda inputs, _: inputs.k.mul_(2.0**-10),  # logits that hardly differ
    "one huge value": lambda inputs, _: inputs.v[:, -1, :, 0].fill_(64.0),
}


def _dense(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _transposed(x: Tensor) -> Tensor:
    return x.transpose(0, -1).contiguous().transpose(0, -1) if x.ndim else _dense(x)


def _surrounded(x: Tensor) -> Tensor:
    """A window into a larger tensor, with NaN all around it."""
    larger = x.new_full([size + 2 for size in x.shape], float("nan"))
    return larger[tuple(slice(1, size + 1) for size in x.shape)].copy_(x)


def _every_second(x: Tensor) -> Tensor:
    """Stride 2 in the last axis, NaN between the numbers."""
    if not x.ndim:
        return _dense(x)
    larger = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"))
    return larger[..., ::2].copy_(x)


def _expanded(x: Tensor) -> Tensor:
    """One row for the whole first axis, stride 0."""
    return x[:1].expand_as(x) if x.ndim and len(x) else _dense(x)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": _transposed,
    "surrounded": _surrounded,
    "every second": _every_second,
    "expanded": _expanded,
}


def _int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


BROKEN: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "q without its map axis": lambda a: {"q": a["q"][:, :, :, 0]},
    "q with one map": lambda a: {"q": a["q"][:, :, :, :1]},
    "q of integers": lambda a: {"q": a["q"].int()},
    "k of another batch": lambda a: {"k": torch.cat([a["k"], a["k"]])},
    "k of another width": lambda a: {"k": torch.cat([a["k"], a["k"]], -1)},
    "k of another dtype": lambda a: {"k": a["k"].to(torch.float8_e5m2)},
    "heads that do not divide": lambda a: {
        "k": torch.cat([a["k"]] * (a["q"].shape[2] + 1), 2),
        "v": torch.cat([a["v"]] * (a["q"].shape[2] + 1), 2),
    },
    "v of another length": lambda a: {"v": torch.cat([a["v"], a["v"]], 1)},
    "v without channels": lambda a: {"v": a["v"][..., :0]},
    "v elsewhere": lambda a: {"v": a["v"].to("meta")},
    "λ that is NaN": lambda a: {"lam": torch.full_like(a["lam"], torch.nan)},
    "λ in bfloat16": lambda a: {"lam": a["lam"].bfloat16()},
    "λ of four axes": lambda a: {"lam": a["lam"][(None,) * (4 - a["lam"].ndim)]},
    "λ that is text": lambda a: {"lam": "0.3"},
    "q that is a list": lambda a: {"q": a["q"].tolist()},
    "k that is missing": lambda a: {"k": None},
    "v that is sparse": lambda a: {"v": a["v"].detach().to_sparse()},
    "scale that is NaN": lambda a: {"scale": float("nan")},
    "scale that is infinite": lambda a: {"scale": float("-inf")},
    "scale that is a word": lambda a: {"scale": "small"},
    "window of 0": lambda a: {"window": 0},
    "window of half a token": lambda a: {"window": 0.5},
    "window that is a bool": lambda a: {"window": True},
    "padding of another length": lambda a: {
        "key_padding_mask": torch.ones(a["k"].shape[0], a["k"].shape[1] + 1, dtype=torch.bool)},
    "padding of numbers": lambda a: {"key_padding_mask": torch.ones(a["k"].shape[:2])},
    "lengths above S": lambda a: {
        "kv_lengths": _int32(*[a["k"].shape[1] + 1] * max(1, a["k"].shape[0]))},
    "lengths below 0": lambda a: {"kv_lengths": _int32(*[-1] * max(1, a["k"].shape[0]))},
    "lengths in int64": lambda a: {"kv_lengths": torch.zeros(a["k"].shape[0], dtype=torch.int64)},
    "documents that fall": lambda a: {"cu_seqlens": _int32(0, 2, 1, a["k"].shape[1])},
    "documents that end early": lambda a: {"cu_seqlens": _int32(0, a["k"].shape[1] - 1)},
    "an unknown backend": lambda a: {"backend": "referense"},
}  # fmt: skip
"""Changes to the arguments of a valid call that must raise ShapeError or BackendError."""
