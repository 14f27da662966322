"""Read many long prompts that part from one another at different places."""

from collections.abc import Iterator, Sequence

from diffattn.lab.inference.network_reader import ItemError, NetworkReader, Prefix
from diffattn.lab.inference.shared_prefixes import common_length

_WORTH_SHARING = 128
"""Tokens: what is shorter is computed again rather than read in a pass of its own."""


def read_prompts(
    model: NetworkReader, prompts: Sequence[Sequence[int]]
) -> Iterator[tuple[int, Prefix]]:
    """Every prompt read up to its last token; what several share is read once.

    Prompts form a tree: a needle hidden at several depths of one text makes prompts whose common
    beginnings grow with the depth. Where prompts part, those that go on alone come first and the
    largest group last, so that such prompts hold the keys and values of two at a time, however
    many there are. Drop a prefix before asking for the next.

    Args:
        model: The model.
        prompts: Token ids, one or more each.

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
        # A stack: what is put on it last comes off first.
        groups = sorted(_part(members, prompts, shared), key=len, reverse=True)
        waiting += [(group, before) for group in groups]


def _part(members: Sequence[int], prompts: Sequence[Sequence[int]], at: int) -> list[list[int]]:
    """Sorted prompts by their next token; one that ends there goes alone."""
    groups: dict[tuple[int, int], list[int]] = {}
    for i in members:
        ends = at + 1 == len(prompts[i])
        groups.setdefault((prompts[i][at], i if ends else -1), []).append(i)
    return list(groups.values())
