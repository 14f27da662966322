"""Every protocol by name, and the presets that run what a table or figure of the paper needs."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from diffattn.errors import ConfigError, did_you_mean
from diffattn.evaluation.protocol import Protocol
from diffattn.evaluation.runner import Part
from diffattn.evaluation.setting_values import setting_value
from diffattn.records.settings import read_settings

# Name -> module and class. Loaded on first use: some need optional packages.
PROTOCOLS: dict[str, tuple[str, str]] = {
    "ar_hits": ("diffattn.evaluation.perplexity.ar_hits", "ArHits"),
    "attention_segments": (
        "diffattn.evaluation.long_context.attention_segments",
        "AttentionSegments",
    ),
    "babilong": ("diffattn.evaluation.long_context.babilong.babilong", "BabiLong"),
    "hallucination": ("diffattn.evaluation.hallucination.hallucination", "Hallucination"),
    "hidden_needle": ("diffattn.evaluation.long_context.hidden_needle", "HiddenNeedleSearch"),
    "key_values": ("diffattn.evaluation.long_context.key_values", "KeyValues"),
    "lm_tasks": ("diffattn.evaluation.lm_tasks.lm_tasks", "LmTasks"),
    "needle": ("diffattn.evaluation.long_context.needle", "Needle"),
    "nll_by_position": ("diffattn.evaluation.perplexity.nll_by_position", "NllByPosition"),
    "quantized_logits": ("diffattn.evaluation.quantized_logits", "QuantizedLogits"),
    "ruler": ("diffattn.evaluation.long_context.ruler.ruler", "Ruler"),
    "single_needle": ("diffattn.evaluation.long_context.single_needle", "SingleNeedle"),
    "sliding_perplexity": (
        "diffattn.evaluation.perplexity.sliding_perplexity",
        "SlidingPerplexity",
    ),
    "word_perplexity": ("diffattn.evaluation.perplexity.word_perplexity", "WordPerplexity"),
    "many_shot": ("diffattn.evaluation.icl.many_shot", "ManyShot"),
    "order_robustness": ("diffattn.evaluation.icl.order_robustness", "OrderRobustness"),
    "remapped_labels": ("diffattn.evaluation.icl.remapped_labels", "RemappedLabels"),
}

_ICL = ("trec", "trec_fine", "banking77", "clinic150")

# Preset -> folder name -> protocol and its parameters.
PRESETS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "fig4": {"nll_by_position": ("nll_by_position", {})},
    "table6": {"ar_hits": ("ar_hits", {})},
    "table4": {
        name: ("hallucination", {"dataset": name})
        for name in ("xsum", "cnn_dm", "multi_news", "qasper", "hotpotqa", "2wikimqa")
    },
    "table2": {"table2": ("needle", {})},
    "fig5": {
        "fig5": ("needle", {"tasks": ((8, 1),), "lengths": tuple(range(8_192, 65_537, 8_192))})
    },
    "table3": {"table3": ("attention_segments", {})},
    "fig1": {"fig1": ("attention_segments", {"depths": (50,)})},
    "long_context": {
        "ruler": ("ruler", {}),
        "babilong": ("babilong", {}),
        "key_values": ("key_values", {}),
    },
    "fig8": {"quantized_logits": ("quantized_logits", {})},
    "table1": {"lm_tasks_0shot": ("lm_tasks", {"num_fewshot": 0})},
    "table8": {
        "lm_tasks_0shot": ("lm_tasks", {"num_fewshot": 0}),
        "lm_tasks_5shot": ("lm_tasks", {"num_fewshot": 5}),
    },
    "fig6": {f"many_shot_{name}": ("many_shot", {"dataset": name}) for name in _ICL},
    "fig7": {
        "order_random": ("order_robustness", {"dataset": "trec"}),
        "order_alternating": (
            "order_robustness",
            {"dataset": "trec", "format": "alternating", "orders": 30, "test_items": 30},
        ),
    },
    "fig11": {f"order_{name}": ("order_robustness", {"dataset": name}) for name in _ICL},
}


def protocol_class(name: str) -> type[Protocol]:
    """The class of a protocol.

    Raises:
        ConfigError: No protocol has this name.
    """
    if name not in PROTOCOLS:
        hint = did_you_mean(name, [*PROTOCOLS, *PRESETS])
        raise ConfigError(f"Unknown protocol {name!r}.{hint} See 'diffattn list protocols'.")
    module, attribute = PROTOCOLS[name]
    found: type[Protocol] = getattr(import_module(module), attribute)
    return found


def parts(names: Iterable[str], settings: Sequence[str] = (), *, quick: bool = False) -> list[Part]:
    """Protocols and presets by name, with their parameters.

    Args:
        names: Of protocols or presets; ``"all"`` is every protocol.
        settings: ``PROTOCOL.KEY=VALUE``, for every part that runs this protocol; values are JSON,
            else text.
        quick: Take the parameters of the reduced size where they are not set.

    Raises:
        ConfigError: An unknown name, key or value, or a part asked for twice.
    """
    chosen: dict[str, tuple[str, dict[str, Any]]] = {}
    asked = [one for name in names for one in (PROTOCOLS if name == "all" else [name])]
    for name in asked:
        wanted = PRESETS.get(name) or {name: (name, {})}
        for variant, (protocol, parameters) in wanted.items():
            if variant in chosen and chosen[variant] != (protocol, parameters):
                raise ConfigError(f"evaluate: {variant!r} must be asked for once, got it twice.")
            chosen[variant] = (protocol, parameters)
    changes = _read(settings, {protocol for protocol, _ in chosen.values()})
    found = []
    for variant, (name, parameters) in chosen.items():
        kind = protocol_class(name)
        values = parameters | (dict(kind.quick) if quick else {}) | changes.get(name, {})
        found.append(Part(variant=variant, protocol=_build(kind, values)))
    return found


def _read(settings: Sequence[str], protocols: set[str]) -> dict[str, dict[str, Any]]:
    """Values by protocol and field."""
    changes: dict[str, dict[str, Any]] = {}
    for setting in settings:
        protocol = setting.partition("=")[0].strip().partition(".")[0]
        if "=" not in setting or "." not in setting.partition("=")[0]:
            raise ConfigError(f"--set: must be PROTOCOL.KEY=VALUE, got {setting!r}.")
        if protocol not in protocols:
            raise ConfigError(
                f"--set: {protocol!r} must be a protocol of this run "
                f"({', '.join(sorted(protocols))}), got {setting!r}."
            )
        kind = protocol_class(protocol)
        known = [f"{protocol}.{field.name}" for field in dataclasses.fields(kind)]
        for key, text in read_settings([setting], known, form="PROTOCOL.KEY=VALUE").items():
            field = key.partition(".")[2]
            changes.setdefault(protocol, {})[field] = setting_value(kind, field, key, text)
    return changes


def _build(kind: type[Protocol], values: Mapping[str, Any]) -> Protocol:
    try:
        return kind(**values)
    except ConfigError:
        raise
    except (TypeError, ValueError, AttributeError) as error:  # a value of the wrong type
        raise ConfigError(
            f"{kind.name}: settings must have the right types, got {error}."
        ) from error
