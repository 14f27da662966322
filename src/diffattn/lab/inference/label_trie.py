"""The label that a model gives: greedy within the labels, and by their probabilities."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffattn.errors import ConfigError
from diffattn.lab.inference.network_reader import ItemError, NetworkReader, Prefix
from diffattn.lab.inference.token_tree import TokenTree, can_branch, forward_tree, passes


@dataclass(frozen=True, slots=True)
class LabelReading:
    """The labels after one prompt, by a model."""

    greedy: int
    """The label that greedy decoding writes if only labels can be written."""
    logprobs: tuple[float, ...]
    """log p of every label and of the line break that ends it, in nats."""

    @property
    def likeliest(self) -> int:
        """The label of the highest log-probability; the first of equals."""
        return max(range(len(self.logprobs)), key=self.logprobs.__getitem__)


class LabelTrie:
    """Labels as they follow a prompt, token by token; every label ends in a line break.

    The line break tells a label from longer labels that begin with it. Labels are encoded as they
    follow ``before``, which every prompt ends with: see :meth:`NetworkReader.encode_after`.

    Raises:
        ConfigError: A label is empty, holds a line break, or has the tokens of another or their
            beginning.
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
        self.children: list[dict[int, int]] = [{}]
        """Per place, the tokens that may follow and their places; place 0 is the prompt's end."""
        self.ends: dict[int, int] = {}
        """Places where a label ends, and which."""
        self._walks: list[list[tuple[int, int]]] = []
        """Per label, the places on its way, each with the token that follows."""
        for number, path in enumerate(self.paths):
            at, walk = 0, []
            for token in path:
                walk.append((at, token))
                if token not in self.children[at]:
                    self.children[at][token] = len(self.children)
                    self.children.append({})
                at = self.children[at][token]
            self.ends[at] = number
            self._walks.append(walk)
        self.edges = [(at, token) for at, below in enumerate(self.children) for token in below]

    @property
    def longest(self) -> int:
        """Tokens of the longest label, its line break included."""
        return max(map(len, self.paths))

    def inner(self) -> list[int]:
        """Places that something follows, the prompt's end first."""
        return [at for at, below in enumerate(self.children) if below]

    def reading(self, logits: Tensor) -> LabelReading:
        """The label that the logits ``[places of inner(), vocab_size]`` choose."""
        row = {at: i for i, at in enumerate(self.inner())}
        rows = torch.tensor([row[at] for at, _ in self.edges], device=logits.device)
        tokens = torch.tensor([token for _, token in self.edges], device=logits.device)
        chosen = logits[rows, tokens]
        logit = dict(zip(self.edges, chosen.tolist(), strict=True))
        steps = (chosen - logits.logsumexp(-1)[rows]).tolist()
        logprob = dict(zip(self.edges, steps, strict=True))
        at = 0
        while at not in self.ends:
            below = self.children[at]
            best = max(sorted(below), key=lambda token, at=at: logit[at, token])  # type: ignore[misc]
            at = below[best]
        return LabelReading(
            greedy=self.ends[at],
            logprobs=tuple(sum(logprob[edge] for edge in walk) for walk in self._walks),
        )


def read_labels(
    model: NetworkReader,
    trie: LabelTrie,
    prompts: Sequence[Sequence[int]],
    *,
    before: Prefix | None = None,
) -> list[LabelReading]:
    """Which label follows each prompt; several prompts and all labels in one pass.

    ``before`` are tokens already read that all prompts continue.

    Raises:
        ItemError: A prompt is empty, or does not fit the model with the longest label.
    """
    model.require_ids(token for _, token in trie.edges)
    prefix = model.read([]) if before is None else before
    for prompt in prompts:
        if not prompt:
            raise ItemError("read_labels: a prompt must hold a token or more, got none.")
        size = prefix.length + len(prompt) + trie.longest
        model.require_length(size, "read_labels: prompt and label")
    if not can_branch(model, prefix):
        return [_by_rows(model, trie, prefix, prompt) for prompt in prompts]
    inner = trie.inner()
    most = max(1, model.limits.chunk_logits // (len(inner) * model.text_config.vocab_size))
    readings = []
    for batch in passes([len(prompt) + len(inner) - 1 for prompt in prompts], most):
        tree, wanted = TokenTree(), []
        for i in batch:
            places = {0: tree.add(prompts[i])[-1]}
            for at in inner:
                for token, child in trie.children[at].items():
                    if trie.children[child]:
                        (places[child],) = tree.add([token], places[at])
            wanted += [places[at] for at in inner]
        logits = forward_tree(model, prefix, tree, wanted)
        readings += [trie.reading(after) for after in logits.split(len(inner))]
    return readings


def _by_rows(
    model: NetworkReader, trie: LabelTrie, prefix: Prefix, prompt: Sequence[int]
) -> LabelReading:
    """One row per label: the definition of a branch."""
    rows = [[*prompt, *path[:-1]] for path in trie.paths]
    logits_at: dict[int, Tensor] = {}
    for batch in model.row_batches([len(row) for row in rows], prefix, all_logits=True):
        logits, _ = model.forward_rows(prefix, [rows[j] for j in batch])
        for row, j in zip(logits, batch, strict=True):
            at = 0
            for step, token in enumerate(trie.paths[j]):
                logits_at[at] = row[len(prompt) - 1 + step]
                at = trie.children[at][token]
    return trie.reading(torch.stack([logits_at[at] for at in trie.inner()]))
