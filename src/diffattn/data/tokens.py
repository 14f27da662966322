"""Packed token files: written once, memory-mapped, cut into windows for training."""

import contextlib
import functools
import hashlib
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffattn.data.corpora import Document, document_bytes
from diffattn.data.encoding import SplitWriter, encode
from diffattn.data.sidecar import DTYPES, FILES, SCHEMA, advised, read_sidecar
from diffattn.data.splits import SPLITS, assign_splits
from diffattn.data.tokenizer import tokenizer_hash
from diffattn.errors import CheckpointError, ConfigError
from diffattn.records.checksum import file_hash
from diffattn.records.io import make_folder, sync, write_json

# Work folders beside the files also mark them as ours when a packing was killed.
_WORK_PREFIX = ".packing-"


def pack(
    documents: Iterable[Document],
    tokenizer: Any,
    out: Path,
    *,
    validation_fraction: float = 0.05,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Encode a corpus into ``train.bin`` and ``validation.bin``, each with a JSON sidecar.

    Every document is followed by the end token. Its split is decided by a hash of its name, and
    neither split is empty; see ``splits.assign_splits``. Special tokens that a text spells out
    are encoded as text. Texts above a mebicharacter are encoded in pieces that end with a line.
    Ids are little-endian uint16 if the vocabulary has fewer than 65,536 ids, else uint32.

    A sidecar holds ``schema``, ``validation_fraction``, ``corpus_hash`` (of both splits
    together, as ``corpora.corpus_hash`` gives it), ``tokenizer_hash``, ``split``, ``dtype``,
    ``vocab_size`` (ids are below it), ``num_tokens``, ``num_bytes`` (of text, in UTF-8),
    ``num_documents``, ``token_hash`` (SHA-256 of the token file), ``document_offsets`` (first
    token of each document, then ``num_tokens``) and ``documents`` (their names).

    Files get their names when they are whole, sidecars last, so an interrupted packing is never
    taken for a finished one, also if the power fails; the next call starts over. If ``out`` already
    holds this very packing, the documents are only hashed, and the tokens checked. One process at a
    time may pack into a folder.

    Args:
        documents: The corpus, read once; one batch of it is in memory at a time.
        tokenizer: A fast ``transformers`` tokenizer with an end token.
        out: Folder of the four files; made if missing.
        validation_fraction: Expected share of the documents in validation, between 0 and 1.
        on_progress: Called after each batch with the number of tokens written so far.

    Returns:
        ``{"train": sidecar, "validation": sidecar}``.

    Raises:
        ConfigError: The corpus is empty, the fraction is not between 0 and 1, or the tokenizer
            is not fast or has no end token.
        CheckpointError: ``out`` holds another or a damaged packing, or foreign files.
        OSError: The disk is full or not writable; what was written is removed.
    """
    out = Path(out)
    if not 0 < validation_fraction < 1:
        raise ConfigError(
            f"pack: validation_fraction must be between 0 and 1, got {validation_fraction}."
        )
    identity = {
        "validation_fraction": validation_fraction,
        "tokenizer_hash": tokenizer_hash(tokenizer),
    }
    if tokenizer.eos_token_id is None:
        raise ConfigError("pack: tokenizer must have an end token (eos_token), got none.")
    digest = hashlib.sha256()
    corpus = _hashed(documents, digest)
    first = next(corpus, None)
    if first is None:
        raise ConfigError("pack: the corpus must hold at least one document, got none.")
    if all((out / f"{split}.json").exists() for split in SPLITS):
        for _ in corpus:
            pass
        sidecars = _existing(out, {**identity, "corpus_hash": digest.hexdigest()})
        _clean(out)
        return sidecars
    _refuse_foreign(out)

    make_folder(out)
    work = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=out))
    sync(out)  # before an earlier one goes: see _refuse_foreign
    try:
        _clean(out, but=work)
        assigned = assign_splits(itertools.chain([first], corpus), validation_fraction)
        parts = _write_tokens(assigned, tokenizer, work, on_progress)
        identity["corpus_hash"] = digest.hexdigest()
        sidecars = {split: {"schema": SCHEMA, **identity, **part} for split, part in parts.items()}
        for split, sidecar in sidecars.items():
            write_json(work / f"{split}.json", sidecar)
        _publish(work, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return sidecars


class PackedTokens:
    """One split of a packing, memory-mapped and read-only.

    Args:
        out: The folder that ``pack`` wrote.
        split: ``"train"`` or ``"validation"``.
        verify: Whether to compare the tokens with their hash in the sidecar: about a second per
            gigabyte, once for every time that a process opens them. A copy that is unpickled, as
            in a data-loading worker, never does.

    Attributes:
        tokens: ``[num_tokens]``, uint16 or uint32, on disk until read.
        num_tokens: Tokens in the split, end tokens included.
        num_bytes: UTF-8 bytes of the text they encode.
        metadata: The whole sidecar, see ``pack``.

    Raises:
        ConfigError: There is no such split.
        CheckpointError: A file is missing, foreign, or not as it was packed.
    """

    tokens: np.memmap[Any, Any]
    num_tokens: int
    num_bytes: int
    metadata: dict[str, Any]

    def __init__(self, out: Path, split: str, *, verify: bool = True) -> None:
        if split not in SPLITS:
            raise ConfigError(
                f"PackedTokens: split must be one of {', '.join(SPLITS)}, got {split!r}."
            )
        self._source = (Path(out), split)
        path = Path(out) / f"{split}.bin"
        with advised(Path(out)):
            self.metadata = read_sidecar(path.with_suffix(".json"), split)
            dtype = DTYPES[self.metadata["dtype"]]
            expected = self.metadata["num_tokens"] * dtype.itemsize
            got = path.stat().st_size if path.is_file() else "no file"
            if got != expected:
                raise CheckpointError(
                    f"{path}: must have the {expected} bytes its sidecar says, got {got}."
                )
            if verify and file_hash(path) != self.metadata["token_hash"]:
                raise CheckpointError(f"{path}: must be as it was packed, got other content.")
        self.num_tokens = self.metadata["num_tokens"]
        self.num_bytes = self.metadata["num_bytes"]
        self.tokens = np.memmap(path, dtype=dtype, mode="r")

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled memmap carries its whole content to every data-loading worker.
        return functools.partial(PackedTokens, verify=False), self._source


class TokenDataset(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Windows of ``seq_len`` tokens, one after the other; a shorter rest is left out.

    Item i is ``{"input_ids": [seq_len], "labels": [seq_len]}``, both int64 and equal: the model
    shifts the labels. Windows run across the ends of documents.

    Args:
        packed: A split.
        seq_len: Tokens per window, at least 1.

    Raises:
        ConfigError: ``seq_len`` is below 1 or above the number of tokens in the split.
    """

    def __init__(self, packed: PackedTokens, seq_len: int) -> None:
        if not 1 <= seq_len <= packed.num_tokens:
            raise ConfigError(
                f"TokenDataset: seq_len must be between 1 and the {packed.num_tokens} tokens of "
                f"split '{packed.metadata['split']}', got {seq_len}."
            )
        self.packed = packed
        self.seq_len = seq_len

    def __len__(self) -> int:
        return self.packed.num_tokens // self.seq_len

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        # A range counts -1 from the end and raises the IndexError that ends a loop.
        start = range(len(self))[index] * self.seq_len
        window = self.packed.tokens[start : start + self.seq_len].astype(np.int64)
        input_ids = torch.from_numpy(window)  # [seq_len]
        return {"input_ids": input_ids, "labels": input_ids.clone()}


def _hashed(documents: Iterable[Document], digest: "hashlib._Hash") -> Iterator[Document]:
    for document in documents:
        digest.update(document_bytes(document))
        yield document


def _write_tokens(
    assigned: Iterable[tuple[str, Document]],
    tokenizer: Any,
    folder: Path,
    on_progress: Callable[[int], None] | None,
) -> dict[str, dict[str, Any]]:
    """Write the token files of both splits, and describe them."""
    vocab_size = max(tokenizer.get_vocab().values()) + 1  # ids may have gaps: not len(tokenizer)
    with contextlib.ExitStack() as stack:
        writers = {}
        for split in SPLITS:
            writers[split] = SplitWriter(folder, split, vocab_size)
            stack.callback(writers[split].file.close)  # also if another one fails to open or close
        encode(assigned, tokenizer, writers, on_progress)
        return {split: writer.finish() for split, writer in writers.items()}


def _existing(out: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """Sidecars of the packing in ``out`` if it is the one asked for."""
    sidecars = {split: PackedTokens(out, split).metadata for split in SPLITS}
    for sidecar in sidecars.values():
        differing = [key for key, value in identity.items() if sidecar[key] != value]
        if differing:
            raise CheckpointError(
                f"pack: {out} must be empty or hold this packing, got one of another "
                f"{' and '.join(differing)}. Choose another folder."
            )
    return sidecars


def _clean(out: Path, *, but: Path | None = None) -> None:
    """Remove what killed packings left."""
    for leftover in out.glob(f"{_WORK_PREFIX}*"):
        if leftover != but:
            shutil.rmtree(leftover)


def _refuse_foreign(out: Path) -> None:
    """Without both sidecars, token files are ours only beside the work folder of a killed run."""
    if out.exists() and not out.is_dir():
        raise CheckpointError(f"pack: {out} must be a folder, got a file.")
    present = [name for name in FILES if (out / name).exists()]
    if present and not any(out.glob(f"{_WORK_PREFIX}*")):
        raise CheckpointError(
            f"pack: {out} must be empty or hold a whole packing, got only {', '.join(present)}, "
            f"not {', '.join(name for name in FILES if name not in present)}. "
            "Choose another folder, or delete what is left."
        )


def _publish(work: Path, out: Path) -> None:
    """Move whole files to their names, all of them or none."""
    for name in reversed(FILES):
        (out / name).unlink(missing_ok=True)  # of a killed packing: see _refuse_foreign
    try:
        for name in FILES:
            (work / name).replace(out / name)
            sync(out)  # no later name outlives a power failure that an earlier one does not
    except BaseException:
        for name in reversed(FILES):
            (out / name).unlink(missing_ok=True)
        raise
