"""What the GPU tier runs: every case of the operator at the widths of the papers, and long ones."""

from dataclasses import replace

import pytest
import torch

from diffattn.lab.testing.inputs import OP_CASES, OpCase
from diffattn.ops.inputs import backends

ON_GPU = torch.cuda.is_available()
HEAD_DIMS = (64, 128) if ON_GPU else (64,)
DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.float16, id="fp16"),
    pytest.param(torch.bfloat16, id="bf16"),
]
LENGTHS = (1_024, 8_192) if ON_GPU else (40,)
"""Tokens of the long cases; a CPU runs the same code on few."""
DECODE_KEYS = 8_192 if ON_GPU else 70
KERNELS = ("triton", "triton_decode", "hopper")
BACKENDS = (
    *KERNELS, *(n for n in backends.names("diff_attention") if n not in (*KERNELS, "chunked"))
)  # fmt: skip
"""All but the one of CPUs; first those that nothing else tests, should time run out."""
HOLDS_MAPS = ("reference", "decode", "flex")
"""At few tokens only: maps of 8,192 tokens would fill a GPU. Flex is not compiled here."""
SHORT = 17
"""Queries at most, without a GPU: Triton's interpreter is slow."""


def cases():
    """Every case of the operator at the widths of the papers; on a CPU the short ones."""
    for case in OP_CASES:
        for head_dim in HEAD_DIMS:
            if ON_GPU or case.num_queries <= SHORT:
                value_dim = head_dim if case.shared_keys else 2 * head_dim
                name = f"{case.name}-d{head_dim}"
                yield replace(case, name=name, head_dim=head_dim, value_dim=value_dim)


def long_cases():
    """Every option at lengths of many tiles, none of which ends with a tile."""
    for length in LENGTHS:
        keys = length + length // 3 + 1
        half = length // 2 - 5
        for head_dim in HEAD_DIMS:
            base = OpCase(
                name="v1", num_queries=length, batch=1, num_heads=2, num_kv_heads=2,
                head_dim=head_dim, value_dim=2 * head_dim, lam_axes="bth",
            )  # fmt: skip
            v2 = replace(base, shared_keys=True, value_dim=head_dim)
            variants = (
                base,
                replace(base, name="v1-ragged-gqa", num_queries=length - 13, num_kv_heads=1),
                replace(base, name="v1-T<S", num_keys=keys, lam_axes="h"),
                replace(base, name="v1-cross", num_keys=keys, causal=False),
                replace(v2, name="v2", num_heads=4),
                replace(v2, name="v2-window", window=length // 5 + 1),
                replace(base, name="v1-packed", documents=(half, 1, length - half - 1)),
                replace(base, name="v1-padding", padding=((3, length // 3),)),
                replace(base, name="v1-kv_lengths", num_keys=keys, kv_lengths=(keys - 7,)),
            )
            for case in variants:
                yield replace(case, name=f"{case.name}-N{length}-d{head_dim}")


def decode_cases():
    """Few queries against a long cache."""
    for head_dim in HEAD_DIMS:
        base = OpCase(
            name="v1", num_queries=1, num_keys=DECODE_KEYS, num_heads=8, num_kv_heads=2,
            head_dim=head_dim, value_dim=2 * head_dim, lam_axes="bth",
        )  # fmt: skip
        lengths = (DECODE_KEYS, DECODE_KEYS // 2 + 3)
        for case in (
            base,
            replace(base, name="v1-T16", num_queries=16, kv_lengths=lengths),
            replace(base, name="v2-T3", num_queries=3, shared_keys=True, value_dim=head_dim),
            replace(base, name="v2-window", shared_keys=True, value_dim=head_dim, num_queries=2,
                    window=DECODE_KEYS // 3, kv_lengths=lengths),
        ):  # fmt: skip
            yield replace(case, name=f"{case.name}-S{DECODE_KEYS}-d{head_dim}")
