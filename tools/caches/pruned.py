"""A cache that drops keys after the prompt, and ``generate`` along given tokens.

A policy scores every key of the prompt in every key/value head. As in H2O (arXiv:2306.14048) half
of the keys that are kept are the most recent; the policy chooses the other half.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.cache_utils import Cache, DynamicLayer

POLICIES = ("signed", "absolute", "random", "window")
"""Accumulated attention A1 − λA2 of all queries of the prompt; accumulated |A1 − λA2|; the control,
which is chance; and the most recent keys alone. For softmax the first two are one."""


class PrunedLayer(DynamicLayer):
    """Keys and values of one layer, where dropped keys still count as positions."""

    keys: Tensor
    values: Tensor
    dropped = 0

    def get_seq_length(self) -> int:
        """Tokens seen, kept or not."""
        return super().get_seq_length() + self.dropped

    def keep(self, index: Tensor) -> None:
        """Keep the keys of ``index``, int64 ``[B, Hkv, kept]``, alone."""
        self.dropped += self.keys.shape[2] - index.shape[2]
        self.keys = self.keys.take_along_dim(index[..., None], dim=2)
        self.values = self.values.take_along_dim(index[..., None], dim=2)


def pruned_cache() -> Cache:
    """An empty cache of :class:`PrunedLayer`."""
    return Cache(layer_class_to_replicate=PrunedLayer)


def chosen_keys(
    maps: Tensor, num_kv_heads: int, policy: str, kept: int, generator: torch.Generator
) -> Tensor:
    """Ascending indices of the keys to keep, int64 ``[B, Hkv, kept]``.

    ``maps`` are signed attention ``[B, H, T, S]``; the heads of a group add their scores.
    """
    weights = maps.abs() if policy == "absolute" else maps
    scores = weights.sum(2).unflatten(1, (num_kv_heads, -1)).sum(2)
    if policy == "random":
        scores = torch.rand(scores.shape, generator=generator)
    elif policy == "window":
        scores = torch.arange(scores.shape[-1], dtype=scores.dtype).expand_as(scores).clone()
    scores[..., scores.shape[-1] - (kept - kept // 2) :] = torch.inf
    return scores.topk(kept).indices.sort().values


@contextmanager
def dropping(model: Any, policy: str, share: float, seed: int = 0) -> Iterator[None]:
    """Let the first pass of ``generate`` keep a share of its keys in a :func:`pruned_cache`."""
    generator = torch.Generator().manual_seed(seed)

    def prune(module: Any, args: Any, outputs: Any) -> None:
        for layer, maps in zip(outputs.past_key_values.layers, outputs.attentions, strict=True):
            if maps.shape[2] > 1:
                kept = max(1, round(share * maps.shape[3]))
                layer.keep(chosen_keys(maps, layer.keys.shape[1], policy, kept, generator))

    handle = model.register_forward_hook(prune)
    try:
        yield
    finally:
        handle.remove()


class _Given(LogitsProcessor):
    def __init__(self, ids: Tensor) -> None:
        self.ids = torch.nn.functional.pad(ids, (0, 1))  # nothing reads the last one

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        given = self.ids[:, input_ids.shape[1], None]
        return torch.full_like(scores, -torch.inf).scatter(1, given, 0.0)


@torch.no_grad()
def logits_after(model: Any, ids: Tensor, prompt: int, cache: Cache) -> Tensor:
    """Logits ``[B, T - prompt, vocabulary]``, float32, at the tokens after the prompt, one by one.

    The first ``prompt`` tokens are read in one pass, and the others are given to ``generate``.
    """
    settings = GenerationConfig(
        max_new_tokens=ids.shape[1] - prompt + 1,
        output_attentions=True,
        output_logits=True,
        return_dict_in_generate=True,
    )
    output = model.generate(
        ids[:, :prompt],
        generation_config=settings,
        logits_processor=LogitsProcessorList([_Given(ids)]),
        past_key_values=cache,
    )
    return torch.stack(output.logits[1:], dim=1)
