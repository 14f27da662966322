"""The Triton and Hopper kernels as operators of PyTorch: schemas, shapes for tracing, gradients."""

import os
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from diffattn.errors import BackendError
from diffattn.ops.inputs.kernel_support import BY_MAP
from diffattn.ops.inputs.masking import CAUSAL, SCHEMA, AttentionMask
from diffattn.ops.inputs.operators import register_gradient, registered, run, run_backward

MAX_PROGRAMS = 65_535
"""Largest size of the second and third axis of a CUDA grid, which hold heads and batch rows."""
_TENSORS = "Tensor q, Tensor k, Tensor v, Tensor? lam"


def diff_attention(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    r"""Differential attention in one pass over the keys; V is read once for both maps.

    Arguments and result as in :func:`diffattn.ops.backends.reference.forward`, not empty and
    of the dtypes and widths in the backend's row. dQ is summed in an order that may change from run
    to run, except under ``torch.use_deterministic_algorithms``. Second derivatives are those of the
    definition. Without a gradient only the output is written.

    Source: arXiv:2410.05258v2, Eq. (1).
    """
    return run(_diff_attention, _diff_attention_inference, q, k, v, lam, scale, *mask.flat())


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    """Softmax attention by the same kernels with one map, as a baseline for timings.

    Source: arXiv:1706.03762, Eq. (1).

    Arguments and result as in :func:`diffattn.ops.backends.composed.attend`.
    """
    call = (q[:, :, :, None], k, v, None, scale, *mask.flat())
    return run(_diff_attention, _diff_attention_inference, *call)


def register_kernel(name: str, options: str, launch: Any, backward_of: Any) -> tuple[Any, Any]:
    """The operators of a forward kernel: of O, O2 and log row sums, with a gradient; of O alone.

    Without λ there is one map: q is ``[B, T, H, 1, D]``, and O2 and λ's gradient ``[B, T, H, 0]``.
    ``options`` is the schema of scale, causal and other options. ``backward_of`` gets their values
    and returns the operator of the backward pass with its options.
    """

    @registered(f"diffattn::{name}", schema=f"({_TENSORS}, {options}) -> (Tensor, Tensor, Tensor)")
    def forward(*call: Any) -> tuple[Tensor, Tensor, Tensor]:
        return _launch_in_slices(launch, 3, *call, inference=False)

    @registered(f"diffattn::{name}_inference", schema=f"({_TENSORS}, {options}) -> Tensor")
    def inference(*call: Any) -> Tensor:
        return _launch_in_slices(launch, 3, *call, inference=True)[0]

    def make_results(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        batch, num_queries, num_heads, num_maps = q.shape[:4]
        o = q.new_empty(batch, num_queries, num_heads, v.shape[-1])
        o2 = q.new_empty(batch, num_queries, num_heads, v.shape[-1] if num_maps == 2 else 0)
        return o, o2, q.new_empty(batch, num_heads, num_maps, num_queries, dtype=torch.float32)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:4], *output, *inputs[7:])
        ctx.options = inputs[4:7]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, grad: Tensor | None, *others: Any) -> tuple[Tensor | None, ...]:
        num_options = len(ctx.needs_input_grad) - 4
        if grad is None:
            return (None,) * (4 + num_options)
        q, k, v, lam, o, o2, lse, *masks = ctx.saved_tensors
        backward, last = backward_of(*ctx.options, *masks)
        call = (grad, q, k, v, lam, o, o2, lse, *last)
        *gradients, of_lambda = run_backward(ctx, backward, *call)
        return *gradients, None if lam is None else of_lambda, *(None,) * num_options

    forward.register_fake(make_results)
    inference.register_fake(lambda *call: make_results(*call)[0])
    register_gradient(forward, keep, differentiate)
    return forward, inference


def register_backward(name: str, options: str, launch: Any) -> Any:
    """The operator of a backward kernel, which gives the gradients of q, k, v and λ."""

    @registered(
        f"diffattn::{name}",
        schema="(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? lam, Tensor o, Tensor o2, "
        f"Tensor lse, {options}) -> (Tensor, Tensor, Tensor, Tensor)",
    )
    def backward(*call: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        *gradients, of_lambda = _launch_in_slices(launch, 4, *call)
        if call[4] is not None and of_lambda.shape != call[4].shape:  # it was expanded for slices
            of_lambda = of_lambda.sum_to_size(call[4].shape)
        return *gradients, of_lambda

    @backward.register_fake
    def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None, *rest: Any) -> Any:
        of_lambda = q.new_empty(*q.shape[:3], 0, dtype=torch.float32) if lam is None else lam
        return tuple(x.new_empty(x.shape) for x in (q, k, v, of_lambda))

    return backward


def _launch_in_slices(launch: Any, lam_at: int, *call: Any, **options: Any) -> Any:
    """Results of a launch, or of several if a CUDA grid does not take all batch rows.

    λ, argument number ``lam_at``, follows q, k and v, and broadcasts to ``[B, T, H]``. All other
    tensors have B rows, as borders of documents need B = 1.
    """
    queries = call[lam_at - 3]
    with torch.cuda.device_of(queries):
        batch = len(queries)
        if batch <= MAX_PROGRAMS:
            return launch(*call, **options)
        whole = list(call)
        if call[lam_at] is not None:
            whole[lam_at] = call[lam_at].expand(queries.shape[:3])
        slices = [x.split(MAX_PROGRAMS) if isinstance(x, Tensor) else repeat(x) for x in whole]
        parts = [launch(*part, **options) for part in zip(*slices, strict=False)]
        return tuple(torch.cat(results) for results in zip(*parts, strict=True))


def _launch_forward(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None, scale: float, *mask: Any, inference: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from diffattn.ops.triton import forward, launch

    seen = launch.key_mask(q, k, AttentionMask(*mask))
    return forward.forward(q, k, v, lam, scale=scale, mask=seen, inference=inference)


def _launch_backward(grad: Tensor, q: Tensor, k: Tensor, *call: Any) -> tuple[Tensor, ...]:
    from diffattn.ops.triton import backward, launch

    *tensors, scale = call[:6]
    seen = launch.key_mask(q, k, AttentionMask(*call[6:]), gradient=True)
    return backward.backward(grad, q, k, *tensors, scale=scale, mask=seen)


_OPTIONS = f"float scale, {SCHEMA}"
diff_attention_backward = register_backward(
    "triton_diff_attention_backward", _OPTIONS, _launch_backward
)
_diff_attention, _diff_attention_inference = register_kernel(
    "triton_diff_attention",
    _OPTIONS,
    _launch_forward,
    lambda *options: (diff_attention_backward, options),
)


def decode(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    r"""Differential attention of at most 16 queries against a long cache, without a gradient.

    Arguments and result as in :func:`diffattn.ops.backends.reference.forward`, of the dtypes
    and widths in the backend's row, without ``cu_seqlens``.

    Source: arXiv:2410.05258v2, Eq. (1).
    """
    if mask.cu_seqlens is not None:
        where = "diff_attention: backend 'triton_decode'"
        raise BackendError(f"{where} needs a cache without document borders, got cu_seqlens.")
    return triton_decode(q, k, v, lam, scale, *mask.flat()[:-1])


def paged_forward(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    lam: Tensor | None,
    block_table: Tensor,
    *,
    scale: float,
    mask: AttentionMask,
) -> Tensor:
    r"""Differential attention of at most 16 queries per sequence against pages, read in place.

    Arguments and result as in :func:`diffattn.ops.attention.paged_decode`, of
    the dtypes and widths in the backend's row; the mask has ``kv_lengths`` and no padding.

    Source: arXiv:2410.05258v2, Eq. (1).
    """
    assert mask.kv_lengths is not None
    return triton_paged_decode(
        q, k_pages, v_pages, lam, block_table, mask.kv_lengths, scale, mask.causal, mask.window
    )


def paged_softmax(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, **options: Any
) -> Tensor:
    """Softmax attention by the kernel of :func:`paged_forward`, as a baseline in benchmarks.

    Source: arXiv:1706.03762, Eq. (1).

    Arguments are those of :func:`paged_forward` without λ and without an axis of maps: q
    ``[B, T, H, D]``, k_pages ``[pages, page size, Hkv, D]``.
    """
    return paged_forward(q, k_pages, v_pages, None, block_table, **options)


_OF_DECODE = "float scale, bool causal, SymInt? window"


@registered(
    "diffattn::triton_decode",
    schema=f"({_TENSORS}, {_OF_DECODE}, Tensor? key_padding_mask, Tensor? kv_lengths) -> Tensor",
)
def triton_decode(*call: Any) -> Tensor:
    """The operator behind :func:`decode`. The compiler does not trace into it.

    Without λ it is softmax attention, with ``q`` ``[B, T, H, D]``.
    """
    q, k, v, lam, scale, *mask = call
    return _launch_decode(q, k, v, lam, scale, AttentionMask(*mask))


@registered(
    "diffattn::triton_paged_decode",
    schema=f"({_TENSORS}, Tensor block_table, Tensor kv_lengths, {_OF_DECODE}) -> Tensor",
)
def triton_paged_decode(*call: Any) -> Tensor:
    """The operator behind :func:`paged_forward` and :func:`paged_softmax`."""
    q, k_pages, v_pages, lam, block_table, kv_lengths, scale, causal, window = call
    mask = AttentionMask(causal, window, kv_lengths=kv_lengths)
    return _launch_decode(q, k_pages, v_pages, lam, scale, mask, block_table)


def _launch_decode(
    q: Tensor, k: Tensor, v: Tensor, lam: Any, scale: float, mask: AttentionMask, table: Any = None
) -> Tensor:
    from diffattn.ops.triton import decode as kernel

    with torch.cuda.device_of(q):  # a kernel is launched on the current device
        return kernel.decode(q, k, v, lam, scale=scale, mask=mask, block_table=table)


for _op in (triton_decode, triton_paged_decode):
    _op.register_fake(lambda q, k, v, *rest: q.new_empty(*q.shape[:3], v.shape[-1]))


def hopper_diff_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    *,
    scale: float,
    mask: AttentionMask = CAUSAL,
    own_backward: bool = True,
) -> Tensor:
    r"""Differential attention on Hopper: one warpgroup per map, each tile of V shared.

    Arguments and result as in :func:`diffattn.ops.backends.reference.forward`, not empty and
    of the dtypes and widths in the backend's row; scale above 0, no mask besides ``causal``.
    ``own_backward`` selects the Hopper backward pass, else the Triton kernels'.

    Source: arXiv:2410.05258v2, Eq. (1).
    """
    call = (q, k, v, lam, scale, mask.causal, own_backward)
    return run(_hopper, _hopper_inference, *call)


def _launch_hopper_forward(*call: Any, inference: bool) -> tuple[Tensor, Tensor, Tensor]:
    from diffattn.ops.hopper import by_map, forward

    *tensors, scale, causal, _ = call
    form = by_map if os.environ.get(BY_MAP) == "1" else forward
    return form.forward(*tensors, scale=scale, causal=causal, inference=inference)


def _launch_hopper_backward(*call: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from diffattn.ops.hopper import backward

    *tensors, scale, causal = call
    return backward.backward(*tensors, scale=scale, causal=causal)


def _backward_of(scale: float, causal: bool, own_backward: bool) -> tuple[Any, tuple[Any, ...]]:
    if own_backward:
        return hopper_backward, (scale, causal)
    return diff_attention_backward, (scale, causal, None, None, None, None)


hopper_backward = register_backward(
    "hopper_diff_attention_backward", "float scale, bool causal", _launch_hopper_backward
)
_hopper, _hopper_inference = register_kernel(
    "hopper_diff_attention",
    "float scale, bool causal, bool own_backward",
    _launch_hopper_forward,
    _backward_of,
)
