"""Find the prefixes that several sequences share, so that each is read once."""

import itertools
from collections.abc import Iterator, Sequence

from diffattn.lab.inference.network_reader import ItemError, NetworkReader, Prefix


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
