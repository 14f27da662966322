"""From a data configuration to token files that every run of a comparison shares."""

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diffattn.data.corpora import Document, corpus_hash, load_corpus
from diffattn.data.tokenizer import load_tokenizer, train_tokenizer
from diffattn.data.tokens import PackedTokens, pack
from diffattn.errors import CheckpointError, ConfigError
from diffattn.records.claim import is_claimed
from diffattn.records.io import read_json, write_json
from diffattn.records.lock import sole_writer
from diffattn.records.run import require_schema
from diffattn.training.config import DataConfig

# Written first, so that a folder without it is not ours.
_MARKER = "data.json"
_TOKENIZER = "tokenizer"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """A tokenizer and memory-mapped tokens."""

    folder: Path
    config: DataConfig
    tokenizer: Any
    train: PackedTokens
    validation: PackedTokens

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes of validation text per validation token."""
        return self.validation.num_bytes / self.validation.num_tokens

    def facts(self) -> dict[str, Any]:
        """What a record says of the data: hashes and counts."""
        return {
            "corpus_hash": self.train.metadata["corpus_hash"],
            "tokenizer_hash": self.train.metadata["tokenizer_hash"],
            "train_hash": self.train.metadata["token_hash"],
            "validation_hash": self.validation.metadata["token_hash"],
            "train_tokens": self.train.num_tokens,
            "validation_tokens": self.validation.num_tokens,
            "validation_bytes": self.validation.num_bytes,
        }


def prepare_data(
    config: DataConfig, folder: Path, *, on_message: Callable[[str], None] = lambda line: None
) -> PreparedData:
    """Train or load the tokenizer and pack the corpus, or reuse what ``folder`` holds.

    The corpus is read and hashed every time: a changed source is an error, not a silent mix.

    Args:
        config: Source and tokenizer.
        folder: Where ``tokenizer/`` and the token files lie or will lie.
        on_message: Called with one line per long stage.

    Raises:
        ConfigError: The corpus is missing or empty, the tokenizer unknown or larger than
            ``vocab_size``.
        CheckpointError: ``folder`` holds tokens of another corpus or tokenizer, foreign files, or
            another process is writing to it.
        OSError: The disk is full or not writable; the same call again finishes the work.
    """
    folder = Path(folder)
    documents = list(load_corpus(config.source, text_field=config.text_field))
    wanted = {"schema": 1, "config": asdict(config), "corpus_hash": corpus_hash(documents)}
    with sole_writer(folder):
        _check_claim(folder, wanted)
        if (folder / _TOKENIZER).exists():
            on_message(f"checking {len(documents):,} documents")
            tokenizer = _saved_tokenizer(folder)
        else:
            tokenizer = _new_tokenizer(config, documents, on_message)
            write_json(folder / _MARKER, wanted)
            _save_tokenizer(tokenizer, folder)
            on_message(f"packing {len(documents):,} documents")
        pack(documents, tokenizer, folder, validation_fraction=config.validation_fraction)
    return open_data(folder)


def open_data(folder: Path) -> PreparedData:
    """Open what :func:`prepare_data` left in ``folder``.

    Raises:
        CheckpointError: Files are missing or damaged.
    """
    folder = Path(folder)
    path = folder / _MARKER
    marker = read_json(path)
    require_schema(marker, path)
    try:
        config = DataConfig(**marker["config"])
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{path}: must hold data settings, got {error}.") from error
    return PreparedData(
        folder=folder,
        config=config,
        tokenizer=_saved_tokenizer(folder),
        train=PackedTokens(folder, "train"),
        validation=PackedTokens(folder, "validation"),
    )


def _check_claim(folder: Path, wanted: dict[str, Any]) -> None:
    """Refuse a folder of other data or of somebody else before anything is written."""
    if is_claimed(folder, _MARKER, "packed data") and read_json(folder / _MARKER) != wanted:
        raise CheckpointError(
            f"{folder}: must hold data of this corpus and tokenizer, got another one's "
            f"(the corpus or its settings changed). Choose another folder."
        )


def _new_tokenizer(
    config: DataConfig, documents: list[Document], on_message: Callable[[str], None]
) -> Any:
    if config.tokenizer is None:
        on_message(f"training a byte-level BPE of {config.vocab_size:,} entries on {config.source}")
        tokenizer = train_tokenizer(documents, vocab_size=config.vocab_size)
    else:
        tokenizer = load_tokenizer(config.tokenizer)
    entries = max(tokenizer.get_vocab().values()) + 1  # ids may have gaps
    if entries > config.vocab_size:
        raise ConfigError(
            f"data.vocab_size must be at least the tokenizer's {entries:,} entries, "
            f"got {config.vocab_size:,}."
        )
    return tokenizer


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Whole or not at all."""
    temporary = folder / f".{_TOKENIZER}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)  # of a killed process
    try:
        tokenizer.save_pretrained(temporary)
        temporary.replace(folder / _TOKENIZER)
    # The Rust writer raises bare Exception for a full disk.
    except Exception as error:
        raise OSError(f"{folder / _TOKENIZER}: must be writable, got {error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _saved_tokenizer(folder: Path) -> Any:
    try:
        return load_tokenizer(str(folder / _TOKENIZER))
    except ConfigError as error:  # there it is our file, not the caller's setting
        raise CheckpointError(str(error)) from error
