"""From a data configuration to token files that every run of a comparison shares."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.folders import new_folder, verify_manifest, write_manifest
from diffattn.files.io import read_json, write_json
from diffattn.lab.data.corpora import Document, Pin, changed_file, load_corpus, pin, stamp
from diffattn.lab.data.packing import pack
from diffattn.lab.data.tokenizer import load_tokenizer, tokenizer_hash, train_tokenizer
from diffattn.lab.data.tokens import PackedTokens, advised
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.records.run import difference, is_claimed, package_versions, require_schema
from diffattn.lab.training.config import DataConfig
from diffattn.models.loading import name_or_cached

MARKER = "data.json"
"""File that marks a folder before the tokens are written; it is completed when they are whole."""
_SCHEMA = 3
_TOKENIZER = "tokenizer"

OnProgress = Callable[[int, int | None, int], None]
"""Called with three counts: bytes read from the source's files; bytes of all these files, or
``None`` for a dataset on the hub; and tokens written. The first and the last include the part
that an interrupted call had packed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """A tokenizer, and the memory-mapped tokens of both splits."""

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
        """Hashes and counts for records."""
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
    config: DataConfig,
    folder: Path,
    *,
    require: Callable[[PreparedData], None] = lambda data: None,
    on_message: Callable[[str], None] = lambda line: None,
    on_progress: OnProgress = lambda bytes_read, total_bytes, num_tokens: None,
) -> PreparedData:
    """Train or load the tokenizer and pack the corpus, or reuse the packed data in ``folder``.

    ``data.json`` holds the hash of every file of the source, or the commit of a dataset on the
    hub. Every call hashes the files again and raises an error if they changed. The finished
    packing of a hub dataset needs no access to the hub. An interrupted packing is continued, see
    :func:`diffattn.lab.data.packing.pack`.

    Args:
        require: Raises ``ConfigError`` for data that the caller cannot use. The files that this
            call has packed are then removed, so that other data can be packed there.

    Raises:
        ConfigError: The corpus is missing or empty, or the tokenizer unknown or too large.
        CheckpointError: ``folder`` holds tokens of another corpus or tokenizer, foreign files, or
            another process is writing to it; or the source changed.
    """
    folder = Path(folder)
    with sole_writer(folder):
        before = set(folder.iterdir())
        marker = _claimed_marker(folder, config)
        unchanged = stamp(config.source)  # before hashing: a later change is an error
        is_packed, source = "packed" in marker, marker.get("source", {})
        if marker:
            on_message(f"checking {config.source}" + f", which {folder} holds packed" * is_packed)
        if "revision" not in source:  # a commit does not change
            recorded, source = source, pin(config.source)
            if marker and (changed := changed_file(recorded, source)):
                raise _foreign_data(folder, f"source: {changed}")
        try:
            if not is_packed:
                _pack(config, folder, source, on_message, on_progress)
                if stamp(config.source) != unchanged:
                    raise CheckpointError(
                        f"{folder}: the corpus must stay as it is while it is packed, got a file "
                        "that has changed meanwhile. Delete the folder and pack again."
                    )
            data = open_data(folder, verify=is_packed)  # new tokens need no check
            require(data)
        except ConfigError:
            if not marker:  # remove the marker last: it shows that the files are ours
                made = set(folder.iterdir()) - before
                for path in sorted(made, key=lambda path: path.name == MARKER):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            raise
    return data


def _pack(
    config: DataConfig,
    folder: Path,
    source: Pin,
    on_message: Callable[[str], None],
    on_progress: OnProgress,
) -> None:
    marker = {"schema": _SCHEMA, "config": asdict(config), "source": source}
    if (folder / _TOKENIZER).exists():
        with advised(folder):
            tokenizer = _saved_tokenizer(folder)
    else:
        tokenizer = _new_tokenizer(config, source, on_message)
        _save_tokenizer(tokenizer, folder, marker)
    on_message(f"packing {config.source}")
    read = 0

    def on_read(size: int) -> None:
        nonlocal read
        read += size

    is_local = not config.source.startswith("hub:")
    total = sum(file["bytes"] for file in source["files"].values()) if is_local else None
    sidecars = pack(
        _documents(config, source, on_read=on_read),
        tokenizer,
        folder,
        validation_fraction=config.validation_fraction,
        on_progress=lambda tokens: on_progress(read, total, tokens),
    )
    counts = ("num_documents", "num_bytes", "num_tokens", "token_hash", "index_hash", "names_hash")
    hashes = {key: sidecars["train"][key] for key in ("corpus_hash", "tokenizer_hash")}
    packed = {split: {key: part[key] for key in counts} for split, part in sidecars.items()}
    versions = package_versions()
    write_json(folder / MARKER, {**marker, **hashes, "packed": packed, "versions": versions})


def _documents(config: DataConfig, source: Pin, **options: Any) -> Iterator[Document]:
    options |= {"text_field": config.text_field, "revision": source.get("revision")}
    return load_corpus(config.source, **options)


def open_data(folder: Path, *, verify: bool = True) -> PreparedData:
    """Open the packed data that :func:`prepare_data` wrote to ``folder``.

    Args:
        verify: Whether to compare the tokens with their hashes: about a second per gigabyte. All
            other files are always checked.
    """
    folder = Path(folder)
    with advised(folder):
        marker = _read_marker(folder)
        try:
            config = DataConfig(**marker["config"])
        except (TypeError, ConfigError) as error:
            raise CheckpointError(
                f"{folder / MARKER}: must hold data settings, got {error}."
            ) from error
        tokenizer = _saved_tokenizer(folder)
    if "corpus_hash" not in marker:
        raise CheckpointError(
            f"{folder}: must hold a whole packing, got an interrupted one. Pack it again: the same "
            "call goes on where it was."
        )
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
    path = folder / MARKER
    marker = read_json(path)
    require_schema(marker, path, _SCHEMA)
    for key in ("config", "source"):
        if not isinstance(marker.get(key), dict):
            raise CheckpointError(f"{path}: must hold data settings, got no {key}.")
    return marker


def _claimed_marker(folder: Path, config: DataConfig) -> dict[str, Any]:
    """The marker of a folder, empty without one; refuse other data settings and foreign folders."""
    if not is_claimed(folder, MARKER, "packed data"):
        return {}
    with advised(folder):
        marker = _read_marker(folder)
    if changed := difference("data", marker["config"], asdict(config), ()):
        raise _foreign_data(folder, changed)
    return marker


def _foreign_data(folder: Path, changed: str) -> CheckpointError:
    return CheckpointError(
        f"{folder}: must hold data of this corpus and tokenizer, got another one's ({changed}). "
        "Choose another folder."
    )


def _new_tokenizer(config: DataConfig, source: Pin, on_message: Callable[[str], None]) -> Any:
    if config.tokenizer is None:
        on_message(f"training a byte-level BPE of {config.vocab_size:,} entries on {config.source}")
        tokenizer = train_tokenizer(_documents(config, source), vocab_size=config.vocab_size)
    else:
        # Registers our configuration: transformers warns of a model folder with an unknown one.
        import diffattn.models.modeling_diff_transformer  # noqa: F401

        tokenizer = load_tokenizer(name_or_cached(config.tokenizer))
    entries = max(tokenizer.get_vocab().values()) + 1  # ids may have gaps
    if entries > config.vocab_size:
        raise ConfigError(
            f"data.vocab_size must be at least the tokenizer's {entries:,} entries, "
            f"got {config.vocab_size:,}."
        )
    return tokenizer


def _save_tokenizer(tokenizer: Any, folder: Path, marker: dict[str, Any]) -> None:
    """Write the marker before the tokenizer: a tokenizer alone does not show who made it."""
    try:
        with new_folder(folder / _TOKENIZER) as temporary:
            tokenizer.save_pretrained(temporary)
            write_manifest(temporary)
            write_json(folder / MARKER, marker)
    # The Rust writer raises bare Exception for a full disk.
    except Exception as error:
        raise OSError(f"{folder / _TOKENIZER}: must be writable, got {error}.") from error


def _saved_tokenizer(folder: Path) -> Any:
    verify_manifest(folder / _TOKENIZER)
    try:
        return load_tokenizer(str(folder / _TOKENIZER))
    except ConfigError as error:  # the file is ours: it is damaged, and no setting is wrong
        raise CheckpointError(str(error)) from error
