"""From a data configuration to token files that every run of a comparison shares."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffattn.data.corpora import corpus_hash, load_corpus
from diffattn.data.tokenizer import load_tokenizer, train_tokenizer
from diffattn.data.tokens import PackedTokens, pack
from diffattn.errors import CheckpointError, ConfigError
from diffattn.records.io import read_json, write_json
from diffattn.training.config import DataConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """A tokenizer and memory-mapped tokens."""

    folder: Path
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
    config: DataConfig, folder: Path, *, say: Callable[[str], None] = lambda line: None
) -> PreparedData:
    """Train or load the tokenizer and pack the corpus, or reuse what ``folder`` holds.

    The corpus is read and hashed every time: a changed source is an error, not a silent mix.

    Args:
        config: Source and tokenizer.
        folder: Where ``tokenizer/`` and the token files lie or will lie.
        say: Called with one line per long stage.

    Raises:
        ConfigError: The corpus is missing or empty, the tokenizer unknown or larger than
            ``vocab_size``.
        CheckpointError: ``folder`` holds tokens of another corpus or tokenizer.
    """
    folder = Path(folder)
    documents = list(load_corpus(config.source, text_field=config.text_field))
    digest = corpus_hash(documents)
    tokenizer_folder = folder / "tokenizer"
    marker = folder / "tokenizer.json"
    wanted = {"corpus_hash": digest, "name": config.tokenizer, "vocab_size": config.vocab_size}
    if marker.exists():
        if read_json(marker) != wanted:
            raise CheckpointError(
                f"{folder}: must hold data of this corpus and tokenizer, got another one's "
                f"(the corpus or its settings changed). Choose another --out."
            )
        tokenizer = load_tokenizer(str(tokenizer_folder))
    else:
        if config.tokenizer is None:
            say(f"training a byte-level BPE of {config.vocab_size:,} entries on {config.source}")
            tokenizer = train_tokenizer(documents, vocab_size=config.vocab_size)
        else:
            tokenizer = load_tokenizer(config.tokenizer)
        if len(tokenizer) > config.vocab_size:
            raise ConfigError(
                f"data.vocab_size must be at least the tokenizer's {len(tokenizer):,} entries, "
                f"got {config.vocab_size:,}."
            )
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save_pretrained(tokenizer_folder)
        write_json(marker, wanted)
    say(f"packing {len(documents):,} documents")
    pack(documents, tokenizer, folder, validation_fraction=config.validation_fraction)
    return open_data(folder)


def open_data(folder: Path) -> PreparedData:
    """Open what :func:`prepare_data` left in ``folder``.

    Raises:
        CheckpointError: Files are missing or damaged.
    """
    folder = Path(folder)
    return PreparedData(
        folder=folder,
        tokenizer=load_tokenizer(str(folder / "tokenizer")),
        train=PackedTokens(folder, "train"),
        validation=PackedTokens(folder, "validation"),
    )
