"""Contenders on the attention operator: softmax attention twice, and every backend of ours.

T is PyTorch's ``scaled_dot_product_attention`` on the softmax twin. TC is the same softmax
attention computed by one of our own techniques, so that DIFF can be compared with softmax at equal
craft. Both read the very memory that the differential contenders read; in decoding each has a
cache of the layout its model would have.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from diffattn.lab.benchmark.checking import Exact
from diffattn.lab.benchmark.config import Case
from diffattn.lab.benchmark.contender_names import DIFF, SDPA, TC, T
from diffattn.lab.benchmark.flops import diff_flops, softmax_flops
from diffattn.lab.testing.inputs import DiffAttentionInputs, OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention
from diffattn.ops.inputs import backends
from diffattn.ops.softmax_attention import softmax_attention

TWO_CALLS = "flash_diff_attn_1"
MAP_BYTES_LIMIT = 4 * 2**30
"""Backends that hold maps are left out where forward and backward would take more."""
_HOLD_MAPS = ("reference", "decode")
_MAP_SIZED_TENSORS = 10  # float32 tensors of one map of every head, in the reference's backward
_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One implementation, ready to run on one case."""

    name: str
    role: str
    """``"T"``, ``"TC"`` or ``"DIFF"``."""
    backend: str
    technique: str
    """Shared by a DIFF contender and its TC."""
    forward: Callable[[], Tensor]
    backward: Callable[[Tensor], object]
    check: Callable[[bool], dict[str, Any]]
    """``check(gradients)``: ``passed``, ``error``, ``budget`` and what was compared."""
    flops: int = 0
    tokens: int | None = None
    """Tokens that one run takes in; for models."""
    cache_bytes: int | None = None
    """Keys and values that it reads or writes; for generation."""
    refusal: str | None = None
    """Why it cannot run here."""


def operator_contenders(case: Case, only: tuple[str, ...] = ()) -> list[Contender]:
    """Every contender on one shape of the operator, T first.

    Args:
        case: Shape ``B``, ``H``, ``d``, ``N`` (and ``S``: cached keys), ``attention``.
        only: Names of backends besides T. Default: all.
    """
    inputs = make_diff_attention_inputs(
        op_case(case), dtype=case.torch_dtype, device=case.device, seed=0, drawn_on=case.device
    )
    softmax = SoftmaxInputs.from_differential(inputs)
    if case.mode == "decode":  # keys and values lie as a model's cache holds them
        inputs = replace(inputs, k=cached(inputs.k), v=cached(inputs.v))
        softmax = replace(softmax, k=cached(softmax.k), v=cached(softmax.v))
    # Exact values are the same for all that read the same memory.
    exact = (Exact.softmax(softmax.leaves()), Exact.diff(inputs))
    contenders = [
        softmax_contender(case, name, backend, run, softmax, exact[0], refusal=refusal)
        for name, backend, run, refusal in _sdpa_kernels(case, softmax)
    ]

    def wanted(operator: str) -> list[backends.Backend]:
        return [b for b in backends.table(operator) if not only or b.name in only]

    # "sdpa" is PyTorch's own call behind our checks: T without them.
    others = [b for b in wanted("softmax_attention") if b.name != SDPA]
    contenders += [_softmax_by(case, softmax, exact[0], backend) for backend in others]
    contenders += [_diff(case, inputs, exact[1], backend) for backend in wanted("diff_attention")]
    return contenders


def cached(x: Tensor) -> Tensor:
    """As a model's cache lies: ``[B, S, heads, ...]`` as a view of ``[B, heads, S, ...]``."""
    return x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()


def op_case(case: Case) -> OpCase:
    """The operator's shapes of one case."""
    shape = case.shape
    heads, dim, shared = shape["H"], shape["d"], shape.get("attention") == "v2"
    return OpCase(
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


@dataclass(frozen=True, kw_only=True, slots=True)
class SoftmaxInputs:
    """Inputs of the softmax twin: views of the differential ones wherever shapes allow it."""

    q: Tensor
    k: Tensor
    v: Tensor

    @classmethod
    def from_differential(cls, inputs: DiffAttentionInputs) -> "SoftmaxInputs":
        """V1: 2H heads, one per map, each with half of V. V2: H heads with map 1's queries."""
        q, k, v = (x.detach() for x in (inputs.q, inputs.k, inputs.v))
        if k.ndim == 5:
            q, k, v = q.flatten(2, 3), k.flatten(2, 3), v.unflatten(-1, (2, -1)).flatten(2, 3)
        else:
            q = q[:, :, :, 0].contiguous()
        leaves = (x.detach().requires_grad_() for x in (q, k, v))
        return cls(**dict(zip("qkv", leaves, strict=True)))

    def leaves(self) -> tuple[Tensor, ...]:
        """The tensors that get a gradient."""
        return self.q, self.k, self.v


def sdpa_of(inputs: SoftmaxInputs, kernel: SDPBackend | None = None) -> Tensor:
    """PyTorch's softmax attention, by its own choice of a kernel or by the given one."""
    q, k, v = (x.transpose(1, 2) for x in inputs.leaves())
    causal = q.shape[2] > 1  # one query sees every key
    if kernel is None:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    else:
        with sdpa_kernel(kernel):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return out.transpose(1, 2)


def _sdpa_kernels(
    case: Case, inputs: SoftmaxInputs
) -> list[tuple[str, str, Callable[[], Tensor], str | None]]:
    """T by each kernel of PyTorch; on a CPU there is one choice, which is named."""
    if case.device == "cpu":
        refusal = _refusal(partial(sdpa_of, inputs, SDPBackend.FLASH_ATTENTION))
        name = "math" if refusal else "flash"
        return [(SDPA, f"sdpa ({name})", partial(sdpa_of, inputs), None)]
    kernels: list[tuple[str, str, Callable[[], Tensor], str | None]] = []
    for name, kernel in _KERNELS.items():
        run = partial(sdpa_of, inputs, kernel)
        kernels.append((f"sdpa_{name}", f"sdpa ({name})", run, _refusal(run)))
    return kernels


@torch.no_grad()
def _refusal(run: Callable[[], Tensor]) -> str | None:
    with warnings.catch_warnings():  # PyTorch warns why a kernel does not fit
        warnings.simplefilter("ignore")
        try:
            run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            return " ".join(str(error).split())
    return None


def softmax_contender(
    case: Case,
    name: str,
    backend: str,
    run: Callable[[], Tensor],
    inputs: SoftmaxInputs,
    exact: Exact,
    *,
    role: str = T,
    technique: str | None = None,
    refusal: str | None = None,
) -> Contender:
    """A contender on the softmax twin."""
    leaves = inputs.leaves()
    facts, num_heads = facts_of(case, *leaves), leaves[0].shape[2]
    return Contender(
        name=name,
        role=role,
        backend=backend,
        technique=technique or backend,
        forward=run,
        backward=Gradients(leaves),
        check=partial(exact.check, run),
        flops=softmax_flops(facts, batch=case.shape["B"], num_heads=num_heads, mode=case.mode),
        refusal=refusal,
    )


def diff_contender(
    case: Case,
    name: str,
    backend: backends.Backend,
    run: Callable[[], Tensor],
    inputs: DiffAttentionInputs,
    exact: Exact,
    refusal: str | None,
) -> Contender:
    """A contender on differential attention."""
    facts = facts_of(case, inputs.q, inputs.k, inputs.v)
    batch, num_heads = case.shape["B"], case.shape["H"]
    return Contender(
        name=name,
        role=DIFF,
        backend=backend.name,
        technique=name,
        forward=run,
        backward=Gradients(tuple(inputs.tensors().values())),
        check=partial(exact.check, run),
        flops=diff_flops(facts, backend.name, batch=batch, num_heads=num_heads, mode=case.mode),
        refusal=refusal,
    )


def _softmax_by(
    case: Case, inputs: SoftmaxInputs, exact: Exact, backend: backends.Backend
) -> Contender:
    leaves: tuple[Any, ...] = inputs.leaves()
    operator: Any = softmax_attention
    run = partial(operator, *leaves, backend=backend.name)
    refusal = _refuses(case, backend, facts_of(case, *leaves))
    name = f"softmax_{backend.name}"
    return softmax_contender(case, name, backend.name, run, inputs, exact, role=TC, refusal=refusal)


def _diff(
    case: Case, inputs: DiffAttentionInputs, exact: Exact, backend: backends.Backend
) -> Contender:
    tensors = inputs.tensors().values()
    run = partial(_operator(case, backend.name), *tensors, backend=backend.name)
    refusal = _refuses(case, backend, facts_of(case, inputs.q, inputs.k, inputs.v))
    return diff_contender(case, backend.name, backend, run, inputs, exact, refusal)


def _refuses(case: Case, backend: backends.Backend, facts: backends.Inputs) -> str | None:
    return (
        backend.refuses(facts)
        or interpreted(case, backend)
        or _too_large(case, backend.name, facts)
    )


def _operator(case: Case, backend: str) -> Callable[..., Tensor]:
    """As it is used: FlexAttention is fused under torch.compile only.

    PyTorch keeps 8 compiled forms of one function, whoever compiled them, and runs it unfused from
    the ninth on, so what earlier cases compiled is forgotten. ``fullgraph``: it raises where it
    would run any part unfused.
    """
    if backend == "flex" and case.device == "cuda":
        torch.compiler.reset()
        compiled: Callable[..., Tensor] = torch.compile(
            diff_attention, dynamic=False, fullgraph=True
        )
        return compiled
    return diff_attention


def facts_of(case: Case, q: Tensor, k: Tensor, v: Tensor) -> backends.Inputs:
    """The facts that backends are chosen by, with gradients where the case has them."""
    with torch.set_grad_enabled("backward" in case.mode):
        return backends.describe(q, k, v)


def interpreted(case: Case, backend: backends.Backend) -> str | None:
    """Why a kernel is not timed on a CPU."""
    kernel = backend.devices is not None and "cuda" in backend.devices
    if case.device == "cpu" and kernel and backend.name != "flex":
        return "runs in an interpreter on cpu, whose time says nothing"
    return None


def _too_large(case: Case, backend: str, facts: backends.Inputs) -> str | None:
    fused = backend != "flex" or case.device == "cuda"
    if backend not in _HOLD_MAPS and fused:
        return None
    maps = 4 * case.shape["B"] * case.shape["H"] * facts.num_queries * facts.num_keys
    if maps * _MAP_SIZED_TENSORS <= MAP_BYTES_LIMIT:
        return None
    return (
        f"its maps would take about {maps * _MAP_SIZED_TENSORS / 2**30:.1f} GiB, "
        f"the limit is {MAP_BYTES_LIMIT / 2**30:.0f}"
    )


class Gradients:
    """Gradients of every input, for a fixed gradient of the output, drawn where the output lies."""

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
