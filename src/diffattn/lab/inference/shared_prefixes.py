"""Tokens with which several sequences begin: read once, for all of them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diffattn.lab.inference.network_reader import ItemError, NetworkReader, Prefix

_WORTH_SHARING = 128
"""Tokens: a shorter prefix is computed again rather than read in a pass of its own."""


def read_prompts(
    model: NetworkReader, prompts: Sequence[Sequence[int]]
) -> Iterator[tuple[int, Prefix]]:
    """Every prompt read up to its last token; leading tokens that several share are read once.

    Prompts form a tree: a needle hidden at several depths of one text makes prompts whose common
    beginnings grow with the depth. Where prompts part, those that go on alone come first and the
    largest group last, so that the keys and values of two prompts at most are held at a time.
    Drop a prefix before asking for the next.

    Yields:
        Position in ``prompts`` and all tokens of that prompt but the last, in no fixed order.

    Raises:
        ItemError: A prompt is empty, or longer than the model.
    """
    if not all(prompts):
        raise ItemError("read_prompts: a prompt must hold a token or more, got none.")
    model.require_length(max(map(len, prompts), default=0), "read_prompts: a prompt")
    if model.rows_alone:
        yield from ((i, model.read(prompt[:-1])) for i, prompt in enumerate(prompts))
        return
    if not prompts:
        return
    order = sorted(range(len(prompts)), key=lambda i: tuple(prompts[i]))
    waiting: list[tuple[list[int], Prefix | None]] = [(order, None)]
    while waiting:
        members, before = waiting.pop()
        known = before.length if before else 0
        shared = common_length(prompts[members[0]], prompts[members[-1]])
        shared = min(shared, *(len(prompts[i]) - 1 for i in members))
        if len(members) == 1:
            yield members[0], model.read(prompts[members[0]][known:shared], before)
            continue
        if shared - known >= _WORTH_SHARING:
            before = model.read(prompts[members[0]][known:shared], before)
        groups: dict[tuple[int, int], list[int]] = {}
        for i in members:  # by their next token; a prompt that ends there goes alone
            ends = shared + 1 == len(prompts[i])
            groups.setdefault((prompts[i][shared], i if ends else -1), []).append(i)
        # A stack: what is put on it last comes off first.
        waiting += [(group, before) for group in sorted(groups.values(), key=len, reverse=True)]


_GROUP_COST = 128
"""What a pass of its own costs, in tokens: shorter shared prefixes are computed again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedPrefix:
    """Some sequences and the number of leading tokens they have in common."""

    length: int
    """0: the members share nothing worth keeping and run as whole rows."""
    members: tuple[int, ...]
    """Positions in the list that was grouped."""


def share_prefixes(
    sequences: Sequence[Sequence[int]], limits: Sequence[int] | None = None
) -> list[SharedPrefix]:
    """Group sequences so that the fewest tokens are computed.

    Sorted, sequences with a common prefix lie side by side. A run of them is either one group,
    which computes the prefix all have in common once, or is cut where neighbours agree least;
    whichever costs less is taken, for every run. ``limits`` says how many leading tokens of each
    may go into a prefix (default: all but one, since one must be left to run on it).

    Returns:
        Groups with a prefix, then one group of length 0 with the rest, if any.
    """
    if not sequences:
        return []
    most = [max(0, len(x) - 1) for x in sequences]
    if limits is not None:
        most = [min(pair) for pair in zip(most, limits, strict=True)]
    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    common = [common_length(sequences[a], sequences[b]) for a, b in itertools.pairwise(order)]
    runs = _best_runs(order, common, most, [len(x) for x in sequences])
    groups = [
        SharedPrefix(length=length, members=tuple(order[start:stop]))
        for start, stop, length in runs
        if length
    ]
    alone = sorted(i for start, stop, length in runs if not length for i in order[start:stop])
    return [*groups, SharedPrefix(length=0, members=tuple(alone))] if alone else groups


def _best_runs(
    order: list[int], common: list[int], most: list[int], sizes: list[int]
) -> list[tuple[int, int, int]]:
    """The cheapest runs ``(start, stop, shared length)`` of sorted sequences.

    A run's cheapest cut is where its neighbours have least in common, so the runs form a tree
    with one node per cut. It is walked without recursion: sorted lists can be thousands long.
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
