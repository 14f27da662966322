"""Convert a model to another layout, or from softmax to differential attention, and verify it.

Logits of source and result on random tokens are computed by their code in transformers, with one
block in memory at a time. In float64 their difference may be about twice the rounding error of the
source in a narrower dtype.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.destination import require_folder_destination
from diffattn.files.folders import MANIFEST, new_folder, verify_manifest, write_manifest
from diffattn.files.io import write_json
from diffattn.layers.saved_names import saved_name
from diffattn.models.checkpoint_folder import INDEX
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.conversion.layouts import STARTS
from diffattn.models.conversion.our_model import (
    WRITERS,
    OurModel,
    Written,
    as_ours,
    fold,
    read_model,
)
from diffattn.models.conversion.pretrained import start_from_softmax
from diffattn.models.conversion.source import LazyTensor, Source, open_source
from diffattn.models.loading import quiet

_COPIED_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model",
    "chat_template.jinja", "chat_template.json", "generation_config.json",
)  # fmt: skip
_START_SETTINGS = frozenset({"head_norm", "lambda_init", "shared_rank"})
"""Settings that apply only to a differential model made from a softmax model."""
_TARGETS = {
    "softmax": STARTS,
    "diff": ("diffllama", "original"),
    "diff_v2": ("original",),
    "shared_diff": ("diffllama", "original", "diff"),
}
"""Attention type of the source -> possible targets."""
_ROWS, _TOKENS = 2, 16


@dataclass(frozen=True, slots=True)
class Verification:
    """Comparison of logits on random tokens, in float64."""

    tokens: int
    largest_logit: float
    difference: float
    """Largest difference between source and result."""
    rounding: float
    """Largest difference between the source in float64 and in ``dtype``. ``difference`` may be
    2 (``rounding`` + ε ``largest_logit``), ε the machine epsilon of ``dtype``."""
    dtype: str


@dataclass(frozen=True, slots=True)
class Conversion:
    """Result of a conversion."""

    layout: str
    """Layout of the source, in words."""
    attention_type: str
    """Attention type of the result."""
    tensors: int
    size: int
    """Size of the weights, in bytes."""
    preserved: bool
    """Whether the result computes the same function as the source, up to rounding."""
    verification: Verification | None
    """``None`` where transformers has no code for one of the two layouts."""


def convert(
    source: str,
    target: str,
    out: Path,
    *,
    layout: str | None = None,
    changes: Mapping[str, Any] | None = None,
    verify: bool = True,
    shard_bytes: int = 2**30,
    on_message: Callable[[str], None] = lambda _: None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Conversion:
    """Write a model in another layout, or make a differential model from a softmax model.

    Before the folder ``out`` appears, the logits of source and result are compared if transformers
    can run both layouts.

    Args:
        source: A model folder, a run directory or one ``.safetensors`` file.
        target: A layout, ``"diffattn"``, ``"diffllama"`` or ``"original"``; or an attention type:
            a name of ``STARTS`` for a softmax model, ``"diff"`` for Shared DIFF.
        layout: Layout of the source, if neither ``config.json`` nor tensor names determine it.
        changes: Fields of the configuration to set, and ``rope_theta``.
        verify: Compare the source's files with its manifest first, if it has one.
        shard_bytes: Largest size of one file of weights, unless a single tensor is larger.
        on_message, on_progress: Called with the next step in words; with bytes written and total.

    Raises:
        CheckpointError: The source is damaged or of an unknown form, or the logits differ.
        ConfigError: The source cannot be converted to this target.
    """
    out, changes = Path(out), dict(changes or {})
    require_folder_destination(out)
    if out.exists() and any(out.iterdir()):
        raise CheckpointError(
            f"{out}: must be empty or new, got other files. Choose another --out."
        )
    with open_source(source, layout) as given:
        if verify and (given.folder / MANIFEST).exists() and not Path(source).is_file():
            verify_manifest(given.folder)
        start = {name: changes.pop(name) for name in _START_SETTINGS & changes.keys()}
        model = read_model(given, changes)
        written = _express(given, model, target, start)
        size = sum(tensor.nbytes for tensor in written.tensors.values())
        copied = [file for name in _COPIED_FILES if (file := given.folder / name).is_file()]
        _require_room(out, size + sum(file.stat().st_size for file in copied) + 2**20)
        on_message(f"{given.layout.title} to {target}: {size:,} bytes")
        with new_folder(out) as folder:
            written.write_config(folder)
            _write_weights(folder, written.tensors, shard_bytes, on_progress)
            for file in copied:
                shutil.copyfile(file, folder / file.name)
            with open_source(str(folder), written.layout.name) as result:
                verification = verify_logits(given, result, model.config, written, on_message)
            facts = (given.layout.title, written.attention_type, len(written.tensors), size)
            done = Conversion(*facts, written.preserved, verification)
            head = {"kind": "conversion", "schema": 1, "target": target}
            write_json(folder / "conversion.json", head | asdict(done))
            write_manifest(folder)
    return done


def _express(source: Source, model: OurModel, target: str, start: dict[str, Any]) -> Written:
    kind = model.config.attention_type
    if kind == "softmax" and target in STARTS:
        begun = start_from_softmax(model, target, start)
        rounded = target in ("diff", "shared_diff")  # for others the factor is 2 or 1: exact
        preserved = not begun.config.uses_head_norm
        return replace(as_ours(begun), rounded=rounded, preserved=preserved)
    if start:
        raise ConfigError(
            f"convert: {', '.join(sorted(start))} must be left out unless a softmax model becomes "
            f"a differential one, got {kind!r} to {target!r}."
        )
    if kind == "shared_diff" and target == "diff":
        return replace(as_ours(fold(model)), rounded=True)
    is_ours = source.layout.name == "diffattn"
    if target not in WRITERS or (target == "diffattn" and is_ours):
        can = [*([] if is_ours else ["diffattn"]), *_TARGETS.get(kind, ())]
        raise ConfigError(
            f"convert: --to must be one of {', '.join(can) or 'none'} for {source.layout.title} "
            f"with attention_type {kind!r}, got {target!r}."
        )
    return WRITERS[target](model)


def _require_room(out: Path, needed: int) -> None:
    place = out.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed > free:
        raise ConfigError(
            f"convert: the disk of {out} must have {needed:,} bytes free, got {free:,}."
        )


def _write_weights(
    folder: Path,
    tensors: Mapping[str, LazyTensor],
    shard_bytes: int,
    on_progress: Callable[[int, int], None],
) -> None:
    """Write safetensors files, and an index if there are several."""
    split = split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    done, total = 0, sum(tensor.nbytes for tensor in tensors.values())
    on_progress(done, total)  # shown while the first file is written
    for file, names in split.filename_to_tensors.items():
        loaded = {name: tensors[name].load().contiguous() for name in names}
        save_file(loaded, folder / file, metadata={"format": "pt"})
        del loaded
        done += sum(tensors[name].nbytes for name in names)
        on_progress(done, total)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def verify_logits(
    source: Source,
    result: Source,
    config: DiffTransformerConfig,
    written: Written,
    on_progress: Callable[[str], None],
) -> Verification | None:
    """Compare the logits of two sets of files; ``None`` if transformers cannot compute both.
    Rounding errors of the weights' dtype are allowed if it rounded weights, else of float32."""
    if not (source.layout.has_code and result.layout.has_code):
        return None
    first = next(iter(result.tensors.values()))
    narrow = first.dtype if written.rounded and first.dtype != torch.float64 else torch.float32
    generator = torch.Generator().manual_seed(0)
    tokens = min(_TOKENS, config.max_position_embeddings)
    ids = torch.randint(config.vocab_size, (_ROWS, tokens), generator=generator)
    on_progress("logits of the source")
    exact = compute_logits(source, ids, torch.float64)
    on_progress("logits of the source, rounded")
    rounding = (compute_logits(source, ids, narrow).double() - exact).abs().max()
    on_progress("logits of the result")
    converted = compute_logits(result, ids, torch.float64)
    if not bool(converted.isfinite().all() and exact.isfinite().all()):
        raise source.error("logits of source and result must be finite", "NaN or infinity")
    largest = exact.abs().max()
    difference = float((converted - exact).abs().max())
    budget = 2 * float(rounding + torch.finfo(narrow).eps * largest)
    if written.preserved and difference > budget:
        must = f"the result must have the source's logits (the largest is {float(largest):.3g})"
        got = f"a difference of {difference:.3g} where rounding explains {budget:.3g}"
        raise source.error(must, got)
    return Verification(
        tokens=ids.numel(),
        largest_logit=float(largest),
        difference=difference,
        rounding=float(rounding),
        dtype=str(narrow).removeprefix("torch."),
    )


@torch.no_grad()
def compute_logits(source: Source, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Logits ``[B, T, vocab_size]`` of files for ``ids`` ``[B, T]``, computed in ``dtype``."""
    config: Any = AutoConfig.from_pretrained(source.folder, trust_remote_code=False)
    with quiet(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    # Rotary tables are built from the configuration; parameters come from the files.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model = model.to(dtype).eval()
    outside_blocks = ("model.embed_tokens", "model.norm", "lm_head")
    for name, module in model.named_modules():
        if name in outside_blocks or type(module).__name__ in model._no_split_modules:
            _load_while_running(name, module, source.tensors)
    return model(ids, use_cache=False).logits


def _load_while_running(name: str, module: nn.Module, tensors: Mapping[str, LazyTensor]) -> None:
    def load(*_: Any) -> None:
        state = {}
        for part, parameter in module.named_parameters():
            saved = saved_name(f"{name}.{part}")
            if saved == "lm_head.weight" and saved not in tensors:  # it is the embedding
                saved = "model.embed_tokens.weight"
            state[part] = tensors[saved].load().to(parameter.dtype)
        module.load_state_dict(state, assign=True)

    def drop(*_: Any) -> None:
        module.to("meta")

    module.register_forward_pre_hook(load)
    module.register_forward_hook(drop)
