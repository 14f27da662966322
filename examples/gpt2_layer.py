"""Differential attention V1 in a GPT-2 of ``transformers``: the layer is swapped, the rest stays.

GPT-2 has 12 heads of 64. V1 takes 6 heads: each has two queries and two keys of 64 and a value of
128, so the four matrices are as large as before. A layer that keeps 12 heads has twice the weights.

    diffattn check --layer my_module:MyDiffAttention     # is your own layer right?
    python examples/gpt2_layer.py                        # 124M parameters, a minute or two
    python examples/gpt2_layer.py --layers 2 --width 128 --steps 200

Expected: equal weights in the matrices of attention, then a loss of bytes that falls from 11.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from diffattn import DiffAttention

HEAD_DIM = 64


class GPT2DiffAttention(nn.Module):
    """V1 under the arguments with which a block of GPT-2 calls its attention; no cache."""

    def __init__(self, width: int, layer_idx: int) -> None:
        super().__init__()
        self.layer = DiffAttention(width, width // HEAD_DIM // 2, HEAD_DIM, layer_idx=layer_idx)

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        """GPT-2 adds learned positions to its embeddings, so the layer rotates nothing."""
        return self.layer(hidden_states), None


def swap_attention(model: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """Put V1 where softmax attention was; λ_init grows with the index of the layer."""
    for layer_idx, block in enumerate(model.transformer.h):
        block.attn = GPT2DiffAttention(model.config.n_embd, layer_idx)
    return model


def matrix_weights(model: GPT2LMHeadModel) -> int:
    """Weights in the matrices of the first attention layer."""
    return sum(p.numel() for p in model.transformer.h[0].attn.parameters() if p.ndim == 2)


def main(arguments: list[str] | None = None) -> list[float]:
    """Swap, count, and train on the bytes of this file; returns the losses."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768, help="multiple of 128")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=options.layers, n_embd=options.width, n_head=options.width // HEAD_DIM,
        use_cache=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    before = matrix_weights(model)
    swap_attention(model)
    print(f"attention, weights in matrices: {before:,} before, {matrix_weights(model):,} after")
    data = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.0)
    losses = []
    for step in range(options.steps):
        rows = torch.stack([data[i : i + 64] for i in torch.randint(len(data) - 64, (4,))])
        loss = model(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 0 or step == options.steps - 1:
            print(f"step {step}: loss {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
