"""Training and held-out tokens of a run, of packed tokens, or of any corpus."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.data.corpora import load_corpus
from diffattn.lab.data.splits import assign_splits
from diffattn.lab.data.tokenizer import plain_encoder, tokenizer_hash
from diffattn.lab.data.tokens import PackedTokens
from diffattn.lab.inference.language_model import LanguageModel

_PIECE = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSplits:
    """Two streams of token ids, documents parted by the end token."""

    train: np.ndarray
    """Memory-mapped, or in memory for a corpus."""
    validation: np.ndarray
    validation_starts: np.ndarray
    """int64 ``[documents]``, the first token of each document of ``validation``, ascending."""
    origin: str
    """Where they came from, for records."""

    def pieces(self) -> Iterator[np.ndarray]:
        """The training tokens by pieces."""
        for start in range(0, len(self.train), _PIECE):
            yield self.train[start : start + _PIECE]


def token_splits(
    protocol: str, model: LanguageModel, data: str, *, text_field: str, validation_fraction: float
) -> TokenSplits:
    """Training and validation tokens of the model's tokenizer.

    Args:
        protocol: Its name, for errors.
        model: Its tokenizer is used.
        data: A run directory, a folder with packed tokens, or a corpus for
            :func:`diffattn.lab.data.corpora.load_corpus`, which is split as ``pack`` splits it.
        text_field, validation_fraction: Of a corpus.

    Raises:
        ConfigError: There are no packed tokens, they are another tokenizer's, or the corpus cannot
            be read.
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
    return TokenSplits(
        train=train.tokens,
        validation=validation.tokens,
        validation_starts=validation.document_offsets[:-1],
        origin=str(folder),
    )


def _packed_folder(protocol: str, path: Path) -> Path | None:
    """Folder of the packed tokens of a path; ``None`` if it is a corpus."""
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
    lengths = [len(part) for part in parts["validation"]]
    starts = np.cumsum([0, *lengths[:-1]], dtype=np.int64)
    return TokenSplits(train=train, validation=validation, validation_starts=starts, origin=data)
