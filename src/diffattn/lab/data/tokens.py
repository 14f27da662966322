"""Packed token files: memory-mapped, drawn with long documents up-sampled, cut into windows."""

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
import torch
from torch import Tensor

from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.io import file_hash, read_json
from diffattn.lab.data.splits import OFFSET_DTYPE, SPLITS, SUFFIXES
from diffattn.lab.records.fields import AtLeast, checked

# Sidecars come last: they mark a packing as complete.
FILES = (
    *(f"{split}.{suffix}" for split in SPLITS for suffix in SUFFIXES),
    *(f"{split}.json" for split in SPLITS),
)
SCHEMA = 3
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


class Sidecar(TypedDict):
    """Fields of ``SPLIT.json``. ``num_bytes`` are of text, ``corpus_hash`` is of both splits."""

    schema: Literal[3]
    validation_fraction: float
    corpus_hash: str
    tokenizer_hash: str
    split: Literal["train", "validation"]
    dtype: Literal["uint16", "uint32"]
    vocab_size: int
    num_tokens: Annotated[int, AtLeast(1)]
    num_bytes: int
    num_documents: int
    token_hash: str
    index_hash: str
    names_hash: str
    names_bytes: int


@contextmanager
def advised(folder: Path) -> Iterator[None]:
    """Add advice to a ``CheckpointError`` about a packing that is missing or damaged."""
    try:
        yield
    except CheckpointError as error:
        advice = "Pack the corpus first."
        if any((folder / name).exists() for name in (*FILES, "data.json")):
            advice = (
                f"Delete the packed files in {folder} (data.json, tokenizer/, train.*, "
                "validation.*) and pack again."
            )
        raise CheckpointError(f"{error} {advice}") from error


class PackedTokens:
    """One split of a packing, memory-mapped and read-only.

    With ``verify`` the files are compared with their hashes in the sidecar, which takes about a
    second per gigabyte. Unpickled copies, as in a data-loading worker, do not verify.

    Attributes:
        tokens: Token ids ``[num_tokens]``, uint16 or uint32, on disk until read.
        document_offsets: int64 ``[num_documents + 1]``, the first token of each document, then
            ``num_tokens``; on disk until read.
        num_bytes: Number of UTF-8 bytes of the documents' text.
        metadata: The sidecar, a :class:`Sidecar`.
    """

    def __init__(self, out: Path, split: str, *, verify: bool = True) -> None:
        self._source = (Path(out), split)
        path = Path(out) / f"{split}.bin"
        with advised(Path(out)):
            sidecar = path.with_suffix(".json")
            facts = self.metadata = read_json(sidecar)
            checked(Sidecar, facts, str(sidecar))
            if facts["split"] != split:
                raise CheckpointError(
                    f"{sidecar}: split must be {split!r}, got {facts['split']!r}."
                )
            dtype = DTYPES[facts["dtype"]]
            index_size = (facts["num_documents"] + 1) * OFFSET_DTYPE.itemsize
            for suffix, size, key in (
                (".bin", facts["num_tokens"] * dtype.itemsize, "token_hash"),
                (".idx", index_size, "index_hash"),
                (".names", facts["names_bytes"], "names_hash"),
            ):
                file = path.with_suffix(suffix)
                got = file.stat().st_size if file.is_file() else "no file"
                if got != size:
                    raise CheckpointError(
                        f"{file}: must have the {size} bytes its sidecar says, got {got}."
                    )
                if verify and file_hash(file) != facts[key]:
                    raise CheckpointError(f"{file}: must be as it was packed, got other content.")
        self.num_tokens: int = facts["num_tokens"]
        self.num_bytes: int = facts["num_bytes"]
        self.tokens = np.memmap(path, dtype=dtype, mode="r")
        index = path.with_suffix(".idx")
        self.document_offsets: np.ndarray = np.memmap(index, dtype=OFFSET_DTYPE, mode="r")

    def read(self, start: int, stop: int) -> np.ndarray:
        """Token ids from ``start`` to ``stop``, which is excluded."""
        return self.tokens[start:stop]

    def document_names(self) -> Iterator[str]:
        """Names of the documents, in order."""
        folder, split = self._source
        with (folder / f"{split}.names").open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled memmap would copy its whole content to every data-loading worker.
        return functools.partial(PackedTokens, verify=False), self._source


class UpsampledTokens:
    r"""Documents of a split, drawn pass by pass: long ones more often, sources as often as before.

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


class TokenDataset(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Windows of ``seq_len`` tokens without overlap; a shorter rest is left out.

    Item i is ``{"input_ids": [seq_len], "labels": [seq_len]}``, both int64 and equal: the model
    shifts the labels. Windows run across the ends of documents. With ``apart`` the model keeps
    documents apart: an item also has ``position_ids`` ``[seq_len]``, int64, which begin at 0 in
    each document, and the label of a document's first token, which nothing predicts, is -100.
    """

    def __init__(
        self, packed: PackedTokens | UpsampledTokens, seq_len: int, *, apart: bool = False
    ) -> None:
        if seq_len > packed.num_tokens:
            split = {"train": "training"}.get(packed.metadata["split"], packed.metadata["split"])
            raise ConfigError(
                f"the text is too short: {packed.num_tokens:,} {split} tokens, {seq_len:,} needed "
                "for one sequence."
            )
        self.packed = packed
        self.seq_len = seq_len
        self.apart = apart

    def __len__(self) -> int:
        return self.packed.num_tokens // self.seq_len

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        # A range takes negative indices and raises the IndexError that ends a for loop.
        start = range(len(self))[index] * self.seq_len
        window = self.packed.read(start, start + self.seq_len).astype(np.int64)
        input_ids = torch.from_numpy(window)  # [seq_len]
        item = {"input_ids": input_ids, "labels": input_ids.clone()}
        if self.apart:
            offsets = self.packed.document_offsets
            first, last = np.searchsorted(offsets, [start, start + self.seq_len])
            starts = np.unique(np.concatenate([[0], offsets[first:last] - start]))
            lengths = np.diff(starts, append=self.seq_len)
            positions = np.arange(self.seq_len) - np.repeat(starts, lengths)
            item["position_ids"] = torch.from_numpy(positions)
            item["labels"][starts] = -100
        return item


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
