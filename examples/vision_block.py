"""Differential attention in a vision block: every patch sees every other, no rotary positions.

``attend`` binds what differs from a language model, here ``causal=False``. The task: an image of
noise in which two patches hold a pattern, the same one or two different ones; say which. No patch
knows by itself, so the model has to compare them.

    python examples/vision_block.py

Expected: accuracy above 0.9 after 300 steps; 0.5 is guessing.
"""

import argparse
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffattn import DiffAttention, diff_attention

PATCHES, PATCH_PIXELS, PATTERNS = 16, 16, 4


class VisionBlock(nn.Module):
    """Pre-norm block of a vision transformer with DIFF V1."""

    def __init__(self, width: int, num_heads: int, layer_idx: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        # H heads of width D have values of width 2D: H · 2D is the width of the model.
        self.attention = DiffAttention(
            width, num_heads, width // (2 * num_heads), layer_idx=layer_idx
        )
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Of patches ``[B, N, width]``."""
        x = x + self.attention(self.norm1(x), attend=partial(diff_attention, causal=False))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Patches with learned positions, two blocks, mean over patches, two classes."""

    def __init__(self, width: int = 64, num_heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH_PIXELS, width)
        self.positions = nn.Parameter(0.02 * torch.randn(PATCHES, width))
        self.blocks = nn.Sequential(*(VisionBlock(width, num_heads, i) for i in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 2)

    def forward(self, patches: Tensor) -> Tensor:
        """Logits ``[B, 2]`` of patches ``[B, 16, 16]``."""
        x = self.blocks(self.embed(patches) + self.positions)
        return self.head(self.norm(x.mean(1)))


def images(count: int, patterns: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Patches of noise, two of them with a pattern; label 1 where it is the same."""
    pixels = 0.3 * torch.randn(count, PATCHES, PATCH_PIXELS, generator=generator)
    places = torch.rand(count, PATCHES, generator=generator).argsort(1)[:, :2]
    same = torch.randint(2, (count,), generator=generator)
    first = torch.randint(PATTERNS, (count,), generator=generator)
    other = torch.randint(1, PATTERNS, (count,), generator=generator)
    second = torch.where(same == 1, first, (first + other) % PATTERNS)
    rows = torch.arange(count)
    pixels[rows, places[:, 0]] += patterns[first]
    pixels[rows, places[:, 1]] += patterns[second]
    return pixels, same


def main(arguments: list[str] | None = None) -> float:
    """Train, and return the accuracy on images that were not seen."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    patterns = torch.randn(PATTERNS, PATCH_PIXELS, generator=generator).sign()
    model = VisionTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    for step in range(options.steps):
        patches, labels = images(64, patterns, generator)
        loss = F.cross_entropy(model(patches), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    with torch.no_grad():
        patches, labels = images(1_000, patterns, generator)
        accuracy = (model(patches).argmax(1) == labels).float().mean().item()
    print(f"accuracy on 1,000 new images: {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
