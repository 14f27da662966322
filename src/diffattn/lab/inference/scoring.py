"""Log-probabilities of continuations and labels, and the losses of whole texts."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diffattn.errors import ConfigError
from diffattn.lab.inference.network_reader import ItemError, NetworkReader, Prefix
from diffattn.lab.inference.shared_prefixes import (
    TokenTree,
    can_branch,
    forward_tree,
    passes,
    share_prefixes,
)


@dataclass(frozen=True, slots=True)
class Continuation:
    """One token id or more to score, and one or more before them, which are given."""

    context: tuple[int, ...]
    target: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Log-probability of each target token given all tokens before it, in nats, and whether each
    has the highest logit, so that greedy decoding would write the target."""

    token_logprobs: tuple[float, ...]
    is_greedy: bool

    @property
    def logprob(self) -> float:
        """Log-probability of the whole target."""
        return sum(self.token_logprobs)


def score(
    model: NetworkReader, continuations: Sequence[Continuation], *, before: Prefix | None = None
) -> list[Score]:
    """Score continuations, all after ``before``; prefixes that they share are read once."""
    for asked in continuations:
        if not asked.context or not asked.target:
            raise ItemError("score: context and target must hold a token or more, got none.")
        model.require_ids(asked.target)
        size = (before.length if before else 0) + len(asked.context) + len(asked.target) - 1
        model.require_length(size, "score: context and target")
    inputs = [(*asked.context, *asked.target[:-1]) for asked in continuations]
    # The last context token predicts the first target token, so it is never part of a prefix.
    limits = [0 if model.rows_alone else len(asked.context) - 1 for asked in continuations]
    scores: dict[int, Score] = {}
    # ``known`` counts context tokens in the prefix, without those of ``before``.
    for known, group in share_prefixes(inputs, limits):
        prefix = model.read(inputs[group[0]][:known], before)
        members = [i for i in group if len(inputs[i]) - known <= _whole_rows(model)]
        for i in set(group) - set(members):
            scores[i] = _score_long(model, prefix, continuations[i], known)
        rows = [inputs[i][known:] for i in members]
        targets = [continuations[i].target for i in members]
        run = _branches if prefix.length and can_branch(model, prefix) else _rows
        for j, logits in run(model, prefix, rows, [len(target) for target in targets]):
            scores[members[j]] = _score(logits, targets[j])
    return [scores[i] for i in range(len(continuations))]


def _branches(
    model: NetworkReader, prefix: Prefix, rows: Sequence[Sequence[int]], keep: Sequence[int]
) -> Iterator[tuple[int, Tensor]]:
    """Index and last ``keep`` logits of each row, as branches: the prefix is not copied per row."""
    logits_of_row = max(keep, default=1) * model.text_config.vocab_size
    most = max(1, model.limits.chunk_logits // logits_of_row)
    for batch in passes([len(row) for row in rows], most):
        if len(batch) == 1:  # one row needs no mask of its own
            for _, alone in _rows(model, prefix, [rows[batch[0]]], [keep[batch[0]]]):
                yield batch[0], alone
            continue
        tree = TokenTree()
        wanted = [tree.add(rows[j])[-keep[j] :] for j in batch]
        logits = forward_tree(model, prefix, tree, [at for places in wanted for at in places])
        yield from zip(batch, logits.split([len(places) for places in wanted]), strict=True)


def _rows(
    model: NetworkReader, prefix: Prefix, rows: Sequence[Sequence[int]], keep: Sequence[int]
) -> Iterator[tuple[int, Tensor]]:
    """Index and last ``keep`` logits of each row, as padded rows with a copy of the prefix each."""
    for batch in model.row_batches([len(row) for row in rows], prefix, all_logits=True):
        logits, _ = model.forward_rows(prefix, [rows[j] for j in batch])
        for padded, j in zip(logits, batch, strict=True):
            yield j, padded[len(rows[j]) - keep[j] : len(rows[j])]


def _whole_rows(model: NetworkReader) -> int:
    """Length in tokens of the longest row that runs in one pass with all its logits."""
    limits = model.limits
    return max(1, min(limits.chunk_tokens, limits.chunk_logits // model.text_config.vocab_size))


def _score_long(model: NetworkReader, prefix: Prefix, asked: Continuation, known: int) -> Score:
    prefix = model.read(asked.context[known:-1], prefix)
    inputs, size = (asked.context[-1], *asked.target[:-1]), _whole_rows(model)
    parts = []
    for start in range(0, len(inputs), size):
        chunk = inputs[start : start + size]
        logits, cache = model.forward_rows(prefix, [chunk])
        prefix = Prefix(prefix.length + len(chunk), cache)
        parts.append(_score(logits[0], asked.target[start : start + size]))
    return Score(
        tuple(x for part in parts for x in part.token_logprobs),
        all(part.is_greedy for part in parts),
    )


def _score(logits: Tensor, target: Sequence[int]) -> Score:
    wanted = torch.tensor(list(target), device=logits.device)
    logprobs = logits.log_softmax(-1).gather(-1, wanted[:, None])[:, 0]
    return Score(tuple(logprobs.tolist()), bool((logits.argmax(-1) == wanted).all()))


def prefix_losses(
    model: NetworkReader, rows: list[np.ndarray], given: list[int]
) -> list[np.ndarray]:
    """Losses of the tokens of rows in nats, given all tokens before.

    ``given`` holds token ids, such as BOS, before each row. If it is empty, the first token of a
    row is not predicted, and the result has one loss less.
    """
    texts, first = [(*given, *row.tolist()) for row in rows], max(1, len(given))
    return _losses(model, [Continuation(ids[:first], ids[first:]) for ids in texts])


def _losses(model: NetworkReader, asked: list[Continuation]) -> list[np.ndarray]:
    return [-np.array(row.token_logprobs) for row in score(model, asked)]


def sliding_losses(
    model: NetworkReader, tokens: np.ndarray, *, window: int, stride: int, given: list[int]
) -> np.ndarray:
    """Loss of every token of a text in nats, by windows that advance by ``stride`` tokens.

    The first window predicts all its tokens. Each later window predicts the ``stride`` tokens that
    are new, at the end fewer, from ``window - stride`` tokens or more. ``given`` holds ids, such as
    BOS, before every window. If it is empty, the first token of the text is not predicted.
    """
    longest = window if given else window - 1
    if not 1 <= stride <= longest:
        raise ItemError(f"sliding_losses: stride must be from 1 to {longest}, got {stride}.")
    model.require_ids(tokens.tolist())
    first, *rest = windows(len(tokens), window, stride)
    losses = [prefix_losses(model, [tokens[: first[2]]], given)[0]]
    row, size = window + len(given), 1  # windows that run in one pass
    if row <= model.limits.chunk_tokens and not model.rows_alone:
        logits = model.limits.chunk_logits // (stride * model.text_config.vocab_size)
        size = max(1, min(model.limits.batch_tokens // row, logits))
    full = [whole for whole in rest if whole[2] - whole[0] == window]
    groups = [full[i : i + size] for i in range(0, len(full), size)]
    groups += [[shorter] for shorter in rest[len(full) :]]  # the last window may be shorter
    for group in groups:
        losses += _window_losses(model, tokens, group, given)
    return np.concatenate(losses)


def windows(length: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """``(begin, first predicted token, end)`` of each window over a text of ``length`` tokens."""
    begin, predicted = 0, 0
    while True:
        end = min(begin + window, length)
        yield begin, predicted, end
        if end == length:
            return
        begin, predicted = begin + stride, end


def _window_losses(
    model: NetworkReader, tokens: np.ndarray, group: list[tuple[int, int, int]], given: list[int]
) -> list[np.ndarray]:
    inputs = [[*given, *tokens[begin : end - 1].tolist()] for begin, _, end in group]
    wanted = [tokens[predicted:end] for _, predicted, end in group]
    length, last = len(inputs[0]), len(wanted[0])
    if length > model.limits.chunk_tokens:
        rows = zip(inputs, wanted, strict=True)
        context = length - last + 1
        return _losses(model, [Continuation((*x[:context],), (*y.tolist(),)) for x, y in rows])
    kept = torch.arange(length - last, length)
    logits, _ = model.forward_rows(model.read([]), inputs, keep=kept)
    losses = []
    for row, target in zip(logits, wanted, strict=True):
        index = torch.from_numpy(target).to(row.device)[:, None]
        losses.append(-row.log_softmax(-1).gather(-1, index)[:, 0].double().cpu().numpy())
    return losses


@dataclass(frozen=True, slots=True)
class LabelReading:
    """The label that greedy decoding within the labels writes after one prompt, and the
    log-probability of each label with the line break that ends it, in nats."""

    greedy: int
    logprobs: tuple[float, ...]

    @property
    def likeliest(self) -> int:
        """Index of the label with the highest log-probability; the first one of equals."""
        return max(range(len(self.logprobs)), key=self.logprobs.__getitem__)


class LabelTrie:
    """The tokens of labels as a trie. Every label begins with a space and ends with a line break.

    The line break tells a label from longer labels that begin with it. Labels are encoded as they
    follow ``before``, the text at the end of every prompt: see :meth:`NetworkReader.encode_after`.
    """

    def __init__(self, model: NetworkReader, labels: Sequence[str], before: str) -> None:
        self.labels = tuple(labels)
        for label in labels:
            if not label.strip() or "\n" in label:
                raise ConfigError(f"LabelTrie: labels must be one line of text, got {label!r}.")
        self.paths = tuple(tuple(model.encode_after(before, f" {x}\n")) for x in self.labels)
        for (first, a), (second, b) in itertools.combinations(enumerate(self.paths), 2):
            size = min(len(a), len(b))
            if a[:size] == b[:size]:
                raise ConfigError(
                    "LabelTrie: labels must differ in their tokens up to the line break, got "
                    f"{self.labels[first]!r} and {self.labels[second]!r} in {list(b)}."
                )
        self.tree = TokenTree()
        self.walks = [self.tree.add(path) for path in self.paths]  # of each label in the tree
        self.ends = {walk[-1]: number for number, walk in enumerate(self.walks)}
        # Tokens after each token that does not end a label; -1 stands for the end of the prompt.
        self.children: dict[int, list[int]] = {}
        for at, parent in enumerate(self.tree.parents):
            self.children.setdefault(parent, []).append(at)
        self.inner = sorted(self.children)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest label, its line break included."""
        return max(map(len, self.paths))

    def reading(self, logits: Tensor) -> LabelReading:
        """The label that the logits ``[len(inner), vocab_size]`` after the inner tokens choose."""
        row = {at: i for i, at in enumerate(self.inner)}
        rows = torch.tensor([row[at] for at in self.tree.parents], device=logits.device)
        chosen = logits[rows, torch.tensor(self.tree.tokens, device=logits.device)]
        logprob = (chosen - logits.logsumexp(-1)[rows]).tolist()
        logit, at = chosen.tolist(), -1
        while at not in self.ends:
            below = sorted(self.children[at], key=self.tree.tokens.__getitem__)
            at = max(below, key=logit.__getitem__)
        return LabelReading(
            greedy=self.ends[at],
            logprobs=tuple(sum(logprob[at] for at in walk) for walk in self.walks),
        )


def read_labels(
    model: NetworkReader,
    trie: LabelTrie,
    prompts: Sequence[Sequence[int]],
    *,
    before: Prefix | None = None,
) -> list[LabelReading]:
    """Choose the label that follows each prompt; ``before`` precedes all prompts."""
    model.require_ids(trie.tree.tokens)
    prefix = model.read([]) if before is None else before
    for prompt in prompts:
        if not prompt:
            raise ItemError("read_labels: a prompt must hold a token or more, got none.")
        size = prefix.length + len(prompt) + trie.longest
        model.require_length(size, "read_labels: prompt and label")
    if not can_branch(model, prefix):
        return [_read_by_rows(model, trie, prefix, prompt) for prompt in prompts]
    inner = trie.inner
    most = max(1, model.limits.chunk_logits // (len(inner) * model.text_config.vocab_size))
    readings = []
    for batch in passes([len(prompt) + len(inner) - 1 for prompt in prompts], most):
        tree, wanted = TokenTree(), []
        for i in batch:
            places = {-1: tree.add(prompts[i])[-1]}
            for at in inner:
                for child in trie.children[at]:
                    if child in trie.children:
                        (places[child],) = tree.add([trie.tree.tokens[child]], places[at])
            wanted += [places[at] for at in inner]
        logits = forward_tree(model, prefix, tree, wanted)
        readings += [trie.reading(after) for after in logits.split(len(inner))]
    return readings


def _read_by_rows(
    model: NetworkReader, trie: LabelTrie, prefix: Prefix, prompt: Sequence[int]
) -> LabelReading:
    rows = [[*prompt, *path[:-1]] for path in trie.paths]
    logits_at: dict[int, Tensor] = {}
    for j, logits in _rows(model, prefix, rows, [len(path) for path in trie.paths]):
        logits_at |= zip((trie.tree.parents[at] for at in trie.walks[j]), logits, strict=True)
    return trie.reading(torch.stack([logits_at[at] for at in trie.inner]))
