"""A decoder step as ONNX by transformers 5.23's exporter: ``python examples/onnx_step.py``.

Needs ``pip install 'diffattn[onnx]'``. The step takes token ids, positions and a cache of any
length, also an empty one, and gives logits and the longer cache: a prompt and each new token go
through the same file. Prints how far the logits of ONNX Runtime are from those of the model.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.export import Dim
from transformers.cache_utils import DynamicCache
from transformers.exporters import ExportedModel, OnnxConfig, OnnxExporter

from diffattn import DiffTransformerConfig, DiffTransformerForCausalLM


def export_step(model: DiffTransformerForCausalLM, folder: Path) -> None:
    """Write ``model.onnx``, its weights and ``export.json`` into ``folder``."""
    model.set_attn_implementation("sdpa")  # operators that ONNX has
    cache = DynamicCache(config=model.config)
    ids = torch.zeros(3, 9, dtype=torch.long)  # sizes that differ, so that no axis is another
    positions = torch.arange(9).repeat(3, 1)
    with torch.no_grad():
        model(ids[:, :5], past_key_values=cache)
    inputs = {
        "input_ids": ids[:, 5:],
        "position_ids": positions[:, 5:],
        "past_key_values": cache,
    }
    tokens = {0: Dim.AUTO, 1: Dim.AUTO}
    past = {0: Dim.AUTO, 2: Dim.AUTO}
    shapes = {
        "input_ids": tokens,
        "position_ids": tokens,
        "past_key_values": [past] * (2 * model.config.num_hidden_layers),
    }
    OnnxExporter().export(model, inputs, OnnxConfig(dynamic_shapes=shapes)).save_pretrained(folder)


def decode(folder: Path, ids: Tensor, prompt: int, cache: DynamicCache) -> Tensor:
    """Logits ``[B, T, vocab_size]`` of ONNX Runtime: a prompt, then one token at a time."""
    step = ExportedModel.from_pretrained(folder)
    parts = []
    start = 0
    for end in range(prompt, ids.shape[1] + 1):
        positions = torch.arange(start, end).repeat(len(ids), 1)
        out = step(input_ids=ids[:, start:end], position_ids=positions, past_key_values=cache)
        parts.append(out.logits)
        start, cache = end, out.past_key_values
    return torch.cat(parts, dim=1)


def empty_cache(config: DiffTransformerConfig, batch: int) -> DynamicCache:
    """A cache that holds no token yet."""
    cache = DynamicCache(config=config)
    heads, width = config.cached_kv_shape
    for layer in range(config.num_hidden_layers):
        cache.update(
            torch.zeros(batch, heads, 0, width), torch.zeros(batch, heads, 0, width), layer
        )
    return cache


def main() -> float:
    """Export a small V1, run a prompt of 6 tokens and 4 steps, return the largest difference."""
    torch.manual_seed(0)
    config = DiffTransformerConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_heads=2, initializer_range=0.2
    )
    model = DiffTransformerForCausalLM(config).eval()
    ids = torch.randint(64, (2, 10))
    with torch.no_grad():
        expected = model(ids).logits
    with tempfile.TemporaryDirectory() as folder:
        export_step(model, Path(folder))
        logits = decode(Path(folder), ids, 6, empty_cache(config, len(ids)))
    difference = (logits - expected).abs().max().item()
    print(f"largest difference {difference:.1e}, largest logit {expected.abs().max():.1f}")
    return difference


if __name__ == "__main__":
    main()
