"""Log-probabilities of given continuations, shared prefixes computed once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffattn.inference.language_model import ItemError, LanguageModel, Prefix
from diffattn.inference.shared_prefixes import share_prefixes
from diffattn.inference.token_tree import Forest, can_branch, forward_forest, passes

_CHUNK_LOGITS = 2**26
"""Logits held at once: of branches, or of a row too long for one pass."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens to be scored after tokens that are given."""

    context: tuple[int, ...]
    """One or more."""
    target: tuple[int, ...]
    """One or more."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a model thinks of one continuation."""

    token_logprobs: tuple[float, ...]
    """log p of every target token given all before it, in nats."""
    greedy: tuple[int, ...]
    """The likeliest token at every place of the target."""
    is_greedy: bool
    """Whether greedy decoding would have written the target."""

    @property
    def logprob(self) -> float:
        """Log-probability of the whole target, in nats."""
        return sum(self.token_logprobs)


def score(
    model: LanguageModel,
    continuations: Sequence[Continuation],
    *,
    share: bool = True,
    before: Prefix | None = None,
) -> list[Score]:
    r"""Score continuations; contexts that begin alike are read once.

    .. math:: \log p(y \mid x) = \sum_t \log p(y_t \mid x, y_{<t})

    Args:
        model: The model.
        continuations: Any number, in any order.
        share: ``False`` reads every context from scratch: the definition, for comparison.
        before: Tokens already read that all contexts continue. Default: none.

    Returns:
        One score per continuation, in order.

    Raises:
        ItemError: A continuation is longer than the model, or has no context or no target.
    """
    for one in continuations:
        _require_fit(model, one, before.length if before else 0)
    inputs = [(*one.context, *one.target[:-1]) for one in continuations]
    # Logits begin at the last context token, which therefore is never part of a prefix.
    share = share and not model.rows_alone
    limits = [len(one.context) - 1 if share else 0 for one in continuations]
    found: dict[int, Score] = {}
    for group in share_prefixes(inputs, limits):
        prefix = model.read(inputs[group.members[0]][: group.length], before)
        known = group.length  # of the context: ``before`` is not part of it
        members = [i for i in group.members if len(inputs[i]) - known <= _whole_rows(model)]
        for i in set(group.members) - set(members):
            found[i] = _score_long(model, prefix, continuations[i], known)
        rows = [inputs[i][known:] for i in members]
        targets = [continuations[i].target for i in members]
        run = _branches if prefix.length and can_branch(model, prefix) else _rows
        for j, logits in run(model, prefix, rows, [len(target) for target in targets]):
            found[members[j]] = _score(logits, targets[j])
    return [found[i] for i in range(len(continuations))]


def _branches(
    model: LanguageModel, prefix: Prefix, rows: Sequence[Sequence[int]], keep: Sequence[int]
) -> Iterator[tuple[int, Tensor]]:
    """Every row's position and its last ``keep`` logits; the prefix is not copied per row."""
    most = max(1, _CHUNK_LOGITS // (max(keep, default=1) * model.network.config.vocab_size))
    for batch in passes([len(row) for row in rows], most):
        if len(batch) == 1:  # one row needs no mask of its own
            yield from _rows(model, prefix, rows, keep, batch)
            continue
        forest = Forest()
        wanted = [forest.add(rows[j])[-keep[j] :] for j in batch]
        logits = forward_forest(model, prefix, forest, [at for one in wanted for at in one])
        yield from zip(batch, logits.split([len(one) for one in wanted]), strict=True)


def _rows(
    model: LanguageModel,
    prefix: Prefix,
    rows: Sequence[Sequence[int]],
    keep: Sequence[int],
    chosen: Sequence[int] | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """The same by padded rows, of which each has its own copy of the prefix."""
    chosen = range(len(rows)) if chosen is None else chosen
    for batch in model.row_batches([len(rows[j]) for j in chosen], prefix, all_logits=True):
        some = [chosen[i] for i in batch]
        logits, _ = model.forward_rows(prefix, [rows[j] for j in some])
        for own, j in zip(logits, some, strict=True):
            yield j, own[len(rows[j]) - keep[j] : len(rows[j])]


def _whole_rows(model: LanguageModel) -> int:
    """Longest row that runs in one pass with all its logits."""
    return max(1, min(2_048, _CHUNK_LOGITS // model.network.config.vocab_size))


def _score_long(model: LanguageModel, prefix: Prefix, one: Continuation, known: int) -> Score:
    """A long row by chunks, with flat memory; ``prefix`` ends with its first ``known`` tokens."""
    inputs = (*one.context, *one.target[:-1])
    start = len(one.context) - 1
    prefix = model.read(inputs[known:start], prefix)
    size = _whole_rows(model)
    parts = []
    while start < len(inputs):
        chunk = inputs[start : start + size]
        logits, cache = model.forward_rows(prefix, [chunk])
        prefix = Prefix(prefix.length + len(chunk), cache)
        done = start - (len(one.context) - 1)
        parts.append(_score(logits[0], one.target[done : done + len(chunk)]))
        start += len(chunk)
    return Score(
        tuple(x for part in parts for x in part.token_logprobs),
        tuple(x for part in parts for x in part.greedy),
        all(part.is_greedy for part in parts),
    )


def _score(logits: Tensor, target: Sequence[int]) -> Score:
    """Score from the logits ``[len(target), vocab_size]`` that predict the target."""
    wanted = torch.tensor(list(target), device=logits.device)
    logprobs = logits.log_softmax(-1).gather(-1, wanted[:, None])[:, 0]
    greedy = logits.argmax(-1)
    return Score(tuple(logprobs.tolist()), tuple(greedy.tolist()), bool((greedy == wanted).all()))


def _require_fit(model: LanguageModel, one: Continuation, known: int) -> None:
    if not one.context or not one.target:
        raise ItemError("score: context and target must hold a token or more, got none.")
    size = known + len(one.context) + len(one.target) - 1
    if size > model.max_length:
        raise ItemError(
            f"score: context and target must fit the model's {model.max_length} tokens, got {size}."
        )
