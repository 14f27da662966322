"""From documents to packed token files, in flat memory.

``SPLIT.bin`` holds the ids of a split, little-endian uint16 if the vocabulary has fewer than 65,536
ids, else uint32. Every document is followed by the end token. Its split is decided by a hash of its
name or, of a row, of its text, and neither split is empty; see ``splits.assign_splits``. Special
tokens that a text spells out are encoded as text. Texts above a mebicharacter are encoded in pieces
that end with a line. The borders and the names of the documents have files of their own; see
``split_writer.SplitWriter``.

The sidecar ``SPLIT.json`` holds ``schema``, ``validation_fraction``, ``corpus_hash`` (of both
splits together, see ``corpora.corpus_hash``), ``tokenizer_hash``, ``split``, ``dtype``,
``vocab_size`` (ids are below it), ``num_tokens``, ``num_bytes`` (of text, in UTF-8),
``num_documents``, the SHA-256 of the files (``token_hash``, ``index_hash``, ``names_hash``) and
``names_bytes``.

Files get their names when they are whole, sidecars last, so an interrupted packing is never taken
for a finished one, also if the power fails. The same call begins anew.
"""

import contextlib
import hashlib
import itertools
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.io import make_folder, sync, write_json
from diffattn.lab.data import encoding
from diffattn.lab.data.corpora import Document, document_bytes
from diffattn.lab.data.sidecar import DTYPES, FILES, SCHEMA
from diffattn.lab.data.split_writer import SplitWriter
from diffattn.lab.data.splits import SPLITS, assign_splits
from diffattn.lab.data.tokenizer import plain_encoder, tokenizer_hash
from diffattn.lab.data.tokens import PackedTokens

# After a kill, this folder also tells that token files beside it belong to a packing.
_WORK = ".packing"


def pack(
    documents: Iterable[Document],
    tokenizer: Any,
    out: Path,
    *,
    validation_fraction: float = 0.05,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Encode a corpus into ``train.bin`` and ``validation.bin``, each with its description.

    If ``out`` already holds this very packing, the documents are only hashed, and the tokens
    checked. One process at a time may pack into a folder.

    Args:
        documents: The corpus, read once; a few batches are in memory at a time.
        tokenizer: A fast ``transformers`` tokenizer with an end token.
        out: Folder of the files; made if missing.
        validation_fraction: Expected share of the documents in validation, between 0 and 1.
        workers: Processes that encode; the files do not depend on it. With 1 this process does.
        on_progress: Called after each batch with the number of tokens written so far.

    Returns:
        ``{"train": sidecar, "validation": sidecar}``.

    Raises:
        ConfigError: The corpus is empty, a number is out of range, or the tokenizer does not fit.
        CheckpointError: ``out`` holds another or a damaged packing, or foreign files.
        DiffAttnError: A process that encodes was killed.
        OSError: The disk is full or not writable.
    """
    identity, out = _identity(tokenizer, validation_fraction, workers), Path(out)
    digest = hashlib.sha256()
    corpus = _hashed(documents, digest)
    first = next(corpus, None)
    if first is None:
        raise ConfigError("pack: the corpus must hold at least one document, got none.")
    if all((out / f"{split}.json").exists() for split in SPLITS):
        deque(corpus, maxlen=0)  # only hashed
        return _existing(out, {**identity, "corpus_hash": digest.hexdigest()})
    _refuse_foreign(out)
    work = out / _WORK
    make_folder(work)
    assigned = assign_splits(itertools.chain([first], corpus), validation_fraction)
    try:
        parts = _write(encoding.batches(assigned), tokenizer, work, workers, on_progress)
        whole = {**identity, "corpus_hash": digest.hexdigest()}
        sidecars = {split: {"schema": SCHEMA, **whole, **part} for split, part in parts.items()}
        for split, sidecar in sidecars.items():
            write_json(work / f"{split}.json", sidecar)
    except BaseException:
        if not any((out / name).exists() for name in FILES):
            shutil.rmtree(work, ignore_errors=True)
        raise
    for name in FILES:
        (work / name).replace(out / name)
        sync(out)  # no later name outlives a power failure that an earlier one does not
    shutil.rmtree(work)
    return sidecars


def _identity(tokenizer: Any, validation_fraction: float, workers: int) -> dict[str, Any]:
    """The arguments that decide the files, after a check of all of them."""
    if not 0 < validation_fraction < 1:
        raise ConfigError(
            f"pack: validation_fraction must be between 0 and 1, got {validation_fraction}."
        )
    if workers < 1:
        raise ConfigError(f"pack: workers must be 1 or more, got {workers}.")
    digest = tokenizer_hash(tokenizer)
    if tokenizer.eos_token_id is None:
        raise ConfigError("pack: tokenizer must have an end token (eos_token), got none.")
    return {"validation_fraction": validation_fraction, "tokenizer_hash": digest}


def _hashed(documents: Iterable[Document], digest: "hashlib._Hash") -> Iterator[Document]:
    for document in documents:
        digest.update(document_bytes(document))
        yield document


def _write(
    waiting: Iterator[encoding.Batch],
    tokenizer: Any,
    work: Path,
    workers: int,
    on_progress: Callable[[int], None] | None,
) -> dict[str, dict[str, Any]]:
    """Write the files of both splits, and describe them."""
    vocab_size = max(tokenizer.get_vocab().values()) + 1  # ids may have gaps: not len(tokenizer)
    dtype_name = "uint16" if vocab_size < 65_536 else "uint32"
    dtype = DTYPES[dtype_name]
    end = np.array(tokenizer.eos_token_id, dtype=dtype).tobytes()
    with contextlib.ExitStack() as stack:
        writers = {}
        for split in SPLITS:
            writers[split] = SplitWriter(work, split)
            stack.callback(writers[split].close)
        encoded = encoding.encode(waiting, plain_encoder(tokenizer), dtype, workers)
        stack.callback(encoded.close)  # type: ignore[attr-defined]
        for item in encoded:
            _write_batch(item, writers, end, dtype.itemsize)
            if on_progress is not None:
                on_progress(sum(writer.num_tokens for writer in writers.values()))
        described = {split: writer.described() for split, writer in writers.items()}
    return {
        split: {
            "split": split,
            "dtype": dtype_name,
            "vocab_size": vocab_size,
            **facts,
        }
        for split, facts in described.items()
    }


def _write_batch(
    item: encoding.EncodedBatch, writers: dict[str, SplitWriter], end: bytes, itemsize: int
) -> None:
    ids, start, batch = memoryview(item.ids), 0, item.batch
    for split, ended, length in zip(batch.splits, batch.ended, item.lengths, strict=True):
        stop = start + length * itemsize
        writers[split].write(ids[start:stop], length)
        start = stop
        if ended is not None:
            writers[split].write(end, 1)
            writers[split].end_document(*ended)


def _existing(out: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """Sidecars of the packing in ``out``, if they belong to these documents and arguments."""
    sidecars = {split: PackedTokens(out, split).metadata for split in SPLITS}
    for sidecar in sidecars.values():
        differing = [key for key, value in identity.items() if sidecar.get(key) != value]
        if differing:
            raise CheckpointError(
                f"pack: {out} must be empty or hold this packing, got one of another "
                f"{' and '.join(differing)}. Choose another folder."
            )
    shutil.rmtree(out / _WORK, ignore_errors=True)
    return sidecars


def _refuse_foreign(out: Path) -> None:
    """Refuse token files without both sidecars, unless the work folder of a killed call exists."""
    if out.exists() and not out.is_dir():
        raise CheckpointError(f"pack: {out} must be a folder, got a file.")
    present = [name for name in FILES if (out / name).exists()]
    if present and not (out / _WORK).exists():
        raise CheckpointError(
            f"pack: {out} must be empty or hold a whole packing, got only {', '.join(present)}, "
            f"not {', '.join(name for name in FILES if name not in present)}. "
            "Choose another folder, or delete what is left."
        )
