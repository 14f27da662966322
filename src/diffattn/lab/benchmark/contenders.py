"""Contenders on the attention operator: softmax attention (T and TC), and all backends (DIFF).

T is PyTorch's ``scaled_dot_product_attention`` on the softmax twin. TC is the same softmax
attention, computed by a technique of ours, so that DIFF is compared with softmax attention of the
same technique. Both read the same memory as DIFF. In decoding, keys and values have the layout of a
model's cache.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from diffattn.lab.benchmark.checking import Exact
from diffattn.lab.benchmark.config import Case
from diffattn.lab.benchmark.contender_names import (
    DIFF,
    FLASH_4,
    FLASH_4_ONE,
    SDPA,
    TC,
    TWO_CUDNN,
    T,
)
from diffattn.lab.benchmark.flops import diff_flops, softmax_flops
from diffattn.lab.testing.inputs import DiffAttentionInputs, OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention
from diffattn.ops.backends.composed import flash_diff_attn_1
from diffattn.ops.inputs import backends
from diffattn.ops.softmax_attention import softmax_attention

TWO_CALLS = "flash_diff_attn_1"
MAP_BYTES_LIMIT = 4 * 2**30
"""A backend that holds whole maps is left out if forward and backward would take more bytes."""
_HOLD_MAPS = ("reference", "decode")
_MAP_SIZED_TENSORS = 10  # float32 tensors of one map of every head, in the reference's backward
_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
Qkv = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One implementation, ready to run on one case."""

    name: str
    role: str
    """``"T"``, ``"TC"`` or ``"DIFF"``."""
    backend: str
    technique: str
    """A DIFF contender is compared with the TC of the same technique."""
    forward: Callable[[], Tensor]
    backward: Callable[[Tensor], object]
    check: Callable[[bool], dict[str, Any]]
    """``check(gradients)`` returns a result as of :meth:`Exact.check`."""
    flops: int = 0
    tokens: int | None = None
    """Number of tokens that one run reads; ``None`` for operators."""
    cache_bytes: int | None = None
    """Bytes of keys and values that one run reads or writes; ``None`` except in generation."""
    refusal: str | None = None
    """Why the contender cannot run on this case; ``None`` if it can."""


def operator_contenders(case: Case, only: tuple[str, ...] = ()) -> list[Contender]:
    """Every contender on one shape of the operator, T first; ``only`` names contenders besides T.

    The case's shape has ``B``, ``H``, ``d``, ``N`` (and ``S``: cached keys), ``attention``.
    """
    inputs = draw_inputs(case)
    q, k, v = softmax_twin(inputs)
    if case.mode == "decode":  # the layout of a model's cache
        inputs = replace(inputs, k=cached(inputs.k), v=cached(inputs.v))
        k, v = cached(k), cached(v)
    # Contenders that read the same memory share their exact values.
    softmax, diff = Exact.softmax((q, k, v)), Exact.diff(inputs)
    contenders = [
        contender(case, softmax, name, backend, run, role=T, refusal=refusal)
        for name, backend, run, refusal in _sdpa_kernels(case, (q, k, v))
    ]
    # No TC for "sdpa": it would be T with our checks of the inputs.
    tables = (
        (softmax, "softmax_attention", "softmax_", TC),
        (diff, "diff_attention", "", DIFF),
    )
    for exact, table, prefix, role in tables:
        for backend in backends.table(table):
            name = backend.name
            if (only and name not in only) or (name == SDPA and role == TC):
                continue
            leaves: tuple[Any, ...] = tuple(exact.leaves.values())
            operator: Any = softmax_attention if role == TC else _operator(case, name)
            run = partial(operator, *leaves, backend=name)
            facts = facts_of(case, *leaves[:3])
            refusal = refuses(case, backend, facts) or _too_large(case, name, facts)
            contenders.append(
                contender(case, exact, f"{prefix}{name}", name, run, role=role, refusal=refusal)
            )
    return contenders + _peers(case, diff, only)


def _peers(case: Case, exact: Exact, only: tuple[str, ...]) -> list[Contender]:
    """DIFF contenders made of other packages' kernels, which ours should beat; on a GPU only."""
    if case.device != "cuda" or case.mode == "decode":
        return []
    leaves = tuple(exact.leaves.values())
    calls: dict[str, Callable[..., Tensor]] = {TWO_CUDNN: two_calls_by_cudnn}
    if has_flash_attention_4() and leaves[1].ndim == 4:
        calls[FLASH_4_ONE] = one_call_of_flash_attention_4
    rows = []
    for name, call in calls.items():
        if not only or name in only:
            run = partial(call, *leaves)
            refusal = _refusal(run)
            row = contender(case, exact, name, TWO_CALLS, run, role=DIFF, refusal=refusal)
            rows.append(replace(row, technique=name))
    return rows


def has_flash_attention_4() -> bool:
    """Whether package ``flash-attn-4`` is installed."""
    return bool(find_spec("flash_attn") and find_spec("flash_attn.cute"))


def flash_attention_4(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention by package ``flash-attn-4``; q ``[B, T, H, D]``, 16 bits."""
    attend: Any = import_module("flash_attn.cute").flash_attn_func
    out = attend(q, k, v, causal=True)
    return out[0] if isinstance(out, tuple) else out


def one_call_of_flash_attention_4(q: Tensor, k: Tensor, v: Tensor, lam: Tensor) -> Tensor:
    """V2 as its authors compute it: heads 2i and 2i + 1 are the maps of head i, keys are shared."""
    first, second = flash_attention_4(q.flatten(2, 3), k, v).unflatten(2, (-1, 2)).unbind(3)
    return (first - lam.expand(first.shape[:3])[..., None] * second).to(q.dtype)


def two_calls_by_cudnn(q: Tensor, k: Tensor, v: Tensor, lam: Tensor) -> Tensor:
    """One cuDNN call for each map, with the whole V; arguments as of ``diff_attention``."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return flash_diff_attn_1(q, k, v, lam, scale=q.shape[-1] ** -0.5)


def draw_inputs(case: Case) -> DiffAttentionInputs:
    """Draw the tensors of the operator in the shapes of one case."""
    shape = case.shape
    heads, dim, shared = shape["H"], shape["d"], shape.get("attention") == "v2"
    op_case = OpCase(
        name="benchmark",
        num_queries=shape["N"],
        num_keys=shape.get("S"),
        batch=shape["B"],
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=dim,
        value_dim=dim if shared else 2 * dim,
        shared_keys=shared,
        lam_axes="bth" if shared else "",
    )
    return make_diff_attention_inputs(
        op_case, dtype=case.torch_dtype, device=case.device, seed=0, drawn_on=case.device
    )


def cached(x: Tensor) -> Tensor:
    """A copy in a cache's layout: ``[B, S, heads, ...]`` as a view of ``[B, heads, S, ...]``."""
    return x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()


def softmax_twin(inputs: DiffAttentionInputs) -> Qkv:
    """Inputs of the softmax twin: views of the differential inputs, but V2's queries are copied.

    V1: 2H heads, one per map, each with half of V. V2: H heads with the queries of map 1.
    """
    q, k, v = (x.detach() for x in (inputs.q, inputs.k, inputs.v))
    if k.ndim == 5:
        q, k, v = q.flatten(2, 3), k.flatten(2, 3), v.unflatten(-1, (2, -1)).flatten(2, 3)
    else:
        q = q[:, :, :, 0].contiguous()
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    return q, k, v


def sdpa_of(inputs: Qkv, kernel: SDPBackend | None = None) -> Tensor:
    """PyTorch's softmax attention, with the given kernel or the one that PyTorch chooses."""
    q, k, v = (x.transpose(1, 2) for x in inputs)
    causal = q.shape[2] > 1  # a single query sees every key
    with nullcontext() if kernel is None else sdpa_kernel(kernel):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def _sdpa_kernels(
    case: Case, inputs: Qkv
) -> Iterator[tuple[str, str, Callable[[], Tensor], str | None]]:
    """T with each kernel of PyTorch: name, backend, call, refusal. On a CPU, PyTorch's choice."""
    if case.device == "cpu":
        refusal = _refusal(partial(sdpa_of, inputs, SDPBackend.FLASH_ATTENTION))
        yield SDPA, f"sdpa ({'math' if refusal else 'flash'})", partial(sdpa_of, inputs), None
        return
    for name, kernel in _KERNELS.items():
        run = partial(sdpa_of, inputs, kernel)
        yield f"sdpa_{name}", f"sdpa ({name})", run, _refusal(run)
    if case.mode != "decode" and has_flash_attention_4():
        run = partial(flash_attention_4, *inputs)
        yield FLASH_4, "FlashAttention 4", run, _refusal(run)


@torch.no_grad()
def _refusal(run: Callable[[], Tensor]) -> str | None:
    with warnings.catch_warnings():  # PyTorch gives the reason as a warning and an error
        warnings.simplefilter("ignore")
        try:
            run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            return " ".join(str(error).split())
    return None


def contender(
    case: Case,
    exact: Exact,
    name: str,
    backend: str,
    run: Callable[[], Tensor],
    *,
    role: str,
    technique: str | None = None,
    refusal: str | None = None,
) -> Contender:
    """Build a contender on the tensors of ``exact``: differential or softmax attention."""
    leaves = tuple(exact.leaves.values())
    facts = facts_of(case, *leaves[:3])
    size: dict[str, Any] = {"batch": case.shape["B"], "mode": case.mode}
    if exact.maps == 1:
        flops = softmax_flops(facts, num_heads=leaves[0].shape[2], **size)
    else:
        flops = diff_flops(facts, backend, num_heads=case.shape["H"], **size)
    return Contender(
        name=name,
        role=role,
        backend=backend,
        technique=technique or (name if role == DIFF else backend),
        forward=run,
        backward=Gradients(leaves),
        check=partial(exact.check, run),
        flops=flops,
        refusal=refusal,
    )


def _operator(case: Case, backend: str) -> Callable[..., Tensor]:
    """``diff_attention``, compiled for the backend ``flex`` on a GPU, which is fused only then.

    PyTorch keeps 8 compiled forms of a function and runs it unfused from the ninth on. So the forms
    of earlier cases are dropped. With ``fullgraph`` it raises instead of running a part unfused.
    """
    if backend == "flex" and case.device == "cuda":
        torch.compiler.reset()
        return torch.compile(diff_attention, dynamic=False, fullgraph=True)
    return diff_attention


def facts_of(case: Case, q: Tensor, k: Tensor, v: Tensor) -> backends.Inputs:
    """The facts of a call by which backends are chosen, with gradients if the case has them."""
    with torch.set_grad_enabled("backward" in case.mode):
        return backends.describe(q, k, v)


def refuses(case: Case, backend: backends.Backend, facts: backends.Inputs) -> str | None:
    """Why a backend cannot run, or why a kernel is not timed on a CPU; ``None`` if it is timed."""
    refusal = backend.refuses(facts)
    kernel = backend.devices is not None and "cuda" in backend.devices
    if not refusal and case.device == "cpu" and kernel and backend.name != "flex":
        return "runs in an interpreter on cpu, whose time says nothing"
    return refusal


def _too_large(case: Case, backend: str, facts: backends.Inputs) -> str | None:
    fused = backend != "flex" or case.device == "cuda"
    size = 4 * case.shape["B"] * case.shape["H"] * facts.num_queries * facts.num_keys
    size *= _MAP_SIZED_TENSORS
    if (backend not in _HOLD_MAPS and fused) or size <= MAP_BYTES_LIMIT:
        return None
    limit = MAP_BYTES_LIMIT / 2**30
    return f"its maps would take about {size / 2**30:.1f} GiB, the limit is {limit:.0f}"


class Gradients:
    """Computes the gradients of all inputs, for a fixed random gradient of the output."""

    def __init__(self, leaves: tuple[Tensor, ...]) -> None:
        self.leaves = leaves
        self.weights: Tensor | None = None

    def __call__(self, out: Tensor) -> object:
        """Run the backward pass of an output."""
        if self.weights is None:
            generator = torch.Generator(out.device).manual_seed(1)
            drawn = torch.randn(out.shape, generator=generator, device=out.device)
            self.weights = drawn.to(out)
        return torch.autograd.grad(out, self.leaves, self.weights)
