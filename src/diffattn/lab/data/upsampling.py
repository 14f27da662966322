"""Up-sample long documents within each source, so that the mixture of sources stays."""

from collections.abc import Iterable

import numpy as np
import torch

from diffattn.errors import ConfigError
from diffattn.lab.data.tokens import PackedTokens


class UpsampledTokens:
    r"""Documents of a split, drawn pass by pass: per-source length up-sampling.

    In a pass, document :math:`d` of source :math:`s` is expected

    .. math:: w_d \sum_{e \in s} n_e \Big/ \sum_{e \in s} w_e n_e

    times, :math:`n` its tokens and :math:`w` the factor for a long document, 1 for others. Within a
    source, long documents are up-sampled by the factor. A source keeps its number of tokens, up to
    two of its longest document, and a pass has as many tokens as the split.

    Source: arXiv:2402.10171 (Fu et al. 2024). Their code drops short documents until every source
    has its tokens, which has the same odds in a corpus so large that nothing repeats. Our choices
    are the passes, in which the expected number of copies is rounded down or up (systematic
    sampling), and the definition of a source, see :func:`source_of`.

    Args:
        longer_than: Tokens, the end token included, above which a document is long.
        factor: Of long documents, more than 1.
        num_tokens: Passes are drawn until there are so many tokens.
        seed: The draws depend on it and the split alone; a longer run begins with the draws of a
            shorter run.

    Attributes:
        num_tokens: Tokens of all passes.
        documents: int64 ``[draws]``, indices of the split's documents.
        document_offsets: int64 ``[draws + 1]``, the first token of each draw, then ``num_tokens``.
        pass_ends: Tokens up to the end of each pass.

    Raises:
        ConfigError: No document is long, or all are.
    """

    def __init__(
        self, packed: PackedTokens, *, longer_than: int, factor: float, num_tokens: int, seed: int
    ) -> None:
        self._packed = packed
        self.metadata = packed.metadata
        lengths = np.diff(np.asarray(packed.document_offsets))
        self._long = long_documents(packed, longer_than)
        sources = _numbered(source_of(name) for name in packed.document_names())
        self.num_sources = int(sources.max()) + 1
        copies = expected_copies(lengths, sources, np.where(self._long, factor, 1.0))
        generator = torch.Generator().manual_seed(seed)
        passes, total = [], 0
        self.pass_ends: list[int] = []
        while total < num_tokens:
            passes.append(_drawn(copies, lengths, sources, generator))
            total += int(lengths[passes[-1]].sum())
            self.pass_ends.append(total)
        self.documents = np.concatenate(passes)
        self.document_offsets = np.concatenate([[0], np.cumsum(lengths[self.documents])])
        self.num_tokens = total

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens from ``start`` to ``stop``, in the type of the split."""
        offsets, parts = self.document_offsets, []
        draw = int(np.searchsorted(offsets, start, side="right")) - 1
        while start < stop:
            length = min(stop, int(offsets[draw + 1])) - start
            first = int(self._packed.document_offsets[self.documents[draw]])
            first += start - int(offsets[draw])
            parts.append(self._packed.read(first, first + length))
            start, draw = start + length, draw + 1
        return np.concatenate(parts)

    def summary(self) -> str:
        """The share of tokens in long documents, before and after, in words."""
        lengths = np.diff(np.asarray(self._packed.document_offsets))
        before = lengths[self._long].sum() / lengths.sum()
        drawn = lengths[self.documents]
        after = drawn[self._long[self.documents]].sum() / drawn.sum()
        within = f"each of {self.num_sources} sources" if self.num_sources > 1 else "the one source"
        return (
            f"long documents, up-sampled within {within}: {before:.1%} of tokens, now {after:.1%}"
        )


def long_documents(packed: PackedTokens, longer_than: int) -> np.ndarray:
    """Documents of a split with more tokens than ``longer_than``: bool ``[num_documents]``.

    Raises:
        ConfigError: No document is so long, or all are.
    """
    lengths = np.diff(np.asarray(packed.document_offsets))
    if not lengths.min() <= longer_than < lengths.max():
        raise ConfigError(
            "training: windows.upsample_longer_than must lie between the lengths of the documents, "
            f"{lengths.min():,} to {lengths.max():,} tokens, got {longer_than:,}."
        )
    return np.asarray(lengths > longer_than)


def source_of(name: str) -> str:
    """The source of a document, by its name.

    It is the top folder in a folder of text, the file in a folder of ``.jsonl`` files, and the
    whole dataset on the hub. Files in no folder are one source, ``""``.
    """
    folder, has_folder, _ = name.partition("/")
    if has_folder:
        return folder
    file, has_row, row = name.rpartition(":")
    return file if has_row and row.isdecimal() else ""


def expected_copies(lengths: np.ndarray, sources: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Copies of each document in a pass; see :class:`UpsampledTokens`.

    Args:
        lengths: int64 ``[n]``, tokens of the documents.
        sources: int64 ``[n]``, numbers of their sources.
        weights: float64 ``[n]``, relative frequencies within each source.

    Returns:
        float64 ``[n]``.
    """
    weighted = np.bincount(sources, weights * lengths)
    return weights * (np.bincount(sources, lengths) / weighted)[sources]


def _drawn(
    copies: np.ndarray, lengths: np.ndarray, sources: np.ndarray, generator: torch.Generator
) -> np.ndarray:
    """The documents of one pass, shuffled: each its copies rounded down or up."""
    order = torch.randperm(len(copies), generator=generator).numpy()
    # Rounding evens out among neighbours: of one source and about the same length.
    order = order[np.lexsort((lengths[order], sources[order]))]
    start = float(torch.rand(1, generator=generator, dtype=torch.float64))
    ends = np.floor(np.cumsum(copies[order]) + start).astype(np.int64)
    drawn = np.repeat(order, np.diff(ends, prepend=0))
    return drawn[torch.randperm(len(drawn), generator=generator).numpy()]


def _numbered(names: Iterable[str]) -> np.ndarray:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
