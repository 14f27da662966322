"""The writer: a folder that appears whole or not at all, one of its files in memory at a time."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from huggingface_hub import split_state_dict_into_shards_factory
from safetensors.torch import save_file

from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.destination import require_folder_destination
from diffattn.models.conversion.lazy import LazyTensor

SHARD_BYTES = 2**30
"""Of one file, unless a single tensor is larger: what is in memory at once."""
CARRIED = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model",
    "chat_template.jinja", "chat_template.json", "generation_config.json",
)  # fmt: skip
"""Files of a tokenizer and of generation, which go where the weights go."""
_ROOM = 2**20
"""Bytes for settings and headers."""


def require_free(out: Path) -> None:
    """Refuse a destination that is not free.

    Raises:
        ConfigError: It cannot be a folder.
        CheckpointError: It holds something.
    """
    require_folder_destination(out)
    if out.exists() and any(out.iterdir()):
        raise CheckpointError(
            f"{out}: must be empty or new, got other files. Choose another --out."
        )


def require_room(out: Path, needed: int) -> None:
    """Refuse a disk with too little room.

    Raises:
        ConfigError: Less is free than needed.
    """
    place = out.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed + _ROOM > free:
        raise ConfigError(
            f"convert: the disk of {out} must have {needed + _ROOM:,} bytes free, got {free:,}."
        )


def write_weights(
    folder: Path,
    tensors: Mapping[str, LazyTensor],
    *,
    shard_bytes: int = SHARD_BYTES,
    on_progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Write tensors as safetensors, in files of ``shard_bytes`` with an index if they need several.

    Args:
        folder: Where to.
        tensors: By name.
        shard_bytes: Largest size of one file, unless one tensor is larger.
        on_progress: Called with the bytes written so far.
    """
    split = split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    done = 0
    on_progress(done)  # the first file takes its time
    for file, names in split.filename_to_tensors.items():
        loaded = {name: tensors[name].load().contiguous() for name in names}
        save_file(loaded, folder / file, metadata={"format": "pt"})
        done += sum(tensors[name].nbytes for name in names)
        del loaded
        on_progress(done)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        text = json.dumps(index, indent=2) + "\n"
        (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def carry(source: Path, folder: Path) -> None:
    """Copy the tokenizer and how to generate, as far as they are there."""
    for name in CARRIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
