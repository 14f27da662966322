"""``KEY=VALUE`` changes to a run's configuration."""

import dataclasses
import json
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from diffattn.errors import ConfigError
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.training.config import RunConfig


def apply_settings(config: RunConfig, settings: Iterable[str]) -> RunConfig:
    """The configuration with changes such as ``"train.num_steps=500"`` applied.

    Sections are ``model``, ``train`` and ``data``. Values are JSON (``2e-3``, ``true``, ``null``,
    ``[0.2, 0.3]``), else text. The model's vocabulary and context follow ``data.vocab_size`` and
    ``train.seq_len`` unless they are set too.

    Raises:
        ConfigError: No ``=``, an unknown key, or a value of the wrong kind.
    """
    values: dict[str, dict[str, Any]] = {
        "model": config.model.settings(),
        "train": dataclasses.asdict(config.train),
        "data": dataclasses.asdict(config.data),
    }
    known = [f"{section}.{field}" for section, fields in values.items() for field in fields]
    changed: dict[str, Any] = {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        key = key.strip()
        if not separator:
            raise ConfigError(f"--set: must be KEY=VALUE, got {setting!r}.")
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"--set: unknown key {key!r}.{hint} Keys: {', '.join(known)}.")
        changed[key] = _parse(text.strip())
    if "data.vocab_size" in changed:
        changed.setdefault("model.vocab_size", changed["data.vocab_size"])
    if "train.seq_len" in changed:
        changed.setdefault("model.max_position_embeddings", changed["train.seq_len"])
    for key, value in changed.items():
        section, field = key.split(".", 1)
        values[section][field] = value
    return dataclasses.replace(
        config,
        model=_build("model", DiffTransformerConfig, values["model"]),
        train=_build("train", type(config.train), values["train"]),
        data=_build("data", type(config.data), values["data"]),
    )


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _build(section: str, kind: type, values: dict[str, Any]) -> Any:
    try:
        return kind(**values)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:  # a value of the wrong type
        reason = str(error).strip().splitlines()[-1].strip()
        raise ConfigError(
            f"--set: {section} settings must have the right types, got {reason}."
        ) from error
