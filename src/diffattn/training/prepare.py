"""From a data configuration to token files that every run of a comparison shares."""

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diffattn.data.corpora import Document, corpus_hash, load_corpus
from diffattn.data.files import relative_files
from diffattn.data.sidecar import advised
from diffattn.data.tokenizer import load_tokenizer, tokenizer_hash, train_tokenizer
from diffattn.data.tokens import PackedTokens, pack
from diffattn.errors import CheckpointError, ConfigError
from diffattn.records.checksum import file_hash
from diffattn.records.claim import is_claimed
from diffattn.records.io import read_json, sync, write_json
from diffattn.records.lock import sole_writer
from diffattn.records.run import require_schema
from diffattn.training.config import DataConfig

# Written first, so that a folder without it is not ours. Its field for the hashes of the
# tokenizer's files is not compared: they follow from the others.
_MARKER = "data.json"
_TOKENIZER_FILES = "tokenizer_files"
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
            with advised(folder):
                tokenizer = _saved_tokenizer(folder)
        else:
            tokenizer = _new_tokenizer(config, documents, on_message)
            _save_tokenizer(tokenizer, folder, wanted)
            on_message(f"packing {len(documents):,} documents")
        pack(documents, tokenizer, folder, validation_fraction=config.validation_fraction)
    return open_data(folder, verify=False)  # just written, or checked


def open_data(folder: Path, *, verify: bool = True) -> PreparedData:
    """Open what :func:`prepare_data` left in ``folder``.

    Args:
        folder: With ``data.json``, ``tokenizer/`` and the token files.
        verify: Whether to compare the tokens with their hashes: about a second per gigabyte. Every
            process of a study that trains does so once. All other files are always checked.

    Raises:
        CheckpointError: Files are missing, damaged, or of different packings.
    """
    folder = Path(folder)
    with advised(folder):
        marker = _read_marker(folder)
        try:
            config = DataConfig(**marker["config"])
        except (TypeError, ConfigError) as error:
            raise CheckpointError(
                f"{folder / _MARKER}: must hold data settings, got {error}."
            ) from error
        tokenizer = _saved_tokenizer(folder)
    train, validation = (PackedTokens(folder, s, verify=verify) for s in ("train", "validation"))
    with advised(folder):
        packed = {"corpus_hash": marker["corpus_hash"], "tokenizer_hash": tokenizer_hash(tokenizer)}
        for part in (train, validation):
            if other := [key for key, value in packed.items() if part.metadata[key] != value]:
                raise CheckpointError(
                    f"{folder}: all files must be of one packing, got another {other[0]} in "
                    f"{part.metadata['split']}.json."
                )
    return PreparedData(
        folder=folder, config=config, tokenizer=tokenizer, train=train, validation=validation
    )


def _read_marker(folder: Path) -> dict[str, Any]:
    path = folder / _MARKER
    marker = read_json(path)
    require_schema(marker, path)
    for key, kind in (("config", dict), ("corpus_hash", str), (_TOKENIZER_FILES, dict)):
        if not isinstance(marker.get(key), kind):
            raise CheckpointError(f"{path}: must hold data settings, got no {key}.")
    return marker


def _check_claim(folder: Path, wanted: dict[str, Any]) -> None:
    """Refuse a folder of other data or of somebody else before anything is written."""
    if not is_claimed(folder, _MARKER, "packed data"):
        return
    with advised(folder):
        marker = _read_marker(folder)
    if {key: value for key, value in marker.items() if key != _TOKENIZER_FILES} != wanted:
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


def _save_tokenizer(tokenizer: Any, folder: Path, wanted: dict[str, Any]) -> None:
    """Whole or not at all; the marker, which names its files, before it."""
    temporary = folder / f".{_TOKENIZER}.tmp"
    _clean(folder)
    try:
        tokenizer.save_pretrained(temporary)
        hashes = {}
        for name in relative_files(temporary, lambda name: False):
            sync(temporary / name)
            size = (temporary / name).stat().st_size
            hashes[name] = {"bytes": size, "sha256": file_hash(temporary / name)}
        sync(temporary)
        write_json(folder / _MARKER, {**wanted, _TOKENIZER_FILES: hashes})
        temporary.replace(folder / _TOKENIZER)
        sync(folder)
    # The Rust writer raises bare Exception for a full disk.
    except Exception as error:
        raise OSError(f"{folder / _TOKENIZER}: must be writable, got {error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _clean(folder: Path) -> None:
    """Remove what a killed process left."""
    for path in folder.glob(".*.tmp"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _saved_tokenizer(folder: Path) -> Any:
    for name, facts in _read_marker(folder)[_TOKENIZER_FILES].items():
        path = folder / _TOKENIZER / name
        if not path.is_file():
            raise CheckpointError(f"{path}: file must exist, got none.")
        if path.stat().st_size != facts["bytes"] or file_hash(path) != facts["sha256"]:
            raise CheckpointError(f"{path}: must be as it was packed, got other content.")
    try:
        return load_tokenizer(str(folder / _TOKENIZER))
    except ConfigError as error:  # there it is our file, not the caller's setting
        raise CheckpointError(str(error)) from error
