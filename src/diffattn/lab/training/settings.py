"""A run as a user asks for it, and ``KEY=VALUE`` changes to its configuration. Loads no torch."""

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from diffattn.errors import ConfigError
from diffattn.files.destination import require_folder_destination
from diffattn.lab.records.fields import read_settings
from diffattn.lab.training.config import (
    DataConfig,
    EngineConfig,
    GuardConfig,
    RunConfig,
    TrainConfig,
    WindowConfig,
)
from diffattn.models.checkpoint_folder import checkpoint_folder
from diffattn.models.config.attention_types import checked_types
from diffattn.models.config.settings import OPTIONS, ModelSettings

_SECTIONS: dict[str, type] = {
    "train": TrainConfig,
    "data": DataConfig,
    "windows": WindowConfig,
    "guard": GuardConfig,
    "engine": EngineConfig,
}
"""Section of the configuration -> its class. The section ``model`` is handled apart."""
_DERIVED = {
    "model.num_heads": "num_kv_heads",
    "model.hidden_size": "intermediate_size",
    "model.group_ratio": "num_kv_heads",
    "model.head_dim": "shared_rank",
}
"""Changed setting -> model setting that is derived from it anew, if it had its default."""
_ATTENTION_SETTINGS = (
    "head_norm", "head_norm_affine", "lambda_init", "lambda_bias",
    "shared_rank", "group_ratio",
)  # fmt: skip


def apply_settings(
    config: RunConfig, settings: Iterable[str], *, attention: str | None = None
) -> RunConfig:
    """The configuration with changes such as ``"train.num_steps=500"`` applied.

    These model settings follow others unless they are set too: the vocabulary follows
    ``data.vocab_size``, and the context ``train.seq_len``. Default values of ``num_kv_heads``,
    ``intermediate_size`` and ``shared_rank`` are derived anew. An embedding multiplier of
    √hidden_size follows ``hidden_size``.

    Args:
        attention: Take the twin of this attention type. Changes of :data:`_ATTENTION_SETTINGS`
            then apply to the twin. All others come first, so that the parameter count is equal.
    """
    from diffattn.models.configuration_diff_transformer import DiffTransformerConfig

    changed = read_changes(settings)
    model = config.model.settings()
    given, of_twin = _fields("model", changed), _ATTENTION_SETTINGS if attention else ()
    twin_changes = {name: given.pop(name) for name in of_twin if name in given}
    model |= _followers(model, changed) | given
    # The model comes last, so that a wrong value of another section is named first.
    made = {name: _replaced(name, getattr(config, name), changed) for name in _SECTIONS}
    with _in_section("model", DiffTransformerConfig):
        made["model"] = DiffTransformerConfig(**model)
    if attention is not None:
        made["model"] = made["model"].twin(attention, **twin_changes).config
    return dataclasses.replace(config, **made)


def check_values(config: Any, settings: Iterable[str]) -> dict[str, Any]:
    """Read changes to a recipe's plan as key to value, and check every section but the model, whose
    values are checked one by one, and not together. Loads no torch."""
    changed = read_changes(settings)
    for name, owner in _SECTIONS.items():
        section = getattr(config, name, None)
        _replaced(name, owner() if section is None else section, changed)
    return changed


def _fields(section: str, changed: dict[str, Any]) -> dict[str, Any]:
    split = ((key.partition("."), value) for key, value in changed.items())
    return {name: value for (owner, _, name), value in split if owner == section}


def _replaced(name: str, section: Any, changed: dict[str, Any]) -> Any:
    with _in_section(name, type(section)):
        return dataclasses.replace(section, **_fields(name, changed))


@contextmanager
def _in_section(name: str, owner: type) -> Iterator[None]:
    """Let messages name a setting as the user does: ``train.seq_len``, not ``TrainConfig``."""
    try:
        yield
    except ConfigError as error:
        text = str(error).replace(f"{owner.__name__}: ", f"{name}.", 1)
        raise ConfigError(text) from error


def read_changes(settings: Iterable[str]) -> dict[str, Any]:
    """Keys and parsed values of changes to a run, checked without torch."""
    kinds = {
        f"{section}.{name}": kind
        for section, owner in {"model": ModelSettings, **_SECTIONS}.items()
        for name, kind in get_type_hints(owner).items()
    }
    return read_settings(settings, kinds | {f"model.{name}": bool for name in OPTIONS})


def _followers(model: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """Settings of the model that follow the changes, as long as no change sets them too."""
    followers: dict[str, Any] = {}
    if "data.vocab_size" in changed:
        followers["vocab_size"] = changed["data.vocab_size"]
    if "train.seq_len" in changed:
        followers["max_position_embeddings"] = changed["train.seq_len"]
    for key, follower in _DERIVED.items():
        if key in changed and _is_default(model, follower):
            followers[follower] = None
    size = changed.get("model.hidden_size", 0)
    if model["embedding_multiplier"] == model["hidden_size"] ** 0.5 and size > 0:
        followers["embedding_multiplier"] = size**0.5
    return followers


def _is_default(model: dict[str, Any], field: str) -> bool:
    known = {key: value for key, value in model.items() if key not in OPTIONS}
    return ModelSettings(**known | {field: None}).settings()[field] == model[field]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRequest:
    """All that a user asks for besides the recipe. Options are checked when it is made."""

    out: Path
    changes: tuple[str, ...] = ()
    attention: str | None = None
    """Train the twin of this attention type. Default: the recipe's model."""
    data: Path | None = None
    init_from: Path | None = None
    """A run directory or model folder, whose weights training starts from."""
    same_model: bool = False
    """Train the model of ``init_from`` in place of the recipe's."""
    verify: bool = True
    """Compare the files of ``data`` and ``init_from`` with their hashes."""
    resume: bool = False
    """Raise an error unless ``out`` holds a run to continue."""
    recipe_vocab_size: int
    """The recipe's vocabulary size. A note names it if the data has another size."""

    def __post_init__(self) -> None:
        if self.attention is not None:
            checked_types("twin", self.attention)
        require_folder_destination(self.out)
        if self.same_model and (self.init_from is None or self.attention is not None):
            got = "no --init-from" if self.init_from is None else "--attention too"
            raise ConfigError(f"train: --same-model takes the model of --init-from, got {got}.")
        if self.init_from is not None:
            checkpoint_folder(str(self.init_from))
