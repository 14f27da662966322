r"""Differential attention (DIFF Transformer, V1) in plain PyTorch, whole on one screen.

.. math:: \mathrm{DiffAttn}(X)
          = (\mathrm{softmax}(s Q_1 K_1^\top) - \lambda\,\mathrm{softmax}(s Q_2 K_2^\top)) V

The file imports torch alone. A test holds it equal to :class:`diffattn.DiffAttention`, output and
gradients. Equation numbers are of arXiv:2410.05258v2.

    python examples/one_file_diff.py      # train a tiny layer to copy; seconds on a CPU

Expected: a loss that falls from about 3 to below 0.1, then λ at the start and at the end.
"""

import math

import torch
from torch import Tensor, nn


def compute_lambda_init(layer_idx: int) -> float:
    """Constant part of λ: 0.2 in the first layer (index 0), rising to 0.8 with depth."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer_idx)


def rotate(x: Tensor, theta: float = 10_000.0) -> Tensor:
    """Rotate ``[B, T, heads, maps, D]`` by position; channels c and c + D/2 are a pair."""
    num_tokens, head_dim = x.shape[1], x.shape[-1]
    frequency = theta ** (-torch.arange(0, head_dim, 2, device=x.device) / head_dim)
    angle = torch.arange(num_tokens, device=x.device)[:, None] * frequency  # [T, D / 2]
    cos, sin = (table.to(x.dtype)[:, None, None] for table in (angle.cos(), angle.sin()))
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class OneFileDiffAttention(nn.Module):
    """Causal multi-head differential attention, Eq. (1) to (3).

    Args:
        hidden_size: Width of the residual stream, in channels.
        num_heads: H. The Transformer of the same size has 2H heads of the same width.
        head_dim: D, width of one query or key. A value is 2D wide.
        num_kv_heads: Hkv, divides H. Default: H.
        layer_idx: Index of the layer, counted from 0.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        layer_idx: int = 0,
    ) -> None:
        super().__init__()
        num_kv_heads = num_kv_heads or num_heads
        self.head_dim = head_dim
        self.group_size = num_heads // num_kv_heads
        self.lambda_init = compute_lambda_init(layer_idx)
        self.q_proj = nn.Linear(hidden_size, num_heads * 2 * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * 2 * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * 2 * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * 2 * head_dim, hidden_size, bias=False)
        self.head_norm_weight = nn.Parameter(torch.ones(2 * head_dim))
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(0.1 * torch.randn(head_dim)) for _ in range(4)
        )

    def compute_lambda(self) -> Tensor:
        """λ, one number per layer: Eq. (2). Nothing clamps it."""
        first = (self.lambda_q1 * self.lambda_k1).sum().exp()
        second = (self.lambda_q2 * self.lambda_k2).sum().exp()
        return first - second + self.lambda_init

    def normalise_heads(self, out: Tensor, eps: float = 1e-5) -> Tensor:
        """RMSNorm over the 2D channels of one head, times the constant 1 − λ_init: Eq. (3)."""
        normed = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + eps)
        return (1 - self.lambda_init) * normed * self.head_norm_weight

    def forward(self, x: Tensor) -> Tensor:
        """Attend from every token of ``x``, ``[B, T, hidden_size]``, to itself and its past."""
        num_tokens = x.shape[1]
        q = self.q_proj(x).unflatten(-1, (-1, 2, self.head_dim))  # [B, T, H, map, D]
        k = self.k_proj(x).unflatten(-1, (-1, 2, self.head_dim))  # [B, T, Hkv, map, D]
        v = self.v_proj(x).unflatten(-1, (-1, 2 * self.head_dim))  # [B, T, Hkv, 2D]
        # Head i reads the keys and values of head i // group_size.
        k, v = (y.repeat_interleave(self.group_size, dim=2) for y in (k, v))
        scores = torch.einsum("bthmd,bshmd->bhmts", rotate(q), rotate(k)) / self.head_dim**0.5
        future = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=x.device).triu(1)
        added, subtracted = scores.masked_fill(future, -torch.inf).softmax(-1).unbind(2)
        weights = added - self.compute_lambda() * subtracted  # [B, H, T, T]: Eq. (1)
        out = torch.einsum("bhts,bshc->bthc", weights, v)  # [B, T, H, 2D]
        return self.o_proj(self.normalise_heads(out).flatten(2))


def train_to_copy(num_steps: int = 150, vocab_size: int = 16, length: int = 16) -> None:
    """Train embedding, layer and output to repeat the token before, and print the loss and λ."""
    torch.manual_seed(0)
    embedding = nn.Embedding(vocab_size, 32)
    layer = OneFileDiffAttention(hidden_size=32, num_heads=2, head_dim=8)
    head = nn.Linear(32, vocab_size)
    model = nn.Sequential(embedding, layer, head)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    print(f"lambda at the start: {layer.compute_lambda().item():.3f}")
    for step in range(num_steps):
        tokens = torch.randint(vocab_size, (16, length))
        logits = model(tokens)[:, 1:]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, :-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == num_steps - 1:
            print(f"step {step}: loss {loss.item():.3f}")
    print(f"lambda at the end: {layer.compute_lambda().item():.3f}")


if __name__ == "__main__":
    train_to_copy()
