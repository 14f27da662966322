"""Load a model and its tokenizer from a run directory, a model folder or the hub."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils import get_session
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import cached_file, logging

from diffattn.errors import CheckpointError, ConfigError, first_line, shown
from diffattn.files.folders import MANIFEST, verify_manifest
from diffattn.models.checkpoint_folder import checkpoint_folder, files_in, is_hub_name
from diffattn.models.folder_check import check_folder
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.ops.inputs.numbers import is_whole

_PATIENCE_SECONDS = 8.0
"""Time limit of the test whether the hub answers. Without it, clients retry for minutes."""


def load_model(
    name_or_path: str,
    *,
    verify: bool = True,
    revision: str | None = None,
    trust_remote_code: bool = False,
    device_map: str | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Any, Any]:
    """A causal language model of any family, in evaluation mode, and its tokenizer.

    Args:
        name_or_path: A run directory (with ``model/``), a model folder, or a hub name.
        verify: Compare the files with ``manifest.json``, if it exists: a second per gigabyte.
        revision: Commit, branch or tag of a hub name. Default: its main branch.
        trust_remote_code: Run the code that comes with the model. It can do anything, so the
            folder's settings and sizes are not checked first.
        device_map: Devices of the model's parts, in accelerate's form: ``"auto"``, ``"balanced"``
            or a device. Default: the CPU.
        dtype: Default: the checkpoint's.

    Raises:
        CheckpointError: No model is there, or its files are damaged or of another format.
        ConfigError: ``revision`` with a folder, or an ``eos_token_id`` that is not a token id.
    """
    folder = checkpoint_folder(name_or_path)
    if revision is not None and folder.exists():
        raise ConfigError(f"{name_or_path}: revision must be of a hub name, got {revision!r}.")
    if not folder.exists():
        folder = Path(name_or_cached(name_or_path, revision))
        revision = None if folder.exists() else revision
    source = {"revision": revision, "trust_remote_code": trust_remote_code}
    if verify and (folder / MANIFEST).exists():
        verify_manifest(folder)
    with quiet(), _as_checkpoint_error(f"{name_or_path}: must be a whole checkpoint"):
        if not trust_remote_code:
            find, in_memory = partial(_find, folder, revision), device_map is None
            check_folder(name_or_path, str(folder), find, in_memory=in_memory, revision=revision)
        model, report = AutoModelForCausalLM.from_pretrained(
            str(folder),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # else only a log says which weights are wrong
            device_map=device_map,
            dtype="auto" if dtype is None else dtype,
            **source,
        )
    if model.can_generate():  # keep where texts end; sampling is the caller's decision
        ends = end_tokens(model)
        model.generation_config = GenerationConfig(eos_token_id=ends or None)
    _require_all_weights(name_or_path, model, report)
    with quiet(), _as_checkpoint_error(f"{name_or_path}: must hold a tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(str(folder), **source)
    return model.eval(), tokenizer


def known_tokens(network: Any) -> int:
    """Rows of the embedding, also if a quantiser packed it or an adapter wraps it."""
    embedding = network.get_input_embeddings()
    return getattr(embedding, "num_embeddings", None) or len(embedding.weight)


def end_tokens(model: Any, tokenizer: Any = None) -> list[int]:
    """Ids of the tokens that end a text, in ascending order.

    They are collected from the configuration, ``generation_config`` and the tokenizer. Chat models
    end a turn with another token than a text, so these places may differ.
    """
    config = model.config
    places = (config, config.get_text_config(), getattr(model, "generation_config", None))
    ends: set[int] = set()
    for place in (*places, tokenizer):
        named = getattr(place, "eos_token_id", None)
        ids = named if isinstance(named, list | tuple) else [] if named is None else [named]
        if not all(is_whole(token) for token in ids):
            raise ConfigError(
                f"{type(place).__name__}: eos_token_id must be an id, a list of ids or null, got "
                f"{shown(named)}."
            )
        ends.update(ids)
    return sorted(token for token in ends if token >= 0)  # -1 stands for none


def usable_device(name: str | None) -> torch.device:
    """A device by name, tested by placing a tensor on it. Default: CUDA if available, else CPU."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    # An unknown name, a missing driver, a build without it: torch has an error for each.
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        raise ConfigError(
            f"device: must be one that works here, such as 'cpu', got {name!r} "
            f"({first_line(error)})."
        ) from error
    return device


def bfloat16_advice(device: torch.device, dtype: torch.dtype, remedy: str) -> str | None:
    """A sentence that ends with ``remedy``, for bfloat16 on a CPU where PyTorch is slow."""
    fast = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if fast or device.type != "cpu" or dtype != torch.bfloat16:
        return None
    return (
        "PyTorch uses no bfloat16 instructions on this CPU, which makes bfloat16 many times slower "
        f"than float32: use {remedy}"
    )


def name_or_cached(name: str, revision: str | None = None) -> str:
    """``name`` if it is a folder or the hub answers, else the model's folder in the hub's cache."""
    if not is_hub_name(name) or _answers():
        return name
    try:
        return snapshot_download(name, revision=revision, local_files_only=True)
    except LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "it could not be reached"
        raise CheckpointError(
            f"{name}: no folder of this name is in {Path.cwd()}, and the hub cannot be asked for "
            f"it ({constants.ENDPOINT}: {why}). Name a local folder."
        ) from error


def _answers() -> bool:
    """Whether the hub answers in time. In a thread, because a DNS lookup has no time limit."""
    replies: list[object] = []

    def ask() -> None:
        with suppress(Exception):  # every HTTP client has errors of its own
            replies.append(get_session().head(constants.ENDPOINT, timeout=_PATIENCE_SECONDS))

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    return bool(replies)


def _find(folder: Path, revision: str | None, name: str) -> Path | None:
    """Path of a file of a model folder, or of a hub model after downloading it; else ``None``."""
    if folder.is_dir():
        return files_in(folder)(name)
    faults = ("gated_repo", "missing_entries", "connection_errors")
    options = {f"_raise_exceptions_for_{fault}": False for fault in faults}
    path = cached_file(str(folder), name, revision=revision, **options)
    return None if path is None else Path(path)


@contextmanager
def _as_checkpoint_error(must: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    # Damaged files raise errors of any type: Rust parsers raise bare Exception, or panic.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(f"{must}, got: {first_line(error)}.") from error


def _require_all_weights(name_or_path: str, model: Any, report: Any) -> None:
    """Raise for missing, reshaped and (in our models) unknown weights: transformers only logs."""
    missing = sorted(report["missing_keys"])
    reshaped = sorted(name for name, *_ in report["mismatched_keys"])
    is_ours = isinstance(model, DiffTransformerForCausalLM)  # others may hold other tasks' heads
    unknown = sorted(report["unexpected_keys"]) if is_ours else []
    for names, fault in ((missing, "no"), (reshaped, "another shape of"), (unknown, "also")):
        if names:
            raise CheckpointError(
                f"{name_or_path}: must hold exactly the weights of its config, got {fault} "
                f"{names[0]} ({len(names)} such names)."
            )


@contextmanager
def quiet(warnings: bool = False) -> Iterator[None]:
    """A context without transformers' progress bars, and unless asked for, ``warnings``."""
    had_bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    if not warnings:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()
