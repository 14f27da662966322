"""Log-probabilities of given continuations, shared prefixes computed once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffattn.lab.inference.network_reader import ItemError, NetworkReader, Prefix
from diffattn.lab.inference.shared_prefixes import shared_prefixes


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens to be scored after tokens that are given."""

    context: tuple[int, ...]
    """One or more."""
    target: tuple[int, ...]
    """One or more."""


@dataclass(frozen=True, slots=True)
class Score:
    """Log-probabilities of one continuation."""

    token_logprobs: tuple[float, ...]
    """log p of every target token given all before it, in nats."""
    is_greedy: bool
    """Whether greedy decoding would have written the target."""

    @property
    def logprob(self) -> float:
        """Log-probability of the whole target, in nats."""
        return sum(self.token_logprobs)


def score(
    model: NetworkReader,
    continuations: Sequence[Continuation],
    *,
    before: Prefix | None = None,
) -> list[Score]:
    """Score continuations; contexts that begin alike are read once.

    Args:
        model: Model that scores.
        continuations: Any number, in any order.
        before: Tokens already read that all contexts continue. Default: none.

    Raises:
        ItemError: A continuation is longer than the model, or has no context or no target.
    """
    given = before.length if before else 0
    for asked in continuations:
        if not asked.context or not asked.target:
            raise ItemError("score: context and target must hold a token or more, got none.")
        model.require_ids(asked.target)
        size = given + len(asked.context) + len(asked.target) - 1
        model.require_length(size, "score: context and target")
    inputs = [(*asked.context, *asked.target[:-1]) for asked in continuations]
    # Logits begin at the last context token, which therefore is never part of a prefix.
    limits = [0 if model.rows_alone else len(asked.context) - 1 for asked in continuations]
    scores: dict[int, Score] = {}
    for prefix, group in shared_prefixes(model, inputs, limits, before):
        known = prefix.length - given  # of the context: ``before`` is not part of it
        members = [i for i in group if len(inputs[i]) - known <= _whole_rows(model)]
        for i in set(group) - set(members):
            scores[i] = _score_long(model, prefix, continuations[i], known)
        rows = [inputs[i][known:] for i in members]
        targets = [continuations[i].target for i in members]
        for batch in model.row_batches([len(row) for row in rows], prefix, all_logits=True):
            logits, _ = model.forward_rows(prefix, [rows[j] for j in batch])
            for padded, j in zip(logits, batch, strict=True):
                size = len(rows[j])
                scores[members[j]] = _score(padded[size - len(targets[j]) : size], targets[j])
    return [scores[i] for i in range(len(continuations))]


def _whole_rows(model: NetworkReader) -> int:
    """Longest row that runs in one pass with all its logits."""
    limits = model.limits
    return max(1, min(limits.chunk_tokens, limits.chunk_logits // model.text_config.vocab_size))


def _score_long(model: NetworkReader, prefix: Prefix, asked: Continuation, known: int) -> Score:
    """A long row by chunks, with flat memory; ``prefix`` ends with its first ``known`` tokens."""
    inputs = (*asked.context, *asked.target[:-1])
    start = len(asked.context) - 1
    prefix = model.read(inputs[known:start], prefix)
    size = _whole_rows(model)
    parts = []
    while start < len(inputs):
        chunk = inputs[start : start + size]
        logits, cache = model.forward_rows(prefix, [chunk])
        prefix = Prefix(prefix.length + len(chunk), cache)
        done = start - (len(asked.context) - 1)
        parts.append(_score(logits[0], asked.target[done : done + len(chunk)]))
        start += len(chunk)
    return Score(
        tuple(x for part in parts for x in part.token_logprobs),
        all(part.is_greedy for part in parts),
    )


def _score(logits: Tensor, target: Sequence[int]) -> Score:
    """Score from the logits ``[len(target), vocab_size]`` that predict the target."""
    wanted = torch.tensor(list(target), device=logits.device)
    logprobs = logits.log_softmax(-1).gather(-1, wanted[:, None])[:, 0]
    return Score(tuple(logprobs.tolist()), bool((logits.argmax(-1) == wanted).all()))
