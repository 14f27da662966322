"""Texts for perplexities: documents without boilerplate, and tokens a model was trained on."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.data.corpora import Document, load_corpus
from diffattn.data.gutenberg import strip_gutenberg
from diffattn.data.splits import assign_splits
from diffattn.data.tokenizer import plain_encoder, tokenizer_hash
from diffattn.data.tokens import PackedTokens
from diffattn.errors import ConfigError
from diffattn.inference.language_model import LanguageModel

_CUT_TOKENS = 16
"""Tokens left out before a cut in the text, which may have changed them."""


def open_texts(source: str, text_field: str) -> Iterator[Document]:
    """Documents of a corpus without what Project Gutenberg put around them.

    Args:
        source: See :func:`diffattn.data.corpora.load_corpus`.
        text_field: Key or column of the text.

    Raises:
        ConfigError: The source is unknown, missing, empty or damaged.
    """
    for document in load_corpus(source, text_field=text_field):
        yield Document(name=document.name, text=strip_gutenberg(document.text))


def long_texts(
    protocol: str,
    model: LanguageModel,
    source: str,
    text_field: str,
    *,
    least: int,
    most: int,
    documents: int | None,
) -> dict[str, np.ndarray]:
    """The first tokens of every document that has enough.

    Args:
        protocol: Its name, for errors.
        model: Whose tokenizer it is.
        source: See :func:`diffattn.data.corpora.load_corpus`.
        text_field: Key or column of the text.
        least: Tokens a document must have.
        most: Tokens that are kept of it.
        documents: How many to take, in the order of the corpus. Default: all.

    Returns:
        int64 ``[n]`` by name of the document, ``least <= n <= most``.

    Raises:
        ConfigError: The corpus cannot be read, or no document is long enough.
    """
    texts: dict[str, np.ndarray] = {}
    longest: Document | None = None
    count = 0
    for document in open_texts(source, text_field):
        count += 1
        if longest is None or len(document.text) > len(longest.text):
            longest = document
        if len(document.text.encode()) < least:  # a token has a byte or more
            continue
        ids = first_tokens(model, document.text, most)
        if len(ids) >= least:
            texts[document.name] = np.array(ids)
        if len(texts) == documents:
            break
    if not texts:
        assert longest is not None  # every source raises rather than end without a document
        size = len(model.encode(longest.text))
        raise ConfigError(
            f"{protocol}: one document or more must have {least} tokens, got none of {count} in "
            f"{source!r}; the longest, {longest.name!r}, has {size}."
        )
    return texts


def first_tokens(model: LanguageModel, text: str, count: int) -> list[int]:
    """The first ``count`` tokens of a text, or all; no more of it is encoded than needed."""
    size = 6 * count + 256  # characters: most tokenizers need fewer
    while size < len(text):
        ids = model.encode(text[:size])
        if len(ids) >= count + _CUT_TOKENS:
            return ids[:count]
        size *= 2
    return model.encode(text)[:count]


def text_bytes(model: LanguageModel, tokens: np.ndarray) -> int:
    """UTF-8 bytes of the text of some tokens; a character cut by a border counts as three."""
    options: dict[str, Any] = {"clean_up_tokenization_spaces": False}
    return len(model.tokenizer.decode(tokens.tolist(), **options).encode())


_PIECE = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSplits:
    """Two streams of token ids, documents parted by the end token."""

    train: np.ndarray
    """Memory-mapped, or in memory for a corpus."""
    validation: np.ndarray
    origin: str
    """Where they came from, for records."""

    def pieces(self) -> Iterator[np.ndarray]:
        """The training tokens by pieces."""
        for start in range(0, len(self.train), _PIECE):
            yield self.train[start : start + _PIECE]


def token_splits(
    protocol: str, model: LanguageModel, data: str, *, text_field: str, validation_fraction: float
) -> TokenSplits:
    """Training and validation tokens as the model's tokenizer makes them.

    Args:
        protocol: Its name, for errors.
        model: Whose tokenizer it is.
        data: A run directory, a folder with packed tokens, or a corpus for
            :func:`diffattn.data.corpora.load_corpus`, which is split as ``pack`` splits it.
        text_field: Key or column of the text of a corpus.
        validation_fraction: Of a corpus; packed tokens have theirs.

    Raises:
        ConfigError: A run directory without packed tokens, another tokenizer's tokens, or a
            corpus that cannot be read.
        CheckpointError: Packed tokens are damaged.
    """
    folder = _packed_folder(protocol, Path(data))
    if folder is None:
        return _encoded(model, data, text_field, validation_fraction)
    train, validation = (PackedTokens(folder, split) for split in ("train", "validation"))
    packed_by, ours = train.metadata["tokenizer_hash"], tokenizer_hash(model.tokenizer)
    if packed_by != ours:
        raise ConfigError(
            f"{protocol}: the tokens in {folder} must come from the tokenizer of {model.label} "
            f"({ours[:12]}), got those of another ({packed_by[:12]}). Name the corpus instead, or "
            "pack it with this tokenizer."
        )
    return TokenSplits(train=train.tokens, validation=validation.tokens, origin=str(folder))


def _packed_folder(protocol: str, path: Path) -> Path | None:
    """Where the packed tokens of a path lie; ``None`` if it is no folder of ours."""
    is_run = (path / "run.json").exists()
    places = [path, path / "data"] + ([path.parent.parent / "data"] if is_run else [])
    for place in places:
        if (place / "train.json").exists() or (place / "train.bin").exists():
            return place
    if is_run:
        raise ConfigError(
            f"{protocol}: the run {path} must have packed tokens (in its own data/ or that of its "
            "study), got none. Name the folder that 'diffattn pack' wrote, or the corpus."
        )
    return None


def _encoded(
    model: LanguageModel, data: str, text_field: str, validation_fraction: float
) -> TokenSplits:
    """Tokens of a corpus, each document encoded as plain text and followed by the end token."""
    encoder = plain_encoder(model.tokenizer)
    end = model.tokenizer.eos_token_id
    parts: dict[str, list[np.ndarray]] = {"train": [], "validation": []}
    documents = load_corpus(data, text_field=text_field)
    for split, document in assign_splits(documents, validation_fraction):
        ids = encoder.encode(document.text, add_special_tokens=False).ids
        parts[split].append(np.array([*ids, *([] if end is None else [end])], dtype=np.uint32))
    train, validation = (np.concatenate(parts[split]) for split in ("train", "validation"))
    return TokenSplits(train=train, validation=validation, origin=data)
