"""Open and check a folder of safetensors. Its tensors are read one by one, when needed."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from diffattn.errors import CheckpointError, ConfigError, did_you_mean, first_line, short
from diffattn.layers.saved_names import saved_name
from diffattn.models.checkpoint_folder import model_folder
from diffattn.models.config.rope_settings import check_rope_parameters
from diffattn.models.conversion.layouts import LAYOUTS, Layout, layouts_of
from diffattn.models.conversion.lazy import LazyTensor
from diffattn.models.folder_check import read_object
from diffattn.models.weight_files import files_in, weight_files
from diffattn.ops.inputs.numbers import is_number, is_whole

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_COUNTS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings",
)  # fmt: skip
_NUMBERS = (
    "rms_norm_eps", "attn_rms_norm_eps", "initializer_range", "rope_theta", "attention_dropout",
    "sliding_window",
)  # fmt: skip
_NEEDED_SETTINGS = {"hidden_size", "num_hidden_layers", "num_attention_heads"}
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_INDEX = "model.safetensors.index.json"
_BUFFERS = ("rotary_emb.inv_freq",)
"""Endings of tensors in older files that are ignored, because the settings determine them."""


@dataclass(frozen=True, slots=True)
class Source:
    """Weights on the disk, and their layout."""

    name: str
    """Path that the user gave, for messages."""
    folder: Path
    tensors: Mapping[str, LazyTensor]
    settings: dict[str, Any] | None
    """Content of ``config.json``; ``None`` if there is none."""
    layout: Layout
    names: Mapping[str, str]
    """Role -> name; empty for our own layout, whose names come from the model."""

    def tensor(self, name: str, shape: Sequence[int]) -> LazyTensor:
        """The tensor called ``name``; CheckpointError if it is missing or has another shape."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.shape != tuple(shape):
            got = "none" if tensor is None else list(tensor.shape)
            raise CheckpointError(f"{self.name}: must hold {name} as {list(shape)}, got {got}.")
        return tensor


@contextmanager
def open_source(path: str, layout: str | None = None) -> Iterator[Source]:
    """Open weights: a model folder, a run directory or one safetensors file.

    Args:
        path: Folder or file.
        layout: Name of the layout. Default: found from ``config.json`` or the tensor names.

    Raises:
        CheckpointError: No safetensors (pickled files are never read), damaged files, or tensors
            that fit no layout or several layouts.
    """
    folder, files = _find_files(path)
    settings = None
    if (folder / "config.json").exists() and not Path(path).is_file():
        settings = read_object(f"{path}/config.json", folder / "config.json")
        if settings.get("quantization_config") is not None:
            raise CheckpointError(
                f"{path}: must hold weights as they are, got quantized ones (quantization_config)."
            )
        _check_settings(f"{path}/config.json", settings)
    with ExitStack() as stack:
        tensors: dict[str, LazyTensor] = {}
        for name, file in files.items():
            where = path if Path(path).is_file() else f"{path}/{name}"
            tensors |= _read_tensors(where, file, stack, tensors)
        kind, names = _choose_layout(path, settings, tensors, layout)
        if settings is not None and kind.name == "motif":  # transformers does not check Motif's
            for field in sorted(_NEEDED_SETTINGS - settings.keys()):
                raise CheckpointError(f"{path}/config.json: must hold {field}, got none.")
        if kind.name == "diffattn":  # rename tensors that have their names in memory
            tensors = {
                name if saved_name(name) in tensors else saved_name(name): tensor
                for name, tensor in tensors.items()
            }
        yield Source(path, folder, tensors, settings, kind, names)


def _check_settings(where: str, settings: Mapping[str, Any]) -> None:
    """Raise for numbers that no model can have, before transformers fails on them.

    Missing and unknown settings are found later.
    """
    counts = dict.fromkeys(_COUNTS, "a whole number of 1 or more")
    numbers = dict.fromkeys(_NUMBERS, "a finite number")
    for name, kind in (counts | numbers).items():
        value: Any = settings.get(name)
        fits = is_number(value) if name in numbers else is_whole(value) and value >= 1
        if value is not None and not fits:
            raise CheckpointError(f"{where}: {name} must be {kind}, got {short(value)}.")
    kinds, pad, vocab = (
        settings.get(name) for name in ("layer_types", "pad_token_id", "vocab_size")
    )
    if kinds is not None and not (isinstance(kinds, list) and all(map(str, kinds))):
        raise CheckpointError(f"{where}: layer_types must be a list, got {short(kinds)}.")
    if pad is not None and not (is_whole(pad) and (vocab is None or pad < vocab)):
        raise CheckpointError(
            f"{where}: pad_token_id must be below vocab_size = {vocab}, got {short(pad)}. A model "
            "without padding has null there."
        )
    heads, size = settings.get("num_attention_heads"), settings.get("hidden_size")
    for name in ("rope_parameters", "rope_scaling"):
        rope = settings.get(name)
        width = settings.get("head_dim") or (size // heads if heads and size else 0)
        try:
            check_rope_parameters(where, rope, width)
        except ConfigError as error:
            raise CheckpointError(str(error).replace("rope_parameters", name)) from error


def _find_files(path: str) -> tuple[Path, dict[str, Path]]:
    place = Path(path)
    if place.is_file():
        _refuse_pickled(path, [place])
        return place.parent, {place.name: place}
    place = model_folder(place)
    if not place.is_dir():
        raise CheckpointError(
            f"{path}: must be a model folder, a run directory or a .safetensors file, got nothing. "
            "For a model of the hub: 'hf download NAME --local-dir FOLDER', then name FOLDER."
        )
    shards = {entry.name: entry for entry in place.iterdir() if entry.suffix == ".safetensors"}
    if len(shards) == 1 and not (place / _INDEX).exists():  # a single file may have any name
        return place, shards
    files = weight_files(path, files_in(place)) or {}
    if not files:
        _refuse_pickled(path, sorted(place.iterdir()))
        got = f"{len(shards)} without an index" if shards else "none"
        raise CheckpointError(f"{path}: must hold safetensors (model.safetensors), got {got}.")
    if _INDEX not in files and (place / _INDEX).exists() and "model.safetensors" not in files:
        index = read_object(f"{path}/{_INDEX}", place / _INDEX, vocabulary=True)
        for file in sorted(set(index["weight_map"].values()) - files.keys()):
            raise CheckpointError(f"{path}: must hold {file}, which its index names, got none.")
    return place, files


def _refuse_pickled(path: str, entries: list[Path]) -> None:
    for entry in entries:
        if entry.suffix in _PICKLED:
            raise CheckpointError(
                f"{path}: must hold safetensors, got pickled weights ({entry.name}), which run "
                "code when they are read. Save them with safe_serialization first."
            )


def _read_tensors(
    where: str, file: Path, stack: ExitStack, before: Mapping[str, LazyTensor]
) -> dict[str, LazyTensor]:
    if not file.is_file():
        raise CheckpointError(f"{where}: must be a file, got something else.")
    try:
        handle = stack.enter_context(safe_open(file, "pt"))
        names = list(handle.keys())
    # RuntimeError: PyTorch maps the whole file into memory, which may fail.
    except (SafetensorError, OSError, RuntimeError) as error:
        raise CheckpointError(
            f"{where}: must be whole safetensors, got: {first_line(error)}."
        ) from error
    tensors = {}
    for name in names:
        if name.endswith(_BUFFERS):
            continue
        part = handle.get_slice(name)
        dtype = _DTYPES.get(part.get_dtype())
        if dtype is None:
            raise CheckpointError(
                f"{where}: {short(name)} must be of {', '.join(_DTYPES)}, got {part.get_dtype()}."
            )
        if name in before:
            raise CheckpointError(f"{where}: {short(name)} must be in one file only, got two.")
        tensors[name] = LazyTensor(tuple(part.get_shape()), dtype, partial(handle.get_tensor, name))
    return tensors


def _choose_layout(
    path: str,
    settings: dict[str, Any] | None,
    tensors: Mapping[str, LazyTensor],
    wanted: str | None,
) -> tuple[Layout, Mapping[str, str]]:
    """Layout and table of names: ``wanted``, else by ``config.json``, else by tensor names."""
    by_names = layouts_of(tensors)
    named = dict.fromkeys(layout.name for layout, _ in by_names)
    kind = None if settings is None else settings.get("model_type")
    if wanted is None and kind is not None:
        of_kind = [layout.name for layout in LAYOUTS.values() if kind in layout.model_types]
        if not of_kind:
            known = [kind for layout in LAYOUTS.values() for kind in layout.model_types]
            raise CheckpointError(
                f"{path}: model_type must be one of {', '.join(known)}, got {short(kind)}."
                f"{did_you_mean(str(kind), known)}"
            )
        (wanted,) = of_kind
    if wanted is None:
        if len(named) != 1:
            got = f"tensors that fit {' and '.join(named)}" if named else _list_names(tensors)
            raise CheckpointError(
                f"{path}: must be of one layout, got {got}, and no config.json. "
                "Name the layout with --from."
            )
        (wanted,) = named
    layout = LAYOUTS[wanted]
    for candidate, names in by_names:
        if candidate.name == wanted:
            return layout, names
    return layout, layout.names[0] if layout.names else {}


def _list_names(tensors: Mapping[str, LazyTensor]) -> str:
    names = sorted(tensors)
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"tensors of none ({', '.join(map(short, names[:3]))}{more})"
