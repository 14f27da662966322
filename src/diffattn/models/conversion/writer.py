"""Write the weights of a converted model, with one file in memory at a time."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from huggingface_hub import split_state_dict_into_shards_factory
from safetensors.torch import save_file

from diffattn.errors import ConfigError
from diffattn.models.conversion.lazy import LazyTensor
from diffattn.models.weight_files import INDEX

SHARD_BYTES = 2**30
"""Largest file, unless a single tensor is larger. One file is in memory at a time."""
_COPIED_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model",
    "chat_template.jinja", "chat_template.json", "generation_config.json",
)  # fmt: skip
_SPARE = 2**20
"""Bytes to keep free on the disk for settings and headers."""


def require_room(out: Path, needed: int) -> None:
    """Raise a ConfigError if the disk of ``out`` has less than ``needed`` bytes free."""
    place = out.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed + _SPARE > free:
        raise ConfigError(
            f"convert: the disk of {out} must have {needed + _SPARE:,} bytes free, got {free:,}."
        )


def write_weights(
    folder: Path,
    tensors: Mapping[str, LazyTensor],
    shard_bytes: int,
    on_progress: Callable[[int], None],
) -> None:
    """Write safetensors files of at most ``shard_bytes``, and an index if there are several.

    A larger tensor gets a file of its own. ``on_progress`` is called with the bytes written.
    """
    split = split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    done = 0
    on_progress(done)  # shown while the first file is written
    for file, names in split.filename_to_tensors.items():
        loaded = {name: tensors[name].load().contiguous() for name in names}
        save_file(loaded, folder / file, metadata={"format": "pt"})
        del loaded
        done += sum(tensors[name].nbytes for name in names)
        on_progress(done)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def files_to_copy(folder: Path) -> list[Path]:
    """Existing files of the tokenizer and of generation settings, to copy with the weights."""
    return [folder / name for name in _COPIED_FILES if (folder / name).is_file()]
