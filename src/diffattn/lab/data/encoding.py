"""From documents to token ids in flat memory, in one process or several."""

import concurrent.futures
import hashlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from diffattn.errors import DiffAttnError
from diffattn.lab.data.byte_pairs import TextEncoder
from diffattn.lab.data.corpora import Document

BATCH_CHARS = 1 << 20  # encodings take some hundred bytes per token until they are written
_WAITING_BATCHES = 2
"""Batches per process that are encoded ahead of the one being written."""


@dataclass(slots=True)
class Batch:
    """Texts to encode, and their splits and documents."""

    splits: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    ended: list[tuple[str, int] | None] = field(default_factory=list)
    """Name and bytes of the document whose last piece the text is; ``None``: another piece."""
    num_chars: int = 0
    corpus_hash: str = ""
    """Hash of all documents up to the end of the batch."""


@dataclass(slots=True)
class EncodedBatch:
    """A batch and its token ids."""

    batch: Batch
    ids: bytes
    """Ids of all texts, in order."""
    lengths: list[int]
    """Ids per text."""


def batches(assigned: Iterable[tuple[str, Document]], digest: "hashlib._Hash") -> Iterator[Batch]:
    """Group pieces of documents by size. The same documents give the same batches.

    Args:
        assigned: Splits and their documents.
        digest: Of the corpus so far; the reader of the documents updates it.
    """
    batch = Batch()
    for split, document in assigned:
        *pieces, last = _pieces(document.text)
        end = (document.name, len(document.text.encode()))
        for piece, ended in [*((piece, None) for piece in pieces), (last, end)]:
            batch.splits.append(split)
            batch.texts.append(piece)
            batch.ended.append(ended)
            batch.num_chars += len(piece) + 1
            if batch.num_chars >= BATCH_CHARS:
                batch.corpus_hash = digest.hexdigest()
                yield batch
                batch = Batch()
    if batch.texts:
        batch.corpus_hash = digest.hexdigest()
        yield batch


def encode(
    waiting: Iterator[Batch], encoder: Any, dtype: np.dtype[Any], workers: int
) -> Iterator[EncodedBatch]:
    """Encode batches in their order; the ids do not depend on the number of processes.

    Args:
        waiting: Batches; read ahead by two per process.
        encoder: See :func:`diffattn.lab.data.tokenizer.plain_encoder`.
        dtype: Of the ids.
        workers: Processes that encode; with 1 this process encodes, on the library's threads.

    Raises:
        DiffAttnError: A process ended before its work was done.
    """
    if workers == 1:
        text_encoder = TextEncoder(encoder)
        for batch in waiting:
            yield EncodedBatch(batch, *_encoded(text_encoder, batch.texts, dtype))
        return
    # Not forked: the library's threads and their locks do not survive a fork.
    with concurrent.futures.ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin_worker,
        initargs=(encoder.to_str(),),
    ) as pool:
        ahead: deque[tuple[Batch, concurrent.futures.Future[tuple[bytes, list[int]]]]] = deque()
        try:
            for batch in waiting:
                ahead.append((batch, pool.submit(_encoded_by_worker, batch.texts, dtype.str)))
                if len(ahead) >= _WAITING_BATCHES * workers:
                    first, result = ahead.popleft()
                    yield EncodedBatch(first, *result.result())
            while ahead:
                first, result = ahead.popleft()
                yield EncodedBatch(first, *result.result())
        except BrokenProcessPool as error:
            raise DiffAttnError(
                "pack: a process that encodes must end when its work is done, got one that was "
                "killed or could not start (a script needs an 'if __name__ == \"__main__\"' "
                "around its calls). The same command goes on where it was."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _encoded(
    encoder: TextEncoder, texts: list[str], dtype: np.dtype[Any]
) -> tuple[bytes, list[int]]:
    ids = encoder(texts)
    return b"".join(i.astype(dtype).tobytes() for i in ids), [len(i) for i in ids]


_worker_encoder: TextEncoder | None = None


def _begin_worker(encoder: str) -> None:
    """Load the tokenizer once, and end with the parent process."""
    global _worker_encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the pool
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core per process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_str(encoder)
    loaded.encode_special_tokens = True  # not saved with the tokenizer
    _worker_encoder = TextEncoder(loaded)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _encoded_by_worker(texts: list[str], dtype: str) -> tuple[bytes, list[int]]:
    assert _worker_encoder is not None
    return _encoded(_worker_encoder, texts, np.dtype(dtype))


def _pieces(text: str) -> list[str]:
    """Cut a long text, after line ends where possible; at least one piece."""
    pieces, start = [], 0
    while len(text) - start > BATCH_CHARS:
        stop = start + BATCH_CHARS
        stop = text.rfind("\n", start, stop) + 1 or stop
        pieces.append(text[start:stop])
        start = stop
    return [*pieces, text[start:]]
