"""The label that a model chooses: by greedy decoding among the labels, and by probability."""

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
    for batch in model.row_batches([len(row) for row in rows], prefix, all_logits=True):
        logits, _ = model.forward_rows(prefix, [rows[j] for j in batch])
        for row, j in zip(logits, batch, strict=True):
            for step, at in enumerate(trie.walks[j]):
                logits_at[trie.tree.parents[at]] = row[len(prompt) - 1 + step]
    return trie.reading(torch.stack([logits_at[at] for at in trie.inner]))
