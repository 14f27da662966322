"""The bare operator from another framework, without copies, by DLPack.

NumPy stands for any library with DLPack, such as JAX, CuPy or TensorFlow: each has its own
``from_dlpack``. Their own differentiation does not see through the call; the gradient below is
PyTorch's.

    python examples/other_frameworks.py

Expected: shapes, and a difference near 1e-15, which is the rounding of float64.
"""

import numpy as np
import torch

from diffattn import diff_attention


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, lam: np.ndarray, grad: np.ndarray | None = None
) -> tuple[np.ndarray, ...]:
    """Output ``[B, T, H, Dv]``, and the gradients of q, k, v and λ if that of the output is given.

    Args:
        q: ``[B, T, H, 2, D]``.
        k: ``[B, S, Hkv, 2, D]``.
        v: ``[B, S, Hkv, Dv]``.
        lam: λ, broadcastable to ``[B, T, H]``.
        grad: ``[B, T, H, Dv]``.
    """
    tensors = [
        torch.from_dlpack(array).requires_grad_(grad is not None) for array in (q, k, v, lam)
    ]
    out = diff_attention(*tensors)
    gradients = () if grad is None else torch.autograd.grad(out, tensors, torch.from_dlpack(grad))
    return tuple(np.from_dlpack(tensor.detach()) for tensor in (out, *gradients))


def main() -> float:
    """Attend from NumPy arrays, and compare with the formula written in NumPy."""
    generator = np.random.default_rng(0)
    length, heads, width = 6, 2, 8
    q = generator.standard_normal((1, length, heads, 2, width))
    k = generator.standard_normal((1, length, heads, 2, width))
    v = generator.standard_normal((1, length, heads, 2 * width))
    lam = np.full((1, 1, 1), 0.7)
    out, *gradients = attend(q, k, v, lam, grad=np.ones_like(v))
    scores = np.einsum("bthmd,bshmd->bhmts", q, k) / np.sqrt(width)
    scores = np.where(np.tril(np.ones((length, length), dtype=bool)), scores, -np.inf)
    maps = np.exp(scores - scores.max(-1, keepdims=True))
    maps /= maps.sum(-1, keepdims=True)
    expected = np.einsum("bhts,bshe->bthe", maps[:, :, 0] - 0.7 * maps[:, :, 1], v)
    difference = float(np.abs(out - expected).max())
    print(f"output {out.shape}, gradients {[g.shape for g in gradients]}")
    print(f"largest difference to the formula in NumPy: {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
