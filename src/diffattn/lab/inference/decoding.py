"""Greedy decoding; shared prefixes are computed once."""

import itertools
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffattn.lab.inference.network_reader import ItemError, NetworkReader, Prefix, batches
from diffattn.lab.inference.shared_prefixes import share_prefixes
from diffattn.lab.inference.token_tree import can_branch, grow_branches

Rows = Generator[Tensor, Mapping[int, int], None]
"""Yields next-token logits ``[rows, vocab_size]``. After ``send({row: token})`` it yields the next
logits of these rows."""
_BRANCH_TOKENS = 2_048  # most tokens of rows in one tree: the mask has this many rows


@dataclass(frozen=True, slots=True)
class Generation:
    """A continuation by a model: its tokens, and their text, cut before the first stop string."""

    ids: tuple[int, ...]
    text: str
    finished: str
    """Reason of the end: ``"stop"`` (a stop string), ``"eos"`` (an end token) or ``"length"``."""


@torch.no_grad()
def generate(
    model: NetworkReader,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop: Sequence[str] = (),
    before: Prefix | None = None,
) -> list[Generation]:
    """Greedy decoding of prompts of any lengths after ``before``; shared prefixes are read once.

    A continuation ends at any of :func:`diffattn.models.loading.end_tokens`, at a ``stop`` string,
    or after ``max_new_tokens``. Ties go to the smallest token id.
    """
    if max_new_tokens < 1:
        raise ItemError(f"generate: max_new_tokens must be 1 or more, got {max_new_tokens}.")
    known = before.length if before else 0
    for prompt in prompts:
        require_room(model, known + len(prompt) if prompt else 0, max_new_tokens)
    generations: dict[int, Generation] = {}
    limits = [0] * len(prompts) if model.rows_alone else None
    for length, members in share_prefixes(prompts, limits):
        prefix = model.read(prompts[members[0]][:length], before)
        rows = [list(prompts[i][length:]) for i in members]
        room = [len(row) + max_new_tokens for row in rows]
        copied = len(rows) * prefix.length
        branched = copied >= model.limits.copied_tokens and can_branch(model, prefix)
        if branched:
            grouped = _batches_by_tokens(room, min(prefix.length, _BRANCH_TOKENS))
        else:
            grouped = model.row_batches(room, prefix, all_logits=False)
            if not prefix.keeps_all:  # padding would take up places in a window
                by_length = (itertools.groupby(batch, room.__getitem__) for batch in grouped)
                grouped = (list(group) for groups in by_length for _, group in groups)
        for batch in grouped:
            some = [rows[j] for j in batch]
            grow = grow_branches if branched and len(batch) > 1 else _padded_rows
            done = _decode(model, grow(model, prefix, some), len(batch), max_new_tokens, stop)
            generations.update(zip((members[j] for j in batch), done, strict=True))
    return [generations[i] for i in range(len(prompts))]


def require_room(model: NetworkReader, prompt_tokens: int, max_new_tokens: int) -> None:
    """Raise ``ItemError`` if a prompt is empty or leaves no room for its continuation."""
    if not prompt_tokens:
        raise ItemError("generate: a prompt must hold a token or more, got none.")
    model.require_length(prompt_tokens + max_new_tokens, "generate: prompt and continuation")


def _decode(
    model: NetworkReader, rows: Rows, count: int, max_new_tokens: int, stop: Sequence[str]
) -> list[Generation]:
    written: list[list[int]] = [[] for _ in range(count)]
    done: dict[int, Generation] = {}
    last = dict(enumerate(next(rows)))
    for step in range(max_new_tokens):
        tokens: dict[int, int] = {}  # of the unfinished rows
        for i, logits in last.items():
            choice = int(logits.argmax())
            if choice in model.end_tokens:
                done[i] = Generation(tuple(written[i]), model.decode(written[i]), "eos")
                continue
            written[i].append(choice)
            stopped = _stopped_text(model, written[i], stop) if stop else None
            if stopped is not None:
                done[i] = Generation(tuple(written[i]), stopped, "stop")
            else:
                tokens[i] = choice
        if not tokens or step + 1 == max_new_tokens:
            break
        last = dict(zip(tokens, rows.send(tokens), strict=True))
    return [
        done.get(i) or Generation(tuple(ids), model.decode(ids), "length")
        for i, ids in enumerate(written)
    ]


def _stopped_text(model: NetworkReader, ids: Sequence[int], stop: Sequence[str]) -> str | None:
    """Text before the first stop string, which may spell special tokens; ``None`` without one."""
    text = model.decode(ids)
    if (end := first_stop(text, stop)) is not None:
        return text[:end]
    if not model.special_tokens.intersection(ids):
        return None
    spelled = [model.tokenizer.decode(ids[:count]) for count in range(len(ids) + 1)]
    if (end := first_stop(spelled[-1], stop)) is None:
        return None
    whole = max(count for count, text in enumerate(spelled) if len(text) <= end)
    rest = "" if ids[whole] in model.special_tokens else spelled[-1][len(spelled[whole]) : end]
    return model.decode(ids[:whole]) + rest


def _batches_by_tokens(room: Sequence[int], most: int) -> Iterator[list[int]]:
    # The keys of all rows of a batch are in one mask.
    order = sorted(range(len(room)), key=room.__getitem__)
    return batches(order, lambda batch: sum(room[i] for i in batch) <= most)


def first_stop(text: str, stop: Sequence[str]) -> int | None:
    """Where the first stop string begins; ``None`` without one."""
    return min((at for s in stop if s and (at := text.find(s)) >= 0), default=None)


def _padded_rows(model: NetworkReader, prefix: Prefix, rows: list[list[int]]) -> Rows:
    """Decode padded rows, each with its own copy of the prefix. Rows that ended get token 0."""
    if len(rows) == 1 and len(rows[0]) > 1:
        prefix, rows = model.read(rows[0][:-1], prefix), [rows[0][-1:]]  # reads in chunks
    lengths = torch.tensor([len(row) for row in rows], device=model.device)
    ends, end_of_row = (lengths - 1).unique(return_inverse=True)
    logits, cache = model.forward_rows(prefix, rows, keep=ends)
    longest = int(lengths.max())
    mask = torch.ones(len(rows), prefix.length + longest, dtype=torch.long, device=model.device)
    mask[:, prefix.length :] = torch.arange(longest, device=model.device) < lengths[:, None]
    tokens = yield logits[torch.arange(len(rows)), end_of_row]
    for step in itertools.count():
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
        ids = [tokens.get(i, 0) for i in range(len(rows))]
        out = model.network(
            input_ids=torch.tensor(ids, device=model.device)[:, None],
            attention_mask=mask,
            position_ids=(prefix.length + lengths + step)[:, None],
            past_key_values=cache,
            use_cache=True,
        )
        last = out.logits[list(tokens), -1]
        model.require_finite(last)
        tokens = yield last.to(torch.promote_types(last.dtype, torch.float32))
