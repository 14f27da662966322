"""Many branches after one prefix in a single pass: a token sees the prefix and its ancestors."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from diffattn.evaluation.language_model import LanguageModel, Prefix, attention_implementation

_PASS_TOKENS = 384
"""Tokens of one pass; more gain nothing, since every token meets all others as masked keys."""


class Forest:
    """Trees of tokens that all follow one prefix; branches that begin alike are held once."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        """Per token, the one before it; -1 stands for the prefix."""
        self.depths: list[int] = []
        """Per token, how many of the trees' tokens come before it."""
        self._known: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, tokens: Sequence[int], parent: int = -1) -> list[int]:
        """Grow a branch from ``parent`` and return the places of its tokens."""
        places = []
        for token in tokens:
            place = self._known.get((parent, token))
            if place is None:
                place = self._known[parent, token] = len(self.tokens)
                self.depths.append(0 if parent < 0 else self.depths[parent] + 1)
                self.tokens.append(token)
                self.parents.append(parent)
            places.append(place)
            parent = place
        return places

    def ancestors(self) -> np.ndarray:
        """bool ``[tokens, tokens]``: whether row i comes after, or is, column j."""
        found = np.eye(len(self), dtype=bool)
        for i, parent in enumerate(self.parents):  # parents come first
            if parent >= 0:
                found[i] |= found[parent]
        return found


class _Borrowed(DynamicLayer):
    """Shows the prefix and the keys of one pass side by side, and keeps only the prefix.

    What a pass adds lives for one layer at a time, so memory does not grow by a second prefix.
    """

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Prefix and new keys; prefix and new values."""
        if self.keys is None:
            return key_states, value_states
        keys = torch.cat([self.keys, key_states], dim=-2)
        return keys, torch.cat([self.values, value_states], dim=-2)


def passes(sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Positions of branches that run in one pass, in order.

    Args:
        sizes: Tokens of every branch.
        most: Branches of one pass, at most.
    """
    batch: list[int] = []
    tokens = 0
    for i, size in enumerate(sizes):
        if batch and (len(batch) >= most or tokens + size > _PASS_TOKENS):
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += size
    if batch:
        yield batch


def can_branch(model: LanguageModel, prefix: Prefix) -> bool:
    """Whether :func:`forward_forest` holds for this model: full attention by a masked kernel.

    Layers with a window or a state order their tokens by position, which branches do not follow.
    A model whose rows run alone keeps its own attention, too.
    """
    if model.rows_alone or not getattr(model.network, "_supports_sdpa", False):
        return False
    return all(type(layer) is DynamicLayer for layer in prefix.cache.layers)


@torch.no_grad()
def forward_forest(
    model: LanguageModel, prefix: Prefix, forest: Forest, wanted: Sequence[int]
) -> Tensor:
    """Logits after some tokens of a forest, each as if its branch alone followed the prefix.

    The prefix is neither copied per branch nor written to.

    Args:
        model: One that :func:`can_branch`.
        prefix: What all branches follow.
        forest: One token or more.
        wanted: Places of tokens in the forest.

    Returns:
        ``[len(wanted), vocab_size]``, float32 (float64 for a float64 model).
    """
    cache = DynamicCache(config=model.network.config)
    cache.layers = [_borrow(layer) for layer in prefix.cache.layers]
    size, device = len(forest), model.device
    visible = torch.ones(size, prefix.length + size, dtype=torch.bool)
    visible[:, prefix.length :] = torch.from_numpy(forest.ancestors())
    # Only masked kernels take a tree; ours and the flash kernels know none.
    now = model.network.config._attn_implementation
    with nullcontext() if now == "sdpa" else attention_implementation(model, "sdpa"):
        out = model.network(
            input_ids=torch.tensor([forest.tokens], device=device),
            attention_mask=visible[None, None].to(device),
            position_ids=torch.tensor([forest.depths], device=device) + prefix.length,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=torch.tensor(list(wanted), device=device),
        )
    logits: Tensor = out.logits[0]
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _borrow(layer: DynamicLayer) -> _Borrowed:
    borrowed = _Borrowed()
    borrowed.keys, borrowed.values = layer.keys, layer.values
    borrowed.is_initialized = layer.is_initialized
    return borrowed
