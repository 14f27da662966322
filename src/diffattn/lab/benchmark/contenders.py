"""Contenders on the attention operator: softmax attention (T and TC), and all backends (DIFF).

T is PyTorch's ``scaled_dot_product_attention`` on the softmax twin. TC is the same softmax
attention, computed by a technique of ours, so that DIFF is compared with softmax attention of the
same technique. Both read the same memory as DIFF.
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
from diffattn.lab.benchmark.config import DIFF, FLASH_4, FLASH_4_ONE, SDPA, TC, TWO_CUDNN, Case, T
from diffattn.lab.testing.inputs import DiffAttentionInputs, OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention
from diffattn.ops.backends.composed import flash_diff_attn_1
from diffattn.ops.inputs import backends
from diffattn.ops.softmax_attention import softmax_attention

_EACH_MAP = (
    *("composed", "flash_diff_attn_1", "flash_diff_attn_2", "flex"),
    # The forward computes O1 and O2 apart for the backward, which needs dP and dV only once.
    *("triton", "hopper", "triton_decode"),
)
"""Backends that apply each map to V. The others combine the maps first."""
_SHARED_BACKWARD = ("triton", "hopper")
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
    """One implementation, ready to run on one case; its role is T, TC or DIFF."""

    name: str
    role: str
    backend: str
    technique: str
    """A DIFF contender is compared with the TC of the same technique."""
    forward: Callable[[], Tensor]
    backward: Callable[[Tensor], object]
    check: Callable[[bool], dict[str, Any]]
    """``check(gradients)`` returns a result as of :meth:`Exact.check`."""
    flops: int = 0
    tokens: int | None = None
    """Number of tokens that one run of a model reads."""
    cache_bytes: int | None = None
    """In generation: bytes of keys and values that one run reads or writes."""
    refusal: str | None = None
    """Why the contender cannot run on this case."""


def operator_contenders(case: Case, only: tuple[str, ...] = ()) -> list[Contender]:
    """Every contender on one shape of the operator, T first, or T and ``only`` these."""
    inputs = draw_inputs(case)
    q, k, v = softmax_twin(inputs)
    if case.mode == "decode":  # the layout of a model's cache
        inputs = replace(inputs, k=cached(inputs.k), v=cached(inputs.v))
        k, v = cached(k), cached(v)
    # Contenders that read the same memory share their exact values.
    softmax, diff = Exact.softmax((q, k, v)), Exact(inputs)
    contenders = [
        contender(case, softmax, name, backend, run, role=T, refusal=refusal)
        for name, backend, run, refusal in _sdpa_kernels(case, (q, k, v))
    ]
    # No TC for "sdpa": it would be T with our checks of the inputs.
    tables = ((softmax, "softmax_attention", "softmax_", TC), (diff, "diff_attention", "", DIFF))
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
            rows.append(replace(row, backend=name))
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
    """V1: views as 2H heads, one per map, with half of V. V2: H heads, queries of map 1 copied."""
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
    heads, form = (case.shape["H"], backend) if exact.maps == 2 else (leaves[0].shape[2], None)
    return Contender(
        name=name,
        role=role,
        backend=backend,
        technique=technique or (name if role == DIFF else backend),
        forward=run,
        backward=partial(_gradients, leaves, []),
        check=partial(exact.check, run),
        flops=count_flops(facts, form, batch=case.shape["B"], num_heads=heads, mode=case.mode),
        refusal=refusal,
    )


def pairs(num_queries: int, num_keys: int) -> int:
    """Number of visible query-key pairs of one head, causal and aligned at the last key."""
    return sum(max(0, num_keys - num_queries + i + 1) for i in range(num_queries))


def count_flops(
    inputs: backends.Inputs, backend: str | None, *, batch: int, num_heads: int, mode: str
) -> int:
    """Operations of ``diff_attention`` by a backend, or of softmax attention (``None``).

    With P query-key pairs per head, a product of width w over all heads takes 2 P w operations. In
    each form, scores have total width s and values total width v (value width Dv):

    ======================================== =============== ===============
    form                                     s               v
    ======================================== =============== ===============
    softmax attention of H heads             H D             H D
    maps combined before V                   2 H D           H Dv
    each map applied to V                    2 H D           2 H Dv
    V1 in one call, queries padded to 2D     4 H D           2 H Dv
    V1 in four calls                         4 H D           2 H Dv
    ======================================== =============== ===============

    The width of the forward pass is s + v, of the backward pass 2 s + 2 v. All forms but the
    reference compute the maps again in the backward pass, which adds s. Masked pairs are not
    counted, even if a form computes them, so rates are of useful work.
    """
    scores = values = backward_values = num_heads * inputs.head_dim
    if backend is not None:
        pads = backend == "composed" and inputs.value_dim == 2 * inputs.head_dim
        scores *= 4 if pads or backend == "flash_diff_attn_2" else 2
        value = num_heads * inputs.value_dim
        values = 2 * value if backend in _EACH_MAP else value
        backward_values = value if backend in _SHARED_BACKWARD else values
    forward = scores + values
    backward = (2 if backend == "reference" else 3) * scores + 2 * backward_values
    width = {"backward": backward, "forward_backward": forward + backward}.get(mode, forward)
    return 2 * batch * pairs(inputs.num_queries, inputs.num_keys) * width


def _operator(case: Case, backend: str) -> Callable[..., Tensor]:
    """``diff_attention``, compiled for the backend ``flex`` on a GPU, which is fused only then."""
    if backend == "flex" and case.device == "cuda":
        # PyTorch keeps 8 compiled forms of a function and runs it unfused from the ninth on.
        torch.compiler.reset()
        return torch.compile(diff_attention, dynamic=False, fullgraph=True)
    return diff_attention


def facts_of(case: Case, q: Tensor, k: Tensor, v: Tensor) -> backends.Inputs:
    """The facts of a call by which backends are chosen."""
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
    size = 4 * _MAP_SIZED_TENSORS * case.shape["B"] * case.shape["H"]
    size *= facts.num_queries * facts.num_keys
    if (backend not in _HOLD_MAPS and fused) or size <= MAP_BYTES_LIMIT:
        return None
    limit = MAP_BYTES_LIMIT / 2**30
    return f"its maps would take about {size / 2**30:.1f} GiB, the limit is {limit:.0f}"


def _gradients(leaves: tuple[Tensor, ...], drawn: list[Tensor], out: Tensor) -> object:
    """The gradients of all inputs, for a random gradient of the output that is ``drawn`` once."""
    if not drawn:
        generator = torch.Generator(out.device).manual_seed(1)
        weights = torch.randn(out.shape, generator=generator, device=out.device)
        drawn.append(weights.to(out))
    return torch.autograd.grad(out, leaves, drawn[0])
