"""Open a checkpoint: a run directory of ours, a model folder, or a name on the hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import cached_file, logging

from diffattn.errors import CheckpointError, ConfigError, first_line, shown
from diffattn.files.manifest import MANIFEST, verify_manifest
from diffattn.models.checkpoint_folder import checkpoint_folder
from diffattn.models.folder_check import check_folder
from diffattn.models.hub import name_or_cached
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.models.weight_files import files_in
from diffattn.ops.inputs.numbers import is_whole


def load_model(
    name_or_path: str,
    *,
    verify: bool = True,
    revision: str | None = None,
    trust_remote_code: bool = False,
    device_map: str | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Any, Any]:
    """A causal language model, ours or any other, in evaluation mode, and its tokenizer.

    Args:
        name_or_path: A run directory (with ``model/``), a model folder, or a hub name.
        verify: Whether to compare the files with ``manifest.json``, if it exists: about a second
            per gigabyte.
        revision: Commit, branch or tag of a hub name. Default: its main branch.
        trust_remote_code: Whether to run the code that comes with the model. It can do anything,
            so nothing else of the folder is checked then.
        device_map: Places of its parts, as accelerate takes it: ``"auto"``, ``"balanced"``, a
            device. Default: all on the CPU.
        dtype: Of the weights. Default: the checkpoint's.

    Raises:
        CheckpointError: Nothing is there, or the files are damaged or of another kind.
        ConfigError: A revision of a folder, or an end of its texts that is no token id.
    """
    folder = checkpoint_folder(name_or_path)
    if revision is not None and folder.exists():
        raise ConfigError(f"{name_or_path}: revision must be of a hub name, got {revision!r}.")
    if not folder.exists():
        folder = Path(name_or_cached(name_or_path, revision))
        revision = None if folder.exists() else revision
    source = {"revision": revision, "trust_remote_code": trust_remote_code}
    if verify and (folder / MANIFEST).exists():
        try:
            verify_manifest(folder)
        except CheckpointError as error:
            advice = f"If it was changed on purpose, delete {folder / MANIFEST}."
            raise CheckpointError(f"{error} {advice}") from error
    with quiet(), _as_checkpoint_error(f"{name_or_path}: must be a whole checkpoint"):
        if not trust_remote_code:
            find = partial(_find, folder, revision)
            check_folder(
                name_or_path, str(folder), find, in_memory=device_map is None, revision=revision
            )
        model, report = AutoModelForCausalLM.from_pretrained(
            str(folder),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # else the names stand in a log alone
            device_map=device_map,
            dtype="auto" if dtype is None else dtype,
            **source,
        )
    if model.can_generate():  # what to write is the caller's to say, where it ends the model's
        ends = end_tokens(model)
        model.generation_config = GenerationConfig(eos_token_id=ends or None)
    _require_all_weights(name_or_path, model, report)
    with quiet(), _as_checkpoint_error(f"{name_or_path}: must hold a tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(str(folder), **source)
    return model.eval(), tokenizer


def known_tokens(network: Any) -> int:
    """Rows of the embedding, which a quantiser may have packed or an adapter wrapped."""
    embedding = network.get_input_embeddings()
    return getattr(embedding, "num_embeddings", None) or len(embedding.weight)


def end_tokens(model: Any, tokenizer: Any = None) -> list[int]:
    """Tokens by which a model ends its texts, in ascending order.

    Chat models end a turn by another token than a text, so several places name some: the
    configuration, ``generation_config`` and the tokenizer.

    Raises:
        ConfigError: A place names something else than ids.
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
    """A device by name, proved by putting a number there. Default: CUDA if there is any, else CPU.

    Raises:
        ConfigError: There is no such device here.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    # An unknown name, a missing driver, a build without it: torch has an error for each.
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        raise ConfigError(
            "device: must be one that works here, such as 'cpu', "
            f"got {name!r} ({first_line(error)})."
        ) from error
    return device


def _find(folder: Path, revision: str | None, name: str) -> Path | None:
    """One file of a model folder; of a name on the hub, fetched as transformers fetches it."""
    if folder.is_dir():
        return files_in(folder)(name)
    path = cached_file(
        str(folder),
        name,
        revision=revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if path is None else Path(path)


@contextmanager
def _as_checkpoint_error(must: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError:  # says it already
        raise
    # For damaged files it may be anything: its Rust parsers raise bare Exception, or panic.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(f"{must}, got: {first_line(error)}.") from error


def _require_all_weights(name_or_path: str, model: Any, report: Any) -> None:
    """Refuse missing, reshaped and unknown weights, which transformers only logs."""
    missing = sorted(report["missing_keys"])
    reshaped = sorted(name for name, *_ in report["mismatched_keys"])
    unknown = sorted(report["unexpected_keys"])
    if not isinstance(model, DiffTransformerForCausalLM):
        unknown = []  # heads for other tasks, which other models may carry
    for names, fault in ((missing, "no"), (reshaped, "another shape of"), (unknown, "also")):
        if names:
            raise CheckpointError(
                f"{name_or_path}: must hold exactly the weights of its config, got {fault} "
                f"{names[0]} ({len(names)} such names)."
            )


@contextmanager
def without_bars() -> Iterator[None]:
    """Without transformers' own progress bars."""
    had_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if had_bars:
            logging.enable_progress_bar()


@contextmanager
def quiet() -> Iterator[None]:
    """Without bars and without the report of loading, whose faults become errors."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with without_bars():
            yield
    finally:
        logging.set_verbosity(verbosity)
