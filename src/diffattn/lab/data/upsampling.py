"""Up-sample long documents within each source, which keeps the mixture of sources."""

import numpy as np
import torch

from diffattn.errors import ConfigError
from diffattn.lab.data.tokens import PackedTokens


class UpsampledTokens:
    r"""Documents of a split, drawn pass by pass: per-source length up-sampling.

    The expected number of copies of document :math:`d` of source :math:`s` in a pass is

    .. math:: w_d \sum_{e \in s} n_e \Big/ \sum_{e \in s} w_e n_e

    with :math:`n` its number of tokens, and :math:`w` the ``factor`` for a document of more tokens
    than ``longer_than``, 1 for others. So a source keeps its number of tokens, up to twice the
    length of its longest document.

    Source: arXiv:2402.10171 (Fu et al. 2024). Their code drops short documents until every source
    has its tokens. In a corpus so large that no document repeats, the probabilities are the same.
    Passes are our choice: a pass rounds the expected copies down or up (systematic sampling). So
    is the definition of a source, see :func:`source_of`.

    Passes are drawn until they have ``num_tokens`` tokens. Attributes are ``documents`` (indices of
    the drawn documents in the split), ``document_offsets`` (the first token of each draw, then
    ``num_tokens``) and ``pass_ends`` (tokens up to the end of each pass).
    """

    def __init__(
        self, packed: PackedTokens, *, longer_than: int, factor: float, num_tokens: int, seed: int
    ) -> None:
        self._packed = packed
        self.metadata = packed.metadata
        lengths = np.diff(np.asarray(packed.document_offsets))
        is_long = long_documents(packed, longer_than)
        numbers: dict[str, int] = {}
        names = map(source_of, packed.document_names())
        sources = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
        weights = np.where(is_long, factor, 1.0)
        share = np.bincount(sources, lengths) / np.bincount(sources, weights * lengths)
        copies = weights * share[sources]
        generator = torch.Generator().manual_seed(seed)
        passes, total = [], 0
        self.pass_ends: list[int] = []
        while total < num_tokens:
            passes.append(_draw_pass(copies, lengths, sources, generator))
            total += int(lengths[passes[-1]].sum())
            self.pass_ends.append(total)
        self.documents = np.concatenate(passes)
        self.document_offsets = np.concatenate([[0], np.cumsum(lengths[self.documents])])
        self.num_tokens = total
        before, after = (
            lengths[taken][is_long[taken]].sum() / lengths[taken].sum()
            for taken in (slice(None), self.documents)
        )
        within = f"each of {len(numbers)} sources" if len(numbers) > 1 else "the one source"
        self.summary = (
            f"long documents, up-sampled within {within}: {before:.1%} of tokens, now {after:.1%}"
        )

    def read(self, start: int, stop: int) -> np.ndarray:
        """Token ids from ``start`` to ``stop``, which is excluded, in the dtype of the split."""
        offsets, parts = self.document_offsets, []
        draw = int(np.searchsorted(offsets, start, side="right")) - 1
        while start < stop:
            length = min(stop, int(offsets[draw + 1])) - start
            first = int(self._packed.document_offsets[self.documents[draw]])
            first += start - int(offsets[draw])
            parts.append(self._packed.read(first, first + length))
            start, draw = start + length, draw + 1
        return np.concatenate(parts)


def long_documents(packed: PackedTokens, longer_than: int) -> np.ndarray:
    """Whether each document has more tokens than ``longer_than``; some must, and some must not."""
    lengths = np.diff(np.asarray(packed.document_offsets))
    if not lengths.min() <= longer_than < lengths.max():
        raise ConfigError(
            "training: windows.upsample_longer_than must lie between the lengths of the documents, "
            f"{lengths.min():,} to {lengths.max():,} tokens, got {longer_than:,}."
        )
    return np.asarray(lengths > longer_than)


def source_of(name: str) -> str:
    """The source of a document, read off its name.

    The source is the top folder of a file in a folder, the ``.jsonl`` file of a row outside
    folders, or the hub dataset of a row. All other files are one source, ``""``.
    """
    folder, has_folder, _ = name.partition("/")
    if has_folder:
        return folder
    file, has_row, row = name.rpartition(":")
    return file if has_row and row.isdecimal() else ""


def _draw_pass(
    copies: np.ndarray, lengths: np.ndarray, sources: np.ndarray, generator: torch.Generator
) -> np.ndarray:
    """Indices of the documents of one pass, shuffled; copies are rounded down or up."""
    order = torch.randperm(len(copies), generator=generator).numpy()
    # Rounding evens out among neighbours, which are of one source and of similar length.
    order = order[np.lexsort((lengths[order], sources[order]))]
    start = float(torch.rand(1, generator=generator, dtype=torch.float64))
    ends = np.floor(np.cumsum(copies[order]) + start).astype(np.int64)
    drawn = np.repeat(order, np.diff(ends, prepend=0))
    return drawn[torch.randperm(len(drawn), generator=generator).numpy()]
