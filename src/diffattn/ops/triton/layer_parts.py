"""Kernels of what a layer does around its operator: rotation, norm of the heads, λ."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffattn.ops.triton import launch
from diffattn.ops.triton.launch import LOG2_E, dense_rows, num_blocks, run_kernel

_ROWS = 16
"""Heads that a program of the norm reads at once."""
_NUMBERS = 1_024
"""Logits of a program of the sigmoid."""
_SUMMED, _COLUMNS = 64, 32
"""Rows and columns that a program of the sum over rows reads at once."""


@triton.jit
def _rotate_heads(
    p_x, p_y, stride_h, num_heads, b_cos1, b_cos2, b_sin1, b_sin2,
    HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    """All heads of one token; ``p_y`` is dense."""
    b_heads = tl.arange(0, BLOCK_H)[:, None]
    b_columns = tl.arange(0, BLOCK_HALF)[None, :]
    mask = (b_heads < num_heads) & (b_columns < HALF)
    p_x += b_heads.to(tl.int64) * stride_h + b_columns
    p_y += b_heads * 2 * HALF + b_columns
    b_x1 = tl.load(p_x, mask=mask, other=0.0).to(tl.float32)
    b_x2 = tl.load(p_x + HALF, mask=mask, other=0.0).to(tl.float32)
    b_y1 = b_x1 * b_cos1[None, :] - b_x2 * b_sin1[None, :]
    b_y2 = b_x2 * b_cos2[None, :] + b_x1 * b_sin2[None, :]
    tl.store(p_y, b_y1.to(p_y.dtype.element_ty), mask=mask)
    tl.store(p_y + HALF, b_y2.to(p_y.dtype.element_ty), mask=mask)


@triton.jit
def _rotate_kernel(
    p_q, p_k, p_cos, p_sin, p_rotated_q, p_rotated_k,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_cb, stride_ct, stride_sb, stride_st, num_tokens, num_q, num_k,
    HALF: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_HALF: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Queries and keys of one token, ``[B, T, heads, 2 HALF]``."""
    i_row = tl.program_id(0).to(tl.int64)
    i_batch = i_row // num_tokens
    i_token = i_row % num_tokens
    b_columns = tl.arange(0, BLOCK_HALF)
    mask = b_columns < HALF
    p_cos += i_batch * stride_cb + i_token * stride_ct + b_columns
    p_sin += i_batch * stride_sb + i_token * stride_st + b_columns
    b_cos1 = tl.load(p_cos, mask=mask, other=0.0).to(tl.float32)
    b_cos2 = tl.load(p_cos + HALF, mask=mask, other=0.0).to(tl.float32)
    b_sin1 = tl.load(p_sin, mask=mask, other=0.0).to(tl.float32)
    b_sin2 = tl.load(p_sin + HALF, mask=mask, other=0.0).to(tl.float32)
    if TRANSPOSED:  # the sine of one half turns the gradient of the other
        b_sin1, b_sin2 = -b_sin2, -b_sin1
    _rotate_heads(
        p_q + i_batch * stride_qb + i_token * stride_qt, p_rotated_q + i_row * num_q * 2 * HALF,
        stride_qh, num_q, b_cos1, b_cos2, b_sin1, b_sin2, HALF, BLOCK_Q, BLOCK_HALF,
    )  # fmt: skip
    _rotate_heads(
        p_k + i_batch * stride_kb + i_token * stride_kt, p_rotated_k + i_row * num_k * 2 * HALF,
        stride_kh, num_k, b_cos1, b_cos2, b_sin1, b_sin2, HALF, BLOCK_K, BLOCK_HALF,
    )  # fmt: skip


def rotate(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, transposed: bool
) -> tuple[Tensor, Tensor]:
    """Queries and keys as :func:`diffattn.ops.inputs.formulas.apply_rotary` rotates them, in one
    launch; ``transposed`` gives gradients of what is rotated, from those of the results."""
    batch, num_tokens, half = q.shape[0], q.shape[1], q.shape[-1] // 2
    heads_q, heads_k = (dense_rows(x.flatten(2, -2)) for x in (q, k))  # [B, T, heads, D]
    cos, sin = (dense_rows(x).expand(batch, num_tokens, 2 * half) for x in (cos, sin))
    rotated = q.new_empty(q.shape), k.new_empty(k.shape)
    num_q, num_k = heads_q.shape[2], heads_k.shape[2]
    run_kernel(
        _rotate_kernel, (batch * num_tokens, 1, 1), (heads_q, heads_k, cos, sin, *rotated),
        (*heads_q.stride()[:3], *heads_k.stride()[:3], *cos.stride()[:2], *sin.stride()[:2],
         num_tokens, num_q, num_k),
        HALF=half, BLOCK_Q=_power(num_q), BLOCK_K=_power(num_k), BLOCK_HALF=_power(half),
        TRANSPOSED=transposed, num_warps=4,
    )  # fmt: skip
    return rotated


@triton.jit
def _load_rows(p_x, i_row, num_rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    b_rows = (i_row + tl.arange(0, ROWS))[:, None]
    b_columns = tl.arange(0, BLOCK)[None, :]
    mask = (b_rows < num_rows) & (b_columns < WIDTH)
    at = b_rows.to(tl.int64) * WIDTH + b_columns
    return tl.load(p_x + at, mask=mask, other=0.0).to(tl.float32), at, mask


@triton.jit
def _head_norm_fwd_kernel(
    p_x, p_weight, p_y, num_rows, eps, factor,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, AFFINE: tl.constexpr,
):  # fmt: skip
    """Rows ``[WIDTH]`` over the root of their mean square, times weight and factor."""
    i_row = tl.program_id(0) * ROWS
    b_x, at, mask = _load_rows(p_x, i_row, num_rows, WIDTH, ROWS, BLOCK)
    b_y = b_x * tl.rsqrt(tl.sum(b_x * b_x, axis=1) / WIDTH + eps)[:, None]
    if AFFINE:
        b_columns = tl.arange(0, BLOCK)
        b_weight = tl.load(p_weight + b_columns, mask=b_columns < WIDTH, other=0.0)
        b_y = b_y * b_weight.to(tl.float32)[None, :]
    tl.store(p_y + at, (factor * b_y).to(p_y.dtype.element_ty), mask=mask)


@triton.jit
def _head_norm_bwd_kernel(
    p_grad, p_x, p_weight, p_dx, p_dweight, num_rows, eps, factor,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, AFFINE: tl.constexpr,
):  # fmt: skip
    """dX; of the weight's gradient ``[programs, WIDTH]``, what the rows of each program add."""
    b_columns = tl.arange(0, BLOCK)
    b_weight = tl.full([BLOCK], 1.0, tl.float32)
    if AFFINE:
        b_weight = tl.load(p_weight + b_columns, mask=b_columns < WIDTH, other=0.0).to(tl.float32)
    b_dweight = tl.zeros([BLOCK], tl.float32)
    for i_row in range(tl.program_id(0) * ROWS, num_rows, tl.num_programs(0) * ROWS):
        b_x, at, mask = _load_rows(p_x, i_row, num_rows, WIDTH, ROWS, BLOCK)
        b_grad, _, _ = _load_rows(p_grad, i_row, num_rows, WIDTH, ROWS, BLOCK)
        b_root = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / WIDTH + eps)[:, None]
        b_normed = b_x * b_root
        b_grad *= factor
        b_dweight += tl.sum(b_grad * b_normed, axis=0)
        b_grad *= b_weight[None, :]
        b_mean = tl.sum(b_grad * b_normed, axis=1)[:, None] / WIDTH
        b_dx = b_root * (b_grad - b_normed * b_mean)
        tl.store(p_dx + at, b_dx.to(p_dx.dtype.element_ty), mask=mask)
    if AFFINE:
        p_dweight += tl.program_id(0) * WIDTH + b_columns
        tl.store(p_dweight, b_dweight, mask=b_columns < WIDTH)


@triton.jit
def _sum_rows_kernel(
    p_x, p_y, num_rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The sum of float32 rows ``[WIDTH]``, in one order."""
    b_columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_sum = tl.zeros([ROWS, BLOCK], tl.float32)
    for i_row in range(0, num_rows, ROWS):
        b_rows = (i_row + tl.arange(0, ROWS))[:, None]
        mask = (b_rows < num_rows) & (b_columns < WIDTH)[None, :]
        b_sum += tl.load(p_x + b_rows * WIDTH + b_columns[None, :], mask=mask, other=0.0)
    b_y = tl.sum(b_sum, axis=0).to(p_y.dtype.element_ty)
    tl.store(p_y + b_columns, b_y, mask=b_columns < WIDTH)


def head_norm(x: Tensor, weight: Tensor | None, *, eps: float, factor: float) -> Tensor:
    """:func:`diffattn.ops.inputs.formulas.head_norm` in one launch."""
    x = x.contiguous()
    y, rows = x.new_empty(x.shape), x.numel() // x.shape[-1]
    run_kernel(
        _head_norm_fwd_kernel, (num_blocks(rows, _ROWS), 1, 1), (x, weight, y),
        (rows, eps, factor), **_of_rows(x, weight),
    )  # fmt: skip
    return y


def head_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, *, eps: float, factor: float
) -> tuple[Tensor, Tensor | None]:
    """Gradients of ``x`` and of the weight, which is summed in one order; two launches."""
    x, grad = x.contiguous(), grad.contiguous()
    dx, rows = x.new_empty(x.shape), x.numel() // x.shape[-1]
    programs = min(num_blocks(rows, _ROWS), 4 * launch.num_multiprocessors(x.device))
    sums = None if weight is None else weight.new_empty(programs, x.shape[-1], dtype=torch.float32)
    run_kernel(
        _head_norm_bwd_kernel, (programs, 1, 1), (grad, x, weight, dx, sums),
        (rows, eps, factor), **_of_rows(x, weight),
    )  # fmt: skip
    if weight is None:
        return dx, None
    dweight = weight.new_empty(weight.shape)
    run_kernel(
        _sum_rows_kernel, (num_blocks(x.shape[-1], _COLUMNS), 1, 1), (sums, dweight), (programs,),
        WIDTH=x.shape[-1], ROWS=_SUMMED, BLOCK=_COLUMNS, num_warps=4,
    )  # fmt: skip
    return dx, dweight


@triton.jit
def _load_vectors(p_q, p_k, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Two vectors and their dot product."""
    b_columns = tl.arange(0, BLOCK)
    b_q = tl.load(p_q + b_columns, mask=b_columns < WIDTH, other=0.0).to(tl.float32)
    b_k = tl.load(p_k + b_columns, mask=b_columns < WIDTH, other=0.0).to(tl.float32)
    return b_q, b_k, tl.sum(b_q * b_k, axis=0)


@triton.jit
def _lambda_fwd_kernel(
    p_q1, p_k1, p_q2, p_k2, p_lam, lambda_init, log2_e, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    _, _, dot1 = _load_vectors(p_q1, p_k1, WIDTH, BLOCK)
    _, _, dot2 = _load_vectors(p_q2, p_k2, WIDTH, BLOCK)
    tl.store(p_lam, tl.exp2(dot1 * log2_e) - tl.exp2(dot2 * log2_e) + lambda_init)


@triton.jit
def _lambda_bwd_kernel(
    p_grad, p_q1, p_k1, p_q2, p_k2, p_dq1, p_dk1, p_dq2, p_dk2, log2_e,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b_columns = tl.arange(0, BLOCK)
    mask = b_columns < WIDTH
    grad = tl.load(p_grad)
    b_q1, b_k1, dot1 = _load_vectors(p_q1, p_k1, WIDTH, BLOCK)
    b_q2, b_k2, dot2 = _load_vectors(p_q2, p_k2, WIDTH, BLOCK)
    grad1, grad2 = grad * tl.exp2(dot1 * log2_e), -grad * tl.exp2(dot2 * log2_e)
    tl.store(p_dq1 + b_columns, grad1 * b_k1, mask=mask)
    tl.store(p_dk1 + b_columns, grad1 * b_q1, mask=mask)
    tl.store(p_dq2 + b_columns, grad2 * b_k2, mask=mask)
    tl.store(p_dk2 + b_columns, grad2 * b_q2, mask=mask)


def diff_lambda(*vectors: Tensor, lambda_init: float) -> Tensor:
    """:func:`diffattn.ops.inputs.formulas.diff_lambda` of float32 vectors in one launch."""
    vectors = tuple(map(dense_rows, vectors))
    lam, width = vectors[0].new_empty(()), len(vectors[0])
    run_kernel(
        _lambda_fwd_kernel, (1, 1, 1), (*vectors, lam), (lambda_init, LOG2_E),
        WIDTH=width, BLOCK=_power(width), num_warps=1,
    )  # fmt: skip
    return lam


def diff_lambda_backward(grad: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
    """Gradients of the four vectors in one launch."""
    vectors = tuple(map(dense_rows, vectors))
    gradients, width = tuple(x.new_empty(x.shape) for x in vectors), len(vectors[0])
    run_kernel(
        _lambda_bwd_kernel, (1, 1, 1), (grad, *vectors, *gradients), (LOG2_E,),
        WIDTH=width, BLOCK=_power(width), num_warps=1,
    )  # fmt: skip
    return gradients


@triton.jit
def _sigmoid_kernel(
    p_logits, p_grad, p_out, size, log2_e, BACKWARD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    i_out = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i_out < size
    b_logits = tl.load(p_logits + i_out, mask=mask, other=0.0).to(tl.float32)
    b_out = 1 / (1 + tl.exp2(-b_logits * log2_e))
    if BACKWARD:
        b_out *= (1 - b_out) * tl.load(p_grad + i_out, mask=mask, other=0.0)
    tl.store(p_out + i_out, b_out.to(p_out.dtype.element_ty), mask=mask)


def sigmoid(logits: Tensor, grad: Tensor | None = None) -> Tensor:
    """The sigmoid in float32, or from its gradient that of the logits, in one launch."""
    logits = logits.contiguous()
    out = logits.new_empty(logits.shape, dtype=torch.float32 if grad is None else None)
    run_kernel(
        _sigmoid_kernel, (num_blocks(out.numel(), _NUMBERS), 1, 1),
        (logits, grad if grad is None else grad.contiguous(), out), (out.numel(), LOG2_E),
        BACKWARD=grad is not None, BLOCK=_NUMBERS, num_warps=4,
    )  # fmt: skip
    return out


def _of_rows(x: Tensor, weight: Tensor | None) -> dict[str, int]:
    width = x.shape[-1]
    sizes = {"WIDTH": width, "ROWS": _ROWS, "BLOCK": _power(width)}
    return {**sizes, "AFFINE": weight is not None, "num_warps": 4}


def _power(number: int) -> int:
    """The power of two that holds ``number``."""
    return 1 << (number - 1).bit_length()
