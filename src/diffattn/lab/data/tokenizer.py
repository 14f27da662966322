"""Tokenizers: train one on a corpus, or load one by name or folder."""

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
# The tokenizer cuts a text into runs of white space and words with at most one leading space.
_MAY_BE_LONG = re.compile(rf"(?<!\S)\S{{{_MAX_WORD_CHARS}}}|(?<!\s)\s{{{_MAX_WORD_CHARS}}}")
LARGEST_VOCAB_SIZE = 2**22
"""The tokenizers library reserves memory for all ids, and aborts the process if it fails."""


def train_tokenizer(documents: Iterable[Document], *, vocab_size: int) -> "PreTrainedTokenizerFast":
    """Train a byte-level BPE tokenizer. The same documents give the same tokenizer.

    All 256 bytes are tokens, so any text is encoded and decoded exactly. Id 0 is
    ``<|endoftext|>``, the begin, end and padding token, which is never added to a text. Training
    time grows with the square of the length of a word, so words are cut after 1,024 characters.
    A small corpus gives fewer ids than ``vocab_size``.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = words
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,  # a pair seen once says nothing about other texts
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Not ``backend.pre_tokenizer``: the backend is locked in training.
    pieces = (piece for document in documents for piece in _training_pieces(document.text, words))
    backend.train_from_iterator(pieces, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,  # would turn " ," into ",": decoding must be exact
        model_input_names=["input_ids", "attention_mask"],
    )


def load_tokenizer(name_or_path: str) -> Any:
    """Load a tokenizer from a folder or by its name on the hub. Its own code is never run."""
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
    """SHA-256 of everything that decides the ids of a packed text."""
    definition = json.loads(_backend(tokenizer).to_str())
    for key in ("padding", "truncation"):  # which earlier calls may have set
        definition.pop(key, None)
    content = json.dumps([definition, tokenizer.eos_token_id], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def plain_encoder(tokenizer: Any) -> "Tokenizer":
    """Copy of a fast tokenizer's backend that encodes whole texts, without truncation or padding.

    A text cannot fake the end of a document: special tokens are encoded as plain characters.
    """
    backend = _backend(tokenizer)
    encoder = type(backend).from_str(backend.to_str())
    encoder.no_truncation()
    encoder.no_padding()
    encoder.encode_special_tokens = True
    return encoder


def _training_pieces(text: str, pre_tokenizer: Any) -> Iterator[str]:
    """The text, cut within words of more than ``_MAX_WORD_CHARS`` characters."""
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
