"""Open and check a folder of safetensors. Its tensors are read one by one, when needed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffattn.errors import CheckpointError, ConfigError, check_known, did_you_mean, short
from diffattn.layers.saved_names import saved_name
from diffattn.models import checkpoint_folder
from diffattn.models.config.settings import check_rope_parameters
from diffattn.models.conversion.layouts import LAYOUTS, Layout, layouts_of
from diffattn.models.folder_check import read_object
from diffattn.ops.inputs.numbers import is_whole

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """One tensor. Every call of ``load`` reads it again, or computes it from other tensors."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        """Size in a file, in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


Weights = dict[tuple[str, int | None], LazyTensor]
"""Role (see :mod:`~diffattn.models.conversion.layouts`) and layer, or outside of the layers
``None`` -> tensor."""


def derive(change: Callable[..., Tensor], *sources: LazyTensor) -> LazyTensor:
    """``change(*sources)``, computed at ``load``. Shape and dtype are found on ``meta`` now.

    Without sources, ``change`` is run once now, so it should make a small tensor.
    """
    empty = change(*(torch.empty(x.shape, dtype=x.dtype, device="meta") for x in sources))
    return LazyTensor(
        tuple(empty.shape), empty.dtype, lambda: change(*(source.load() for source in sources))
    )


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

    def error(self, must: str, got: object) -> CheckpointError:
        """The error that says what must hold, and what the source has instead."""
        return CheckpointError(f"{self.name}: {must}, got {got}.")

    def tensor(self, name: str, shape: Sequence[int]) -> LazyTensor:
        """The tensor called ``name``; CheckpointError if it is missing or has another shape."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.shape != tuple(shape):
            got = "none" if tensor is None else list(tensor.shape)
            raise self.error(f"must hold {name} as {list(shape)}", got)
        return tensor


@contextmanager
def open_source(path: str, layout: str | None = None) -> Iterator[Source]:
    """Open weights: a model folder, a run directory or one safetensors file.

    ``layout`` is a name; by default it is found from ``config.json`` or the tensor names.
    """
    folder, files = _find_files(path)
    settings = None
    if (folder / "config.json").exists() and not Path(path).is_file():
        settings = read_object(f"{path}/config.json", folder / "config.json")
        if settings.get("quantization_config") is not None:
            raise CheckpointError(f"{path}: must hold plain weights, got a quantization_config.")
        _check_padding_and_rotation(f"{path}/config.json", settings)
    with ExitStack() as stack:
        tensors: dict[str, LazyTensor] = {}
        for name, file in files.items():
            where = path if Path(path).is_file() else f"{path}/{name}"
            tensors |= _read_tensors(where, file, stack, tensors)
        kind, names = _choose_layout(path, settings, tensors, layout)
        if settings is not None and kind.name == "motif":  # transformers does not check Motif's
            for field in ("hidden_size", "num_attention_heads", "num_hidden_layers"):
                if field not in settings:
                    raise CheckpointError(f"{path}/config.json: must hold {field}, got none.")
        if kind.name == "diffattn":  # rename tensors that have their names in memory
            tensors = {
                name if saved_name(name) in tensors else saved_name(name): tensor
                for name, tensor in tensors.items()
            }
        yield Source(path, folder, tensors, settings, kind, names)


def _check_padding_and_rotation(where: str, settings: Mapping[str, Any]) -> None:
    """Name these fields, which transformers' own errors do not name."""
    pad: Any = settings.get("pad_token_id")
    vocab: Any = settings.get("vocab_size")
    if is_whole(pad) and is_whole(vocab) and pad >= vocab:
        raise CheckpointError(
            f"{where}: pad_token_id must be below vocab_size = {vocab}, got {pad}. A model "
            "without padding has null there."
        )
    heads, size = settings.get("num_attention_heads"), settings.get("hidden_size")
    width: Any = settings.get("head_dim")
    if not is_whole(width):
        width = size // heads if is_whole(heads) and heads and is_whole(size) else 0
    for name in ("rope_parameters", "rope_scaling"):
        try:
            check_rope_parameters(where, settings.get(name), width)
        except ConfigError as error:
            raise CheckpointError(str(error).replace("rope_parameters", name)) from error


def _find_files(path: str) -> tuple[Path, dict[str, Path]]:
    place = Path(path)
    if place.is_file():
        _refuse_pickled(path, [place])
        return place.parent, {place.name: place}
    place = checkpoint_folder.model_folder(place)
    if not place.is_dir():
        raise CheckpointError(
            f"{path}: must be a model folder, a run directory or a .safetensors file, got nothing. "
            "For a model of the hub: 'hf download NAME --local-dir FOLDER', then name FOLDER."
        )
    shards = {entry.name: entry for entry in place.iterdir() if entry.suffix == ".safetensors"}
    if len(shards) == 1 and not (place / checkpoint_folder.INDEX).exists():
        return place, shards  # a single file may have any name
    files = checkpoint_folder.weight_files(path, checkpoint_folder.files_in(place))
    if not files:
        _refuse_pickled(path, sorted(place.iterdir()))
        got = f"{len(shards)} without an index" if shards else "none"
        raise CheckpointError(f"{path}: must hold safetensors (model.safetensors), got {got}.")
    return place, files


def _refuse_pickled(path: str, entries: list[Path]) -> None:
    for entry in entries:
        if entry.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"):
            raise CheckpointError(
                f"{path}: must hold safetensors, got pickled weights ({entry.name}), which run "
                "code when they are read. Save them with safe_serialization first."
            )


def _read_tensors(
    where: str, file: Path, stack: ExitStack, before: Mapping[str, LazyTensor]
) -> dict[str, LazyTensor]:
    handle = stack.enter_context(checkpoint_folder.open_weights(where, file, "pt"))
    tensors = {}
    for name in handle.keys():  # noqa: SIM118
        if name.endswith("rotary_emb.inv_freq"):  # older files hold it; the settings determine it
            continue
        part = handle.get_slice(name)
        dtype = _DTYPES.get(part.get_dtype())
        if dtype is None:
            must = f"{short(name)} must be of {', '.join(_DTYPES)}"
            raise CheckpointError(f"{where}: {must}, got {part.get_dtype()}.")
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
    """Layout and role -> name: ``wanted``, else by ``config.json``, else by tensor names."""
    if wanted is not None:
        check_known("convert", "layout", wanted, LAYOUTS)
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
            first = ", ".join(map(short, sorted(tensors)[:3]))
            got = f"that fit {' and '.join(named)}" if named else f"of none ({first}, ...)"
            raise CheckpointError(
                f"{path}: must be of one layout, got tensors {got}, and no config.json. "
                "Name the layout with --from."
            )
        (wanted,) = named
    layout = LAYOUTS[wanted]
    tables = [names for candidate, names in by_names if candidate.name == wanted]
    return layout, (*tables, *layout.names, {})[0]
