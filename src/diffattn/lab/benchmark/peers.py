"""Attention by others' kernels on a GPU: FlashAttention 4 and cuDNN. Causal, without a mask."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from diffattn.ops.backends.composed import flash_diff_attn_1


def has_flash_attention_4() -> bool:
    """Whether package ``flash-attn-4`` is installed."""
    return bool(find_spec("flash_attn") and find_spec("flash_attn.cute"))


def flash_attention_4(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """Softmax attention by package ``flash-attn-4``.

    Args:
        q: ``[B, T, H, D]``, float16 or bfloat16.
        k: ``[B, S, Hkv, D]``.
        v: ``[B, S, Hkv, Dv]``.
        scale: Default: ``D ** -0.5``.

    Returns:
        ``[B, T, H, Dv]``.
    """
    attend: Any = import_module("flash_attn.cute").flash_attn_func
    out = attend(q, k, v, softmax_scale=scale, causal=True)
    result: Tensor = out[0] if isinstance(out, tuple) else out
    return result


def one_call_of_flash_attention_4(q: Tensor, k: Tensor, v: Tensor, lam: Tensor) -> Tensor:
    """V2 as its authors run it: heads 2i and 2i + 1 are the maps of head i, keys are shared.

    Args:
        q: ``[B, T, H, 2, D]``.
        k: ``[B, S, Hkv, D]``.
        v: ``[B, S, Hkv, Dv]``.
        lam: Broadcastable to ``[B, T, H]``.
    """
    first, second = flash_attention_4(q.flatten(2, 3), k, v).unflatten(2, (-1, 2)).unbind(3)
    return (first - lam.expand(first.shape[:3])[..., None] * second).to(q.dtype)


def two_calls_by_cudnn(q: Tensor, k: Tensor, v: Tensor, lam: Tensor) -> Tensor:
    """One call for each map, V undivided, by cuDNN; arguments as of ``diff_attention``."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return flash_diff_attn_1(q, k, v, lam, scale=q.shape[-1] ** -0.5)
