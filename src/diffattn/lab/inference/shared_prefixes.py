"""Tokens with which several sequences begin: read once, for all of them."""

from collections.abc import Iterator, Sequence

from diffattn.lab.inference.network_reader import ItemError, NetworkReader, Prefix

_WORTH_SHARING = 128
"""Tokens: a shorter prefix is computed again rather than read in a pass of its own."""


def shared_prefixes(
    model: NetworkReader,
    sequences: Sequence[Sequence[int]],
    limits: Sequence[int],
    before: Prefix | None = None,
) -> Iterator[tuple[Prefix, list[int]]]:
    """Groups of sequences, and the tokens that each group begins with, read once.

    Sequences form a tree: a needle hidden at several depths of one text makes prompts whose common
    beginnings grow with the depth. Where sequences part, those that go on alone come first and the
    largest group last, so that the keys and values of two prefixes at most are held at a time.
    Drop a prefix before asking for the next.

    Args:
        model: Model that reads.
        sequences: Tokens, any number of each.
        limits: How many leading tokens of each may go into a prefix.
        before: Tokens already read that all sequences continue. Default: none.

    Yields:
        A prefix, of ``before`` and what the group shares, and positions in ``sequences``.
    """
    start = model.read([]) if before is None else before
    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    waiting = [(order, start)] if order else []
    while waiting:
        members, prefix = waiting.pop()
        known = prefix.length - start.length
        shared = _common_length(sequences[members[0]], sequences[members[-1]])
        shared = min(shared, *(limits[i] for i in members))
        if len(members) > 1 and shared - known >= _WORTH_SHARING:
            prefix = model.read(sequences[members[0]][known:shared], prefix)
            known = shared
        groups: dict[tuple[int, ...], list[int]] = {}
        for i in members:
            following = sequences[i][known : min(known + _WORTH_SHARING, limits[i])]
            groups.setdefault(tuple(following), []).append(i)
        parting = [
            group
            for following, group in groups.items()
            if len(group) > 1 and len(following) == _WORTH_SHARING
        ]
        if alone := set(members).difference(*parting):
            yield prefix, sorted(alone)
        # A stack: what is put on it last comes off first.
        waiting += [(group, prefix) for group in sorted(parting, key=len, reverse=True)]


def read_prompts(
    model: NetworkReader, prompts: Sequence[Sequence[int]]
) -> Iterator[tuple[int, Prefix]]:
    """Every prompt read up to its last token; see :func:`shared_prefixes`.

    Yields:
        Position in ``prompts`` and all tokens of that prompt but the last, in no fixed order.

    Raises:
        ItemError: A prompt is empty, or longer than the model.
    """
    if not all(prompts):
        raise ItemError("read_prompts: a prompt must hold a token or more, got none.")
    model.require_length(max(map(len, prompts), default=0), "read_prompts: a prompt")
    limits = [0 if model.rows_alone else len(prompt) - 1 for prompt in prompts]
    for prefix, members in shared_prefixes(model, prompts, limits):
        for i in members:
            yield i, model.read(prompts[i][prefix.length : -1], prefix)


def _common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
