"""Run many branches after one prefix in one pass: a token sees the prefix and its ancestors."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from diffattn.lab.inference.network_reader import NetworkReader, Prefix, batches
from diffattn.probes.attention_rows import attention_implementation

_PASS_TOKENS = 384
"""Most tokens of one pass. More are not faster: every token has all others as masked keys."""


class TokenTree:
    """Tokens that branch out from one prefix. Tokens that branches share are held once."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []  # index of the token before each; -1 stands for the prefix
        self.depths: list[int] = []  # number of each token's ancestors in the tree
        self._known: dict[tuple[int, int], int] = {}

    def add(self, tokens: Sequence[int], parent: int = -1) -> list[int]:
        """Add a branch after token ``parent`` (-1: the prefix); return its tokens' indices."""
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
        """bool ``[tokens, tokens]``: whether token j is token i or one of its ancestors."""
        after = np.eye(len(self.tokens), dtype=bool)
        for i, parent in enumerate(self.parents):  # parents come first
            if parent >= 0:
                after[i] |= after[parent]
        return after


class _Borrowed(DynamicLayer):
    """A cache layer that returns the prefix and the new keys together, but keeps only the prefix:
    there is never a second whole prefix."""

    def __init__(self, layer: DynamicLayer) -> None:
        super().__init__()
        self.keys, self.values = layer.keys, layer.values
        self.is_initialized = layer.is_initialized

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of the prefix and the new ones."""
        if self.keys is None:
            return key_states, value_states
        keys = torch.cat([self.keys, key_states], dim=-2)
        return keys, torch.cat([self.values, value_states], dim=-2)


def passes(sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Indices of the branches of each pass, in order, at most ``most`` of them."""

    return batches(
        range(len(sizes)),
        lambda batch: len(batch) <= most and sum(sizes[i] for i in batch) <= _PASS_TOKENS,
    )


def can_branch(model: NetworkReader, prefix: Prefix) -> bool:
    """Whether :func:`forward_tree` is right for this model: it needs full attention with a mask.

    Layers with a window take the order of the tokens for their positions, which is wrong for
    branches. So does ALiBi, which ignores position ids. A model with ``rows_alone`` keeps its own
    attention kernel.
    """
    takes_mask = getattr(model.network, "_supports_sdpa", False)
    alibi = getattr(model.text_config, "alibi", False)
    return takes_mask and prefix.keeps_all and not alibi and not model.rows_alone


def forward_tree(
    model: NetworkReader, prefix: Prefix, tree: TokenTree, wanted: Sequence[int]
) -> Tensor:
    """Logits after the ``wanted`` tokens of a tree, as if each branch alone followed the prefix.

    They are ``[len(wanted), vocab_size]``, float32, or float64 for a float64 model.
    """
    cache = DynamicCache(config=model.network.config)
    cache.layers = [_Borrowed(layer) for layer in prefix.cache.layers]
    seen = torch.from_numpy(tree.ancestors())
    return _forward(model, prefix, cache, tree.tokens, tree.depths, seen, wanted)


def grow_branches(
    model: NetworkReader, prefix: Prefix, rows: Sequence[Sequence[int]]
) -> Generator[Tensor, Mapping[int, int], None]:
    """Extend rows token by token after one prefix, whose keys and values are held once.

    It yields logits like :data:`diffattn.lab.inference.decoding.Rows`.
    """
    cache, lengths, tree = prefix.rows(1), [len(row) for row in rows], TokenTree()
    ends = [tree.add(row)[-1] for row in rows]
    ancestors = torch.from_numpy(tree.ancestors())
    tokens = yield _forward(model, prefix, cache, tree.tokens, tree.depths, ancestors, ends)
    seen = ancestors[ends]  # [rows, tokens so far]
    while True:
        grown = list(tokens)
        added = torch.zeros(len(rows), len(grown), dtype=torch.bool)
        added[grown, torch.arange(len(grown))] = True
        seen = torch.cat([seen, added], dim=1)
        depths = [lengths[row] for row in grown]
        for row in grown:
            lengths[row] += 1
        new, wanted = list(tokens.values()), range(len(grown))
        tokens = yield _forward(model, prefix, cache, new, depths, seen[grown], wanted)


@torch.no_grad()
def _forward(
    model: NetworkReader,
    prefix: Prefix,
    cache: DynamicCache,
    tokens: Sequence[int],
    depths: Sequence[int],
    seen: Tensor,
    wanted: Sequence[int],
) -> Tensor:
    """Logits after the wanted tokens; ``seen``: bool ``[new tokens, tokens after the prefix]``."""
    device = model.device
    model.require_ids(tokens)
    visible = torch.cat([seen.new_ones(len(tokens), prefix.length), seen], dim=1)
    # A tree needs a kernel that takes a mask; ours and the flash kernels do not.
    now = model.network.config._attn_implementation
    with nullcontext() if now == "sdpa" else attention_implementation(model.network, "sdpa"):
        out = model.network(
            input_ids=torch.tensor([list(tokens)], device=device),
            attention_mask=visible[None, None].to(device),
            position_ids=torch.tensor([list(depths)], device=device) + prefix.length,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=torch.tensor(list(wanted), device=device),
        )
    logits: Tensor = out.logits[0]
    model.require_finite(logits)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
