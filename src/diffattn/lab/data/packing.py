"""Pack documents into token files, in constant memory. An interrupted packing can be continued.

``SPLIT.bin`` holds the ids of a split, little-endian uint16 if the vocabulary has fewer than 65,536
ids, else uint32. Every document is followed by the end token. A hash of a document's name, or of a
row's text, decides its split, and neither split is empty; see ``splits.assign_splits``. Special
tokens that a text spells out are encoded as text. Texts above 2**20 characters are encoded in
pieces, cut at line ends where possible. The borders and the names of the documents are in
``SPLIT.idx`` and ``SPLIT.names``; see ``splits.SplitWriter``.

Complete files are moved out of a work folder, sidecars last, so that an interrupted packing never
looks finished, even after a power failure. A checkpoint is written every 2**26 characters.
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
from diffattn.files.io import make_folder, read_json, sync, write_json
from diffattn.lab.data.corpora import Document, document_bytes
from diffattn.lab.data.splits import COUNTS, SPLITS, SplitWriter, assign_splits
from diffattn.lab.data.tokenizer import plain_encoder, tokenizer_hash
from diffattn.lab.data.tokens import DTYPES, FILES, SCHEMA, PackedTokens

_WORK = ".packing"
_PROGRESS = "progress.json"
_CHECKPOINT_BATCHES = 64
BATCH_CHARS = 1 << 20  # encodings take some hundred bytes per token until they are written
Piece = tuple[str, str, tuple[str, int] | None]
"""Split and text of a document, or of a piece of one. The last piece of a document comes with the
document's name and UTF-8 bytes."""


def pack(
    documents: Iterable[Document],
    tokenizer: Any,
    out: Path,
    *,
    validation_fraction: float = 0.05,
    on_progress: Callable[[int], None] = lambda num_tokens: None,
) -> dict[str, Any]:
    """Encode a corpus into ``train.bin`` and ``validation.bin``, and return their sidecars.

    If ``out`` already holds the packing of this corpus and tokenizer, the documents are only hashed
    and the files checked. An interrupted packing goes on from its last checkpoint: the documents
    before it are hashed and compared, the rest is encoded. One process at a time may use a folder.

    Args:
        documents: The corpus, not empty, iterated once; a few batches are in memory at a time.
        tokenizer: A fast ``transformers`` tokenizer with an end token.
        on_progress: Called after each batch with the number of tokens written so far.
    """
    identity: dict[str, Any] = {"validation_fraction": validation_fraction}
    identity |= {"tokenizer_hash": tokenizer_hash(tokenizer)}
    if tokenizer.eos_token_id is None:
        raise ConfigError("pack: tokenizer must have an end token (eos_token), got none.")
    digest = hashlib.sha256()
    corpus = _hashed(documents, digest)
    recorded = _interrupted(out)
    if all((out / f"{split}.json").exists() for split in SPLITS):
        deque(corpus, maxlen=0)  # only hashed
        return _existing(out, {**identity, "corpus_hash": digest.hexdigest()})
    work, begun = out / _WORK, {**identity, "batch_chars": BATCH_CHARS}
    if recorded is not None:
        way_out = f", or delete {work}"
        _require_same(out, recorded["identity"], begun, "an interrupted one", way_out)
    make_folder(work)
    waiting = batches(assign_splits(corpus, validation_fraction), digest)
    try:
        parts = _write(waiting, tokenizer, work, begun, recorded, on_progress)
        identity |= {"corpus_hash": digest.hexdigest()}
        sidecars = {split: {"schema": SCHEMA, **identity, **part} for split, part in parts.items()}
        for split, sidecar in sidecars.items():
            write_json(work / f"{split}.json", sidecar)
        write_json(work / _PROGRESS, {"schema": 1, "whole": True})
    finally:
        if not (work / _PROGRESS).exists():
            shutil.rmtree(work, ignore_errors=True)
    _publish(work, out)
    return sidecars


def _interrupted(out: Path) -> dict[str, Any] | None:
    """The checkpoint of an interrupted packing. A complete one is moved to ``out``: ``None``."""
    work = out / _WORK
    recorded = read_json(work / _PROGRESS) if (work / _PROGRESS).exists() else None
    if recorded is not None and recorded["whole"]:
        _publish(work, out)
        return None
    return recorded


def _hashed(documents: Iterable[Document], digest: "hashlib._Hash") -> Iterator[Document]:
    for document in documents:
        digest.update(document_bytes(document))
        yield document


def batches(
    assigned: Iterable[tuple[str, Document]], digest: "hashlib._Hash"
) -> Iterator[tuple[list[Piece], str]]:
    """Group documents, cut into pieces, into batches, each with the hash of the corpus so far.

    The same documents give the same batches. Reading ``assigned`` updates ``digest``.
    """
    batch: list[Piece] = []
    num_chars = 0
    for split, document in assigned:
        *pieces, last = _pieces(document.text)
        end = (document.name, len(document.text.encode()))
        for text, ended in [*((piece, None) for piece in pieces), (last, end)]:
            batch.append((split, text, ended))
            num_chars += len(text) + 1
            if num_chars >= BATCH_CHARS:
                yield batch, digest.hexdigest()
                batch, num_chars = [], 0
    if batch:
        yield batch, digest.hexdigest()


def _pieces(text: str) -> list[str]:
    """Cut a text into pieces of at most ``BATCH_CHARS``, after line ends where possible."""
    pieces, start = [], 0
    while len(text) - start > BATCH_CHARS:
        stop = start + BATCH_CHARS
        stop = text.rfind("\n", start, stop) + 1 or stop
        pieces.append(text[start:stop])
        start = stop
    return [*pieces, text[start:]]


def _write(
    waiting: Iterator[tuple[list[Piece], str]],
    tokenizer: Any,
    work: Path,
    identity: dict[str, Any],
    recorded: dict[str, Any] | None,
    on_progress: Callable[[int], None],
) -> dict[str, dict[str, Any]]:
    vocab_size = max(tokenizer.get_vocab().values()) + 1  # ids may have gaps: not len(tokenizer)
    dtype_name = "uint16" if vocab_size < 65_536 else "uint32"
    dtype = DTYPES[dtype_name]
    encoder, end = plain_encoder(tokenizer), np.array([tokenizer.eos_token_id], dtype)
    done = 0 if recorded is None else recorded["batches"]
    with contextlib.ExitStack() as stack:
        begun = recorded["splits"] if recorded else dict.fromkeys(SPLITS)
        writers = {split: SplitWriter(work, split, stack, begun[split]) for split in SPLITS}
        if recorded is not None:
            _skip(waiting, done, recorded["corpus_hash"], work)
        for number, (batch, corpus_hash) in enumerate(waiting, start=done + 1):
            _write_batch(batch, encoder, writers, end)
            if number % _CHECKPOINT_BATCHES == 0:
                progress = {
                    "schema": 1,
                    "whole": False,
                    "identity": identity,
                    "batches": number,
                    "corpus_hash": corpus_hash,
                    "splits": {split: writer.state() for split, writer in writers.items()},
                }
                sync(work)
                write_json(work / _PROGRESS, progress)
            on_progress(sum(writer.counts["num_tokens"] for writer in writers.values()))
        states = {split: writer.state() for split, writer in writers.items()}
    return {
        split: {
            "split": split,
            "dtype": dtype_name,
            "vocab_size": vocab_size,
            **{key: state[key] for key in COUNTS},
            "token_hash": state["files"]["bin"]["sha256"],
            "index_hash": state["files"]["idx"]["sha256"],
            "names_hash": state["files"]["names"]["sha256"],
            "names_bytes": state["files"]["names"]["bytes"],
        }
        for split, state in states.items()
    }


def _write_batch(
    batch: list[Piece], encoder: Any, writers: dict[str, SplitWriter], end: np.ndarray
) -> None:
    texts = [text for _, text, _ in batch]
    encodings = encoder.encode_batch_fast(texts, add_special_tokens=False)
    for (split, _, ended), encoded in zip(batch, encodings, strict=True):
        writers[split].write(np.array(encoded.ids, end.dtype))
        if ended is not None:
            writers[split].write(end)
            writers[split].end_document(*ended)


def _skip(
    waiting: Iterator[tuple[list[Piece], str]], done: int, corpus_hash: str, work: Path
) -> None:
    """Skip the batches that are packed already; raise if their documents have changed."""
    hashes = [digest for _, digest in itertools.islice(waiting, done)]
    if len(hashes) < done or hashes[-1] != corpus_hash:
        raise CheckpointError(
            f"{work.parent}: the corpus must be as it was when this packing was interrupted, got "
            f"other documents among those already packed. Delete {work} to pack from the start."
        )


def _require_same(
    out: Path, recorded: dict[str, Any], identity: dict[str, Any], kind: str, way_out: str
) -> None:
    """Raise if the recorded packing has another corpus, tokenizer or validation fraction."""
    if differing := [key for key, value in identity.items() if recorded.get(key) != value]:
        raise CheckpointError(
            f"pack: {out} must be empty or hold this packing, got {kind} of another "
            f"{' and '.join(differing)}. Choose another folder{way_out}."
        )


def _existing(out: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """Sidecars of the finished packing in ``out``; raises if it is another one or damaged."""
    sidecars = {split: PackedTokens(out, split).metadata for split in SPLITS}
    for sidecar in sidecars.values():
        _require_same(out, sidecar, identity, "one", "")
    shutil.rmtree(out / _WORK, ignore_errors=True)  # left if a call was killed at its very end
    return sidecars


def _publish(work: Path, out: Path) -> None:
    """Move complete files to ``out``. If this is interrupted, the next call moves the rest.

    After a power failure a file may be in neither folder. Then all packed files are deleted.
    """
    if not all((work / name).exists() or (out / name).exists() for name in FILES):
        for name in reversed(FILES):
            (out / name).unlink(missing_ok=True)
        (work / _PROGRESS).unlink()
        return
    for name in FILES:
        if (work / name).exists():
            (work / name).replace(out / name)
            sync(out)  # each move is on disk before the next one starts
    shutil.rmtree(work)
    sync(out)
