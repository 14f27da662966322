"""Read prefixes that sequences share once, and run many branches after one prefix in one pass."""

import itertools
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from diffattn.lab.inference.network_reader import ItemError, NetworkReader, Prefix, batches
from diffattn.probes.attention_rows import attention_implementation

Rows = Generator[Tensor, Mapping[int, int], None]
"""Yields next-token logits ``[rows, vocab_size]``. After ``send({row: token})`` it yields the next
logits of these rows."""


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

    # More than 384 tokens are not faster: every token has all others as masked keys.
    return batches(
        range(len(sizes)), lambda batch: len(batch) <= most and sum(sizes[i] for i in batch) <= 384
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


def grow_branches(model: NetworkReader, prefix: Prefix, rows: Sequence[Sequence[int]]) -> Rows:
    """Extend rows token by token after one prefix, whose keys and values are held once."""
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


def read_prompts(
    model: NetworkReader, prompts: Sequence[Sequence[int]]
) -> Iterator[tuple[int, Prefix]]:
    """Read every prompt up to its last token; leading tokens that several share are read once.

    Yields the index of a prompt and a prefix with all its tokens but the last, in no fixed order.
    Where prompts differ, smaller groups are read first and the largest last. So at most two
    prompts' keys and values are held at a time, if the caller drops each prefix before it asks for
    the next.
    """
    if not all(prompts):
        raise ItemError("read_prompts: a prompt must hold a token or more, got none.")
    model.require_length(max(map(len, prompts), default=0), "read_prompts: a prompt")
    if model.rows_alone:
        yield from ((i, model.read(prompt[:-1])) for i, prompt in enumerate(prompts))
        return
    order = sorted(range(len(prompts)), key=lambda i: tuple(prompts[i]))
    waiting: list[tuple[list[int], Prefix | None]] = [(order, None)] if order else []
    while waiting:
        members, before = waiting.pop()
        known = before.length if before else 0
        shared = common_length(prompts[members[0]], prompts[members[-1]])
        shared = min(shared, *(len(prompts[i]) - 1 for i in members))
        if len(members) == 1:
            yield members[0], model.read(prompts[members[0]][known:shared], before)
            continue
        if shared - known >= _GROUP_COST:
            before = model.read(prompts[members[0]][known:shared], before)
        groups: dict[tuple[int, int], list[int]] = {}
        for i in members:  # group by the next token; a prompt whose last token it is stays alone
            ends = shared + 1 == len(prompts[i])
            groups.setdefault((prompts[i][shared], i if ends else -1), []).append(i)
        # ``waiting`` is a stack: the smallest group, put last, is read first.
        waiting += [(group, before) for group in sorted(groups.values(), key=len, reverse=True)]


_GROUP_COST = 128
"""Cost of an extra pass in tokens. A shared prefix that saves less is computed per sequence."""


def share_prefixes(
    sequences: Sequence[Sequence[int]], limits: Sequence[int] | None = None
) -> list[tuple[int, list[int]]]:
    """Group sequences so that the fewest tokens are computed.

    In sorted order, sequences with a common prefix are neighbours. A run of neighbours is either
    one group, which computes the common prefix once, or is cut where neighbours share the shortest
    prefix, whichever costs less. ``limits`` holds, for each sequence, how many leading tokens may
    go into a prefix. Default: all but the last, which must run after the prefix.

    Returns:
        The number of leading tokens that a group shares, and the indices of its sequences. The
        last group has length 0: sequences that share nothing worth a pass, if any.
    """
    if not sequences:
        return []
    most = [max(0, len(x) - 1) for x in sequences]
    if limits is not None:
        most = [min(pair) for pair in zip(most, limits, strict=True)]
    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    common = [common_length(sequences[a], sequences[b]) for a, b in itertools.pairwise(order)]
    runs = _best_runs(order, common, most, [len(x) for x in sequences])
    groups = [(length, order[start:stop]) for start, stop, length in runs if length]
    alone = sorted(i for start, stop, length in runs if not length for i in order[start:stop])
    return [*groups, (0, alone)] if alone else groups


def _best_runs(
    order: list[int], common: list[int], most: list[int], sizes: list[int]
) -> list[tuple[int, int, int]]:
    """The cheapest runs ``(start, stop, shared length)`` of sorted sequences.

    The cheapest cut of a run is where neighbours share the shortest prefix, so the runs form a tree
    with one node per cut. It is walked without recursion, as lists can be thousands long.
    """
    best: dict[tuple[int, int], tuple[int, list[tuple[int, int, int]]]] = {}
    waiting = [(0, len(order), False)]
    while waiting:
        start, stop, children_done = waiting.pop()
        whole = [order[i] for i in range(start, stop)]
        total = sum(sizes[i] for i in whole)
        if stop - start == 1:
            best[start, stop] = (total, [(start, stop, 0)])
            continue
        cut = min(range(start, stop - 1), key=lambda i: common[i]) + 1
        if not children_done:
            waiting += [(start, stop, True), (start, cut, False), (cut, stop, False)]
            continue
        length = min(common[cut - 1], min(most[i] for i in whole))
        left, right = best.pop((start, cut)), best.pop((cut, stop))
        shared_cost = total - (len(whole) - 1) * length + _GROUP_COST
        if length and shared_cost < left[0] + right[0]:
            best[start, stop] = (shared_cost, [(start, stop, length)])
        else:
            best[start, stop] = (left[0] + right[0], left[1] + right[1])
    return best[0, len(order)][1]


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
