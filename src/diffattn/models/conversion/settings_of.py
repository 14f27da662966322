"""Translate the settings of a source into fields of our configuration."""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from transformers import AutoConfig

from diffattn.errors import CheckpointError, ConfigError, short
from diffattn.models.checkpoint_folder import files_in
from diffattn.models.config.settings import ModelSettings
from diffattn.models.conversion.layouts import LAMBDAS
from diffattn.models.conversion.source import Source
from diffattn.models.folder_check import check_folder
from diffattn.ops.inputs.numbers import is_whole

SHARED_FIELDS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "rms_norm_eps"),
    *("initializer_range", "max_position_embeddings", "tie_word_embeddings"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
)
"""Fields with the same name in Hugging Face's models and in this package."""
_NOT_IN_WEIGHTS = ("rms_norm_eps", "rope_theta", "max_position_embeddings")
"""Settings that the user must give if there is no ``config.json``: weights do not show them."""


def settings_of(source: Source, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of our configuration of the source, with ``changes`` of fields and ``rope_theta``."""
    layout = source.layout
    if source.settings is not None:
        settings = _READERS[layout.name](source)
    elif layout.name.startswith("original"):
        settings = _from_weights(source, changes)
    else:
        must = f"must hold config.json, which says how many heads a {layout.title} has"
        raise source.error(must, "none")
    for name in ("pad_token_id", "bos_token_id"):
        if isinstance(settings.get(name), int) and settings[name] < 0:  # older files' "no token"
            settings[name] = None
    given = dict(changes)
    if "rope_theta" in given:
        rope = settings.get("rope_parameters") or {"rope_type": "default"}
        settings["rope_parameters"] = {**rope, "rope_theta": given.pop("rope_theta")}
    _check_stretching(source, settings, given)
    window = settings.pop("sliding_window", None)
    settings |= given
    if window is not None and settings["max_position_embeddings"] > window:
        raise CheckpointError(
            f"{source.name}: sliding_window must reach over the whole context of "
            f"{settings['max_position_embeddings']:,} tokens, for a DIFF Transformer has none, got "
            f"{window:,}. Contexts within the window are the same: --set "
            f"max_position_embeddings={window}"
        )
    return settings


def _check_stretching(
    source: Source, settings: Mapping[str, Any], given: Mapping[str, Any]
) -> None:
    """Refuse changes of rotary settings that act on long texts only: the comparison of logits uses
    short texts and would not notice them."""
    kinds = {_rope_type(x.get("rope_parameters")) for x in (settings, given)}
    for kind in kinds & {"dynamic", "longrope"} if source.settings is not None else ():
        for name in ("rope_parameters", "max_position_embeddings"):
            if name in given and given[name] != settings.get(name):
                raise ConfigError(
                    f"{source.name}: {name} must stay {short(settings.get(name))}, as rope_type "
                    f"{kind!r} sets the frequencies of longer texts by it, got {given[name]!r}."
                )


def _rope_type(rope: Any) -> Any:
    return rope.get("rope_type", rope.get("type")) if isinstance(rope, dict) else None


def _read_config(source: Source) -> Any:
    _require(source, "hidden_act", (source.settings or {}).get("hidden_act", "silu"), "silu")
    check_folder(source.name, str(source.folder), files_in(source.folder), in_memory=False)
    return AutoConfig.from_pretrained(source.folder, trust_remote_code=False)


def _shared_fields(source: Source, config: Any) -> dict[str, Any]:
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % kv_heads:
        must = f"num_key_value_heads must divide num_attention_heads = {heads}"
        raise source.error(must, kv_heads)
    rope = {key: value for key, value in config.rope_parameters.items() if value is not None}
    return {name: getattr(config, name) for name in SHARED_FIELDS} | {"rope_parameters": rope}


def _diffllama(source: Source) -> dict[str, Any]:
    config = _read_config(source)
    _require(source, "attention_bias", config.attention_bias, False)
    return _shared_fields(source, config) | {
        "attention_type": "diff",
        "num_heads": _halve_heads(source, "num_attention_heads", config.num_attention_heads),
        "num_kv_heads": _halve_heads(source, "num_key_value_heads", config.num_key_value_heads),
        "head_dim": config.head_dim,
        "head_norm_affine": False,
        "head_norm_eps": config.rms_norm_eps,
    }


def _llama(source: Source) -> dict[str, Any]:
    config = _read_config(source)
    for name in ("attention_bias", "mlp_bias"):
        _require(source, name, getattr(config, name, False), False)
    window = getattr(config, "sliding_window", None)
    windowed = set() if window is None else {"sliding_attention"}
    kinds = set(getattr(config, "layer_types", None) or windowed)
    others = kinds - windowed - {"full_attention"}
    if others:
        must = "layer_types must be full_attention, or sliding_attention with a sliding_window"
        raise source.error(must, short(min(others)))
    if config.attention_dropout:
        warnings.warn(
            f"{source.name}: attention_dropout = {config.attention_dropout} is left out, for a "
            "DIFF Transformer has none",
            stacklevel=2,
        )
    settings = _shared_fields(source, config) | {
        "attention_type": "softmax",
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads,
        "head_dim": getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads,
        "qkv_bias": config.model_type == "qwen2",
        "qk_norm": config.model_type == "qwen3",
    }
    if kinds & windowed:
        settings["sliding_window"] = window
    return settings


def _motif(source: Source) -> dict[str, Any]:
    activation = (source.settings or {}).get("hidden_act")
    if activation != "silu":
        advice = "Its attention layers alone load with diffattn.models.conversion.our_model"
        raise source.error("hidden_act must be 'silu'", f"{activation!r}. {advice}")
    return motif_settings(source)


def motif_settings(source: Source) -> dict[str, Any]:
    """Fields of the configuration of a Motif model. The feed-forward activation is not checked."""
    config = dict(source.settings or {})
    _require(source, "use_bias", config.get("use_bias", False), False)
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    num_heads, ratio = _motif_heads(source)
    rope = {"rope_type": "default", "rope_theta": float(config.get("rope_theta", 10_000))}
    return {name: config[name] for name in SHARED_FIELDS if name in config} | {
        "attention_type": "diff" if ratio is None else "grouped_diff",
        "group_ratio": ratio,
        "num_heads": num_heads,
        "num_kv_heads": _halve_heads(
            source, "num_key_value_heads", config.get("num_key_value_heads", heads)
        ),
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "head_norm_eps": config.get("attn_rms_norm_eps", 1e-5),
        # Motif's code uses layer - 1 where the paper has l - 1 = layer: layer 0 has -0.01.
        "lambda_init": [0.8 - 0.6 * math.exp(-0.3 * (layer - 1)) for layer in range(layers)],
        "rope_parameters": rope | (config.get("rope_scaling") or {}),
        "tie_word_embeddings": config.get("tie_word_embeddings", False),
    }


def _motif_heads(source: Source) -> tuple[int, int | None]:
    """Heads of a Motif layer, and its ``group_ratio`` if it has one.

    Source: arXiv:2510.06949v1, Grouped Differential Attention.
    """
    config = source.settings or {}
    heads, subtracted = config["num_attention_heads"], config.get("num_noise_heads")
    if subtracted is None:
        return _halve_heads(source, "num_attention_heads", heads), None
    whole = is_whole(heads) and is_whole(subtracted)
    if not whole or subtracted < 1 or heads % subtracted or heads == subtracted:
        must = f"num_noise_heads must divide num_attention_heads = {heads} and be fewer"
        raise source.error(must, short(subtracted))
    _require(source, "k_ratio", config.get("k_ratio", 1), 1)
    kv_heads = _halve_heads(source, "num_key_value_heads", config.get("num_key_value_heads"))
    if subtracted % kv_heads:
        must = f"num_key_value_heads / 2 must divide num_noise_heads = {subtracted}"
        raise source.error(must, kv_heads)
    return heads - subtracted, heads // subtracted - 1


def _original(source: Source) -> dict[str, Any]:
    known = ModelSettings.__dataclass_fields__
    return {name: value for name, value in (source.settings or {}).items() if name in known}


def _from_weights(source: Source, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings read off the shapes of weights; ``changes`` must hold ``_NOT_IN_WEIGHTS``."""
    missing = [name for name in _NOT_IN_WEIGHTS if name not in changes]
    if "rope_parameters" in changes and "rope_theta" in missing:
        missing.remove("rope_theta")
    if missing:
        options = " ".join(f"--set {name}=..." for name in missing)
        raise ConfigError(
            f"{source.name}: {', '.join(missing)} must be given, as the weights do not show them "
            f"and there is no config.json, got none. Add {options}"
        )

    def shape(role: str) -> tuple[int, ...]:
        name = source.names[role].format(0)
        if name not in source.tensors or len(source.tensors[name].shape) < 1:
            raise source.error(f"must hold {name}", "none")
        return source.tensors[name].shape

    num_layers = 0
    while source.names["input_norm"].format(num_layers) in source.tensors:
        num_layers += 1
    settings: dict[str, Any] = {
        "attention_type": source.layout.attention_type,
        "vocab_size": shape("embed")[0],
        "hidden_size": shape("embed")[-1],
        "intermediate_size": shape("gate")[0],
        "num_hidden_layers": num_layers,
        "tie_word_embeddings": source.names["head"] not in source.tensors,
    }
    if source.layout.attention_type == "diff":
        settings["head_dim"] = shape(LAMBDAS[0])[0]
        settings["num_heads"] = shape("q")[0] // (2 * settings["head_dim"])
        settings["num_kv_heads"] = shape("k")[0] // (2 * settings["head_dim"])
        settings["head_norm_affine"] = source.names["subln"].format(0) in source.tensors
    else:
        settings["num_heads"] = shape("lambda_proj")[0]
        settings["head_dim"] = shape("q")[0] // (2 * max(1, settings["num_heads"]))
        settings["num_kv_heads"] = shape("k")[0] // max(1, settings["head_dim"])
    return settings


def _halve_heads(source: Source, name: str, count: Any) -> int:
    if not isinstance(count, int) or count < 2 or count % 2:
        raise source.error(f"{name} must be even", repr(count))
    return count // 2


def _require(source: Source, name: str, value: Any, must: Any) -> None:
    if value != must:
        raise source.error(f"{name} must be {must!r}, as in a DIFF Transformer", repr(value))


_READERS: dict[str, Callable[..., dict[str, Any]]] = {
    "diffattn": lambda source: dict(_read_config(source).settings()),
    "diffllama": _diffllama, "original": _original, "original_v2": _original, "motif": _motif,
    "llama": _llama,
}  # fmt: skip
