"""``KEY=VALUE`` changes to a run's configuration."""

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, get_args

from diffattn.errors import ConfigError
from diffattn.lab.records.settings import parse_value, read_settings
from diffattn.lab.training.config import DataConfig, GuardConfig, RunConfig, TrainConfig
from diffattn.lab.training.engine import EngineConfig
from diffattn.lab.training.windows import WindowConfig
from diffattn.models.config.settings import OPTIONS, ModelSettings

_SECTIONS: dict[str, type] = {
    "model": ModelSettings,
    "train": TrainConfig,
    "data": DataConfig,
    "windows": WindowConfig,
    "guard": GuardConfig,
    "engine": EngineConfig,
}
# Values that follow another one as long as they are its default.
_DERIVED = {
    "model.num_heads": "num_kv_heads",
    "model.hidden_size": "intermediate_size",
    "model.head_dim": "shared_rank",
}


_OF_A_TYPE = ("head_norm", "head_norm_affine", "lambda_init", "lambda_bias", "shared_rank")


def apply_settings(
    config: RunConfig, settings: Iterable[str], *, attention: str | None = None
) -> RunConfig:
    """The configuration with changes such as ``"train.num_steps=500"`` applied.

    Sections are ``model``, ``train``, ``data``, ``windows``, ``guard`` and ``engine``. Values are
    JSON (``2e-3``, ``true``, ``null``, ``[0.2, 0.3]``), else text. Unless they are set too, the
    model's vocabulary and context follow ``data.vocab_size`` and ``train.seq_len``, and its
    defaults of ``num_kv_heads``, ``intermediate_size`` and ``shared_rank`` follow what they are
    derived from; an embedding multiplier of √hidden_size follows ``hidden_size``.

    Args:
        config: What is changed.
        settings: The changes.
        attention: Take the twin of this attention type. Settings of the head norm, of λ and of the
            rank are the twin's then; all others are made before, so that it has equal parameters.

    Raises:
        ConfigError: No ``=``, an unknown key, a value of the wrong kind, or no such twin.
    """
    from diffattn.models.config.configuration_diff_transformer import DiffTransformerConfig

    changed = read_changes(settings)
    values: dict[str, dict[str, Any]] = {
        "model": config.model.settings(),
        "train": dataclasses.asdict(config.train),
        "data": dataclasses.asdict(config.data),
        "windows": dataclasses.asdict(config.windows),
        "guard": dataclasses.asdict(config.guard),
        "engine": dataclasses.asdict(config.engine),
    }
    values["model"] |= _followers(values["model"], changed)
    of_twin: dict[str, Any] = {}
    for key, value in changed.items():
        section, field = key.split(".", 1)
        is_twins = attention is not None and section == "model" and field in _OF_A_TYPE
        (of_twin if is_twins else values[section])[field] = value
    # The model follows the others, so a wrong value of theirs is named first.
    train = _build("train", type(config.train), values["train"])
    data = _build("data", type(config.data), values["data"])
    windows = _build("windows", WindowConfig, values["windows"])
    guard = _build("guard", GuardConfig, values["guard"])
    engine = _build("engine", EngineConfig, values["engine"])
    model = _build("model", DiffTransformerConfig, values["model"])
    if attention is not None:
        model = _build("model", partial(_twin, model, attention), of_twin)
    return dataclasses.replace(
        config, model=model, train=train, data=data, windows=windows, guard=guard, engine=engine
    )


def read_changes(settings: Iterable[str]) -> dict[str, Any]:
    """Keys and parsed values of changes to a run, checked without torch.

    Raises:
        ConfigError: No ``=``, an unknown key, or a number that is not finite.
    """
    known = {
        f"{section}.{field.name}": get_args(field.type) or (field.type,)
        for section, kind in _SECTIONS.items()
        for field in dataclasses.fields(kind)
    } | {f"model.{name}": (bool,) for name in OPTIONS}
    given = read_settings(settings, list(known))
    return {key: _value(key, text, known[key]) for key, text in given.items()}


def require_unset(settings: Iterable[str], key: str, why: str) -> None:
    """Refuse a change that would do something else than it says.

    Raises:
        ConfigError: ``settings`` holds ``key``.
    """
    changes = read_changes(settings)
    if key in changes:
        raise ConfigError(f"--set: {key} must not be set, as {why}, got {changes[key]}.")


def _followers(model: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """What follows the changes in the model, as long as no change sets it too."""
    followers: dict[str, Any] = {}
    if "data.vocab_size" in changed:
        followers["vocab_size"] = changed["data.vocab_size"]
    if "train.seq_len" in changed:
        followers["max_position_embeddings"] = changed["train.seq_len"]
    for key, follower in _DERIVED.items():
        if key in changed and _is_default(model, follower):
            followers[follower] = None
    size = changed.get("model.hidden_size")
    if model["embedding_multiplier"] == model["hidden_size"] ** 0.5 and (
        type(size) is int and size > 0
    ):
        followers["embedding_multiplier"] = size**0.5
    return followers


def _value(key: str, text: str, kinds: tuple[Any, ...]) -> Any:
    value = parse_value(key, text)
    if type(value) is int and float in kinds and int not in kinds:
        return float(value)  # 32 is a number like 32.0
    # A folder may be called 2024, and true is a word.
    is_text = key in ("data.source", "data.text_field", "data.tokenizer")
    return value if value is None or not is_text or isinstance(value, str) else text


def _is_default(model: dict[str, Any], field: str) -> bool:
    known = {key: value for key, value in model.items() if key not in OPTIONS}
    return ModelSettings(**known | {field: None}).settings()[field] == model[field]


def _twin(model: Any, attention: str, **changes: Any) -> Any:
    return model.twin(attention, **changes).config


def _build(section: str, kind: Callable[..., Any], values: dict[str, Any]) -> Any:
    try:
        return kind(**values)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:  # a value of the wrong type
        reason = str(error).strip().splitlines()[-1].strip()
        raise ConfigError(
            f"--set: {section} settings must have the right types, got {reason}."
        ) from error
