"""Kernels that compile and yet break a limit of their chip, one limit each."""

import triton
import triton.language as tl

from tools.aot_cases import AotCase


@triton.jit
def _products_kernel(p_x, p_out, NUM: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """``NUM`` accumulators of M x N that live through one loop."""
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, 64)
    b_one = tl.zeros([M, N], dtype=tl.float32)
    b_two = tl.zeros([M, N], dtype=tl.float32)
    b_three = tl.zeros([M, N], dtype=tl.float32)
    for i in range(0, 65536, 16384):
        b_x = tl.load(p_x + i + rows[:, None] * 64 + inner[None, :])
        b_y = tl.load(p_x + i + inner[:, None] * N + columns[None, :])
        b_one = tl.dot(b_x, b_y, b_one)
        if NUM > 1:
            b_two = tl.dot(b_x, b_y * 2, b_two)
        if NUM > 2:
            b_three = tl.dot(b_x, b_y * 3, b_three)
    p_tile = p_out + rows[:, None] * N + columns[None, :]
    tl.store(p_tile, b_one)
    if NUM > 1:
        tl.store(p_tile + M * N, b_two)
    if NUM > 2:
        tl.store(p_tile + 2 * M * N, b_three)


def _case(name, *, num, m, n, num_warps, num_stages=2):
    return AotCase(
        name=name,
        kernel=_products_kernel,
        signature={"p_x": "*bf16:16", "p_out": "*fp32:16"},
        constexprs={"NUM": num, "M": m, "N": n},
        num_warps=num_warps,
        num_stages=num_stages,
    )


FITTING = _case("fitting", num=1, m=64, n=64, num_warps=4)
SPILLING = _case("spilling", num=2, m=128, n=128, num_warps=4)
TOO_MUCH_TENSOR_MEMORY = _case("too-much-tensor-memory", num=3, m=128, n=256, num_warps=8)
TOO_MUCH_SHARED_MEMORY = _case(
    "too-much-shared-memory", num=1, m=128, n=256, num_warps=8, num_stages=8
)
