"""Tokenizers: one trained on a corpus, or any existing one by name or folder."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffattn.errors import ConfigError, first_line
from diffattn.lab.data import files
from diffattn.lab.data.corpora import Document

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
SMALLEST_VOCAB_SIZE = 257  # every byte, and END_OF_TEXT
_MAX_WORD_CHARS = 1_024
# A word, as the tokenizer's pattern cuts it, is white space or has none but at its start.
_MAY_BE_LONG = re.compile(rf"(?<!\S)\S{{{_MAX_WORD_CHARS}}}|(?<!\s)\s{{{_MAX_WORD_CHARS}}}")
LARGEST_VOCAB_SIZE = 2**22
"""Entries of a tokenizer: the library reserves memory for all of them, and aborts without it."""


def train_tokenizer(documents: Iterable[Document], *, vocab_size: int) -> "PreTrainedTokenizerFast":
    """Train a byte-level BPE tokenizer. The same documents give the same tokenizer.

    All 256 bytes are tokens, so any text is encoded and decoded exactly. Id 0 is
    ``<|endoftext|>``, which is the begin, end and padding token and is never added to a text by
    itself. Words of more than 1,024 characters, which no ordinary text has, are cut for training:
    its time grows with the square of their length.

    Args:
        documents: Training text, read once.
        vocab_size: Number of ids, at least 257. A corpus with fewer pairs of tokens that occur
            twice gives a smaller tokenizer: ``len(tokenizer)`` tells.

    Returns:
        A tokenizer that ``save_pretrained`` writes and ``load_tokenizer`` reads.

    Raises:
        ConfigError: ``vocab_size`` is below 257 or above 2**22, or there is no document.
    """
    if not SMALLEST_VOCAB_SIZE <= vocab_size <= LARGEST_VOCAB_SIZE:
        raise ConfigError(
            f"train_tokenizer: vocab_size must be at least {SMALLEST_VOCAB_SIZE} "
            f"(256 bytes and {END_OF_TEXT}) and at most {LARGEST_VOCAB_SIZE}, got {vocab_size}."
        )
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    num_documents = 0

    def texts() -> Iterator[str]:
        nonlocal num_documents
        for document in documents:
            num_documents += 1
            yield from _training_pieces(document.text, words)

    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = words  # not asked for again: training holds the tokenizer's lock
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,  # a pair seen once teaches nothing about the next text
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts(), trainer)
    if not num_documents:
        raise ConfigError("train_tokenizer: the corpus must hold at least one document, got none.")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,  # it would rewrite " ," and break the round trip
        model_input_names=["input_ids", "attention_mask"],
    )


def load_tokenizer(name_or_path: str) -> Any:
    """Load a tokenizer from a folder, or by its name on the Hugging Face hub.

    Args:
        name_or_path: Folder with a tokenizer, such as one that ``save_pretrained`` wrote, or a
            name such as ``owner/name``. Code that comes with a tokenizer is never run.

    Returns:
        A ``transformers`` tokenizer.

    Raises:
        ConfigError: Nothing of that name can be loaded, or the folder holds what is no regular
            file, such as a FIFO.
    """
    from transformers import AutoTokenizer

    path = Path(os.path.expanduser(name_or_path))
    is_path = path.is_dir() or path.is_absolute() or str(name_or_path).startswith((".", "~"))
    if is_path and not path.is_dir():
        raise ConfigError(
            f"load_tokenizer: {str(path)!r} must be a folder with a tokenizer, "
            f"got {'a file' if path.exists() else 'none'}.{files.near_path(path)}"
        )
    if is_path:
        for entry in sorted(path.iterdir()):
            if not entry.is_dir():
                files.require_regular(entry, one_text=entry.suffix == ".json")
    try:
        return AutoTokenizer.from_pretrained(
            str(path) if is_path else name_or_path, trust_remote_code=False
        )
    # The Rust parser raises bare Exception for a tokenizer.json that is not a tokenizer.
    except Exception as error:
        raise ConfigError(
            f"load_tokenizer: {str(name_or_path)!r} must be a folder with a tokenizer or a name "
            f"on the hub, got: {first_line(error)}.{'' if path.is_dir() else files.near_path(path)}"
        ) from error


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 of everything that decides the ids of a packed text.

    The padding and truncation that earlier calls left in the tokenizer do not count, nor does
    saving and loading it.

    Args:
        tokenizer: A fast ``transformers`` tokenizer.

    Returns:
        64 hexadecimal digits.

    Raises:
        ConfigError: The tokenizer has no ``tokenizers`` backend.
    """
    definition = json.loads(_backend(tokenizer).to_str())
    definition.pop("padding", None)
    definition.pop("truncation", None)
    content = json.dumps([definition, tokenizer.eos_token_id], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def plain_encoder(tokenizer: Any) -> "Tokenizer":
    """Private copy of the backend that encodes whole texts as nothing but text.

    Without truncation and padding, and with special tokens that are spelled out in a text
    encoded as the characters they are: a text cannot forge the end of a document.

    Args:
        tokenizer: A fast ``transformers`` tokenizer; it is not changed.

    Raises:
        ConfigError: The tokenizer has no ``tokenizers`` backend.
    """
    backend = _backend(tokenizer)
    encoder = type(backend).from_str(backend.to_str())
    encoder.no_truncation()
    encoder.no_padding()
    encoder.encode_special_tokens = True
    return encoder


def _training_pieces(text: str, pre_tokenizer: Any) -> Iterator[str]:
    """The text, cut within the words that are too long: almost always the text itself."""
    start = 0
    if _MAY_BE_LONG.search(text):
        for _, (first, end) in pre_tokenizer.pre_tokenize_str(text):
            for stop in range(first + _MAX_WORD_CHARS, end, _MAX_WORD_CHARS):
                yield text[start:stop]
                start = stop
    yield text[start:]


def _backend(tokenizer: Any) -> "Tokenizer":
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(
            f"tokenizer must be a fast one (with a 'tokenizers' backend), "
            f"got {type(tokenizer).__name__}."
        )
    return backend
