"""Differential attention in a model written as nanoGPT writes it.

One line changes: where ``CausalSelfAttention`` stood, a block makes :class:`DiffAttentionV2`. Heads
keep their number and width; the feed-forward layer gives up what the second queries and λ cost.

    python examples/nanogpt.py                      # bytes of this file, a minute
    python examples/nanogpt.py --text book.txt --steps 2000

Expected: a loss that falls from 5.5 (all bytes alike) to below 3.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffattn import DiffAttentionV2


@dataclass
class GPTConfig:
    """Sizes, under nanoGPT's names."""

    block_size: int = 64
    vocab_size: int = 256
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 64


class Block(nn.Module):
    """Pre-norm attention and feed-forward layer."""

    def __init__(self, config: GPTConfig, layer_idx: int) -> None:
        super().__init__()
        width, head_dim = config.n_embd, config.n_embd // config.n_head
        self.ln_1 = nn.LayerNorm(width)
        self.attn = DiffAttentionV2(width, config.n_head, head_dim, layer_idx=layer_idx)
        self.ln_2 = nn.LayerNorm(width)
        # Second queries are width² weights, λ is width · n_head: as many as the FFN has fewer.
        hidden = 4 * width - (width + config.n_head) // 2
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        """Add both layers' outputs to ``x`` ``[B, T, n_embd]``."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Decoder with learned positions and tied embeddings."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config, i) for i in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        for weight in (self.wte.weight, self.wpe.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logits ``[B, T, vocab_size]`` and the mean loss in nats per token."""
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main(arguments: list[str] | None = None) -> list[float]:
    """Train on the bytes of a file; returns the losses."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--text", type=Path, default=Path(__file__), help="file to learn from")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    config = GPTConfig()
    data = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8).long()
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    losses = []
    for step in range(options.steps):
        starts = torch.randint(len(data) - config.block_size, (16,))
        rows = torch.stack([data[i : i + config.block_size + 1] for i in starts])
        _, loss = model(rows[:, :-1], rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 50 == 0 or step == options.steps - 1:
            print(f"step {step}: loss {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
