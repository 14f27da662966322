"""Differential attention in an encoder: bidirectional, rotary positions, rows of several lengths.

``key_padding_mask`` hides the padding from both maps. What stands in it changes nothing: the
example encodes sentences one by one and as a padded batch, and compares.

    python examples/encoder_with_padding.py

Expected: a largest difference near 1e-6, which is the rounding of float32.
"""

from functools import partial

import torch
from torch import Tensor, nn

from diffattn import DiffAttentionV2, diff_attention, rotary_embedding

PADDING = 0


class Encoder(nn.Module):
    """Blocks of DIFF V2 and feed-forward layers over token ids; padding has id 0."""

    def __init__(self, vocab_size: int = 256, width: int = 64, num_heads: int = 4) -> None:
        super().__init__()
        self.head_dim = width // num_heads
        self.embed = nn.Embedding(vocab_size, width, padding_idx=PADDING)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.RMSNorm(width),
                    "attention": DiffAttentionV2(width, num_heads, self.head_dim, layer_idx=i),
                    "norm2": nn.RMSNorm(width),
                    "mlp": nn.Sequential(
                        nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
                    ),
                }
            )
            for i in range(2)
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Mean over the real tokens of every row: ``[B, width]`` of ids ``[B, T]``."""
        real = ids != PADDING
        attend = partial(diff_attention, causal=False, key_padding_mask=real)
        positions = rotary_embedding(torch.arange(ids.shape[1], device=ids.device), self.head_dim)
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block["attention"](block["norm1"](x), positions, attend=attend)
            x = x + block["mlp"](block["norm2"](x))
        return (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)


def main() -> float:
    """Encode sentences apart and together; returns the largest difference."""
    torch.manual_seed(0)
    sentences = ["Attend to this.", "And not to the padding behind a short row.", "Short."]
    rows = [torch.tensor(list(text.encode())) for text in sentences]
    encoder = Encoder().eval()
    with torch.no_grad():
        together = encoder(nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING))
        apart = torch.cat([encoder(row[None]) for row in rows])
    difference = (together - apart).abs().max().item()
    print(f"largest difference between a padded batch and single rows: {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
